"""engines.starters.mii: the command that MII's OpenAI server is started with."""

import itertools
from pathlib import Path

from engines.starters.mii import MiiOptions

OPTIONS = MiiOptions(Path("/env"), Path("/models/tiny"), "127.0.0.1:50050")


def test_command() -> None:
    """Started beside the model's folder, whose name is the model's; loopback, the given back end."""
    argv = OPTIONS.argv(8000)
    assert argv[:2] == ["sh", "-c"] and argv[3:5] == ["/models", "/env/bin/python"] and OPTIONS.alias == "tiny"
    words = dict(itertools.pairwise(argv))
    assert (words["--model"], words["--load-balancer"]) == ("tiny", "127.0.0.1:50050")
    assert (words["--host"], words["--port"]) == ("127.0.0.1", "8000")
    assert OPTIONS.environment()["DS_ACCELERATOR"] == "cpu"


def test_missing_environment_is_named(tmp_path: Path) -> None:
    """An environment that is not there is named before anything is started."""
    missing = MiiOptions(tmp_path / "nowhere", tmp_path, "127.0.0.1:1").missing()
    assert missing is not None and "nowhere" in missing
