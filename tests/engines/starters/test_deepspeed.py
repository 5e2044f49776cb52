"""engines.starters.deepspeed: the command that the DeepSpeed back end is started with."""

import itertools
from pathlib import Path

from engines.starters.deepspeed import BackEndOptions

OPTIONS = BackEndOptions(Path("/env"), Path("/models/tiny"), grpc_port=50050, max_waiting=4)


def test_command() -> None:
    """Loopback, a gRPC port and a port for metrics, a bounded queue; the project's own sources are found."""
    argv = OPTIONS.argv(9400)
    words = dict(itertools.pairwise(argv))
    assert argv[0] == "/env/bin/python" and words["-m"] == "engines.deepspeed_backend"
    assert (words["--host"], words["--port"], words["--metrics-port"]) == ("127.0.0.1", "50050", "9400")
    assert (words["--model"], words["--max-waiting"], OPTIONS.address) == ("/models/tiny", "4", "127.0.0.1:50050")
    assert (Path(OPTIONS.environment()["PYTHONPATH"]) / "engines").is_dir()


def test_missing_environment_is_named(tmp_path: Path) -> None:
    """An environment that is not there is named before anything is started."""
    missing = BackEndOptions(tmp_path / "nowhere", tmp_path, grpc_port=1).missing()
    assert missing is not None and "nowhere" in missing
