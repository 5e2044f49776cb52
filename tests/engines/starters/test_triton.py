"""engines.starters.triton: the command and the variables that a local Triton is started with."""

from pathlib import Path

from engines.starters.triton import TritonOptions


def test_command() -> None:
    """Loopback for every port, no gRPC, metrics on a port of their own."""
    options = TritonOptions(Path("/env"), Path("/models"), "tiny", metrics_port=8002)
    argv = options.argv(8000)
    assert argv[0].startswith("/env/") and argv[0].endswith("/bin/tritonserver")
    assert {"--http-address=127.0.0.1", "--http-port=8000", "--metrics-address=127.0.0.1", "--metrics-port=8002"} <= set(argv)
    assert "--allow-grpc=false" in argv and options.metrics_url == "http://127.0.0.1:8002/metrics"


def test_environment_comes_first() -> None:
    """The Python backend takes the packages of the first python3 in PATH, so that is the environment's."""
    environment = TritonOptions(Path("/env"), Path("/models"), "tiny", metrics_port=8002).environment()
    assert environment["PATH"].startswith("/env/bin:")
    assert environment["LD_LIBRARY_PATH"].startswith("/env/lib/python")


def test_missing_parts_are_named(tmp_path: Path) -> None:
    """First the environment, then the models."""
    options = TritonOptions(tmp_path, tmp_path / "models", "tiny", metrics_port=8002)
    missing = options.missing()
    assert missing is not None and missing.startswith("no environment")
    binary = options.server_path / "bin" / "tritonserver"
    binary.parent.mkdir(parents=True)
    binary.touch(0o755)
    missing = options.missing()
    assert missing is not None and missing.startswith("no model repository")
    (tmp_path / "models").mkdir()
    assert options.missing() is None
