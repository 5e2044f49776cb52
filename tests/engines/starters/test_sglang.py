"""engines.starters.sglang: the command and the variables that a local SGLang is started with."""

import json
from pathlib import Path

from engines.starters.sglang import SglangOptions


def flag(options: SglangOptions, name: str) -> str:
    """The word after a flag."""
    argv = options.argv(30000)
    return argv[argv.index(name) + 1]


def test_plain_command() -> None:
    """Loopback, the CPU, the given pages and cache; metrics and cached tokens are told; no events unless asked for."""
    options = SglangOptions(Path("/env"), Path("/model"), "tiny", page_tokens=1, cache_tokens=256)
    argv = options.argv(30000)
    assert argv[:2] == ["/env/bin/python", "-P"] and "--kv-events-config" not in argv
    assert (flag(options, "--host"), flag(options, "--port"), flag(options, "--device")) == ("127.0.0.1", "30000", "cpu")
    assert (flag(options, "--page-size"), flag(options, "--max-total-tokens")) == ("1", "256")
    assert {"--enable-metrics", "--enable-cache-report"} <= set(argv)
    assert options.environment()["SGLANG_USE_CPU_ENGINE"] == "1"


def test_events() -> None:
    """The events' addresses and topic travel as one JSON flag."""
    options = SglangOptions(Path("/env"), Path("/model"), "tiny", events="ipc:///e", replay="ipc:///r", topic="kv")
    config = json.loads(flag(options, "--kv-events-config"))
    assert config == {"publisher": "zmq", "endpoint": "ipc:///e", "replay_endpoint": "ipc:///r", "topic": "kv"}


def test_missing_environment_is_named(tmp_path: Path) -> None:
    """An environment that is not there is named before anything is started."""
    missing = SglangOptions(tmp_path / "nowhere", tmp_path, "tiny").missing()
    assert missing is not None and "nowhere" in missing
