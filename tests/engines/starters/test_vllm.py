"""engines.starters.vllm: the command and the variables that a local vLLM is started with."""

import json
from pathlib import Path

import pytest

from engines.launch import EngineStartError, launch
from engines.starters.vllm import VllmOptions

OPTIONS = VllmOptions(Path("/env"), Path("/model"), "tiny")


def flag(options: VllmOptions, name: str) -> str:
    """The word after a flag."""
    argv = options.argv(8000)
    return argv[argv.index(name) + 1]


def test_plain_command() -> None:
    """Loopback, the given port and alias, the environment's own Python; no events and no adapters unless asked for."""
    argv = OPTIONS.argv(8000)
    assert argv[:2] == ["/env/bin/python", "-P"]
    assert flag(OPTIONS, "--host") == "127.0.0.1" and flag(OPTIONS, "--port") == "8000"
    assert flag(OPTIONS, "--served-model-name") == "tiny" and flag(OPTIONS, "--block-size") == "32"
    assert not {"--kv-events-config", "--num-gpu-blocks-override", "--enable-lora"} & set(argv)
    assert "VLLM_SERVER_DEV_MODE" not in OPTIONS.environment()


def test_events() -> None:
    """The events' addresses and topic travel as one JSON flag."""
    options = VllmOptions(
        Path("/env"), Path("/model"), "tiny", events="ipc:///e", replay="ipc:///r", topic="kv", cache_blocks=64
    )
    config = json.loads(flag(options, "--kv-events-config"))
    assert (config["endpoint"], config["replay_endpoint"], config["topic"]) == ("ipc:///e", "ipc:///r", "kv")
    assert config["enable_kv_cache_events"] and flag(options, "--num-gpu-blocks-override") == "64"


def test_adapters_and_developer_routes() -> None:
    """Adapters given at the start open loading others at run time; developer routes are a variable."""
    options = VllmOptions(Path("/env"), Path("/model"), "tiny", developer=True, adapters=(("red", Path("/red")),))
    assert flag(options, "--lora-modules") == "red=/red"
    assert options.environment()["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert options.environment()["VLLM_SERVER_DEV_MODE"] == "1"


def test_missing_parts_are_named(tmp_path: Path) -> None:
    """Without its environment or its model nothing is started, and the error says which is missing."""
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    with pytest.raises(EngineStartError, match=r"engine tiny: no environment at .*/nowhere"):
        launch(VllmOptions(tmp_path / "nowhere", tmp_path, "tiny"), tmp_path / "log")
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    with pytest.raises(EngineStartError, match="engine tiny: no model folder at"):
        launch(VllmOptions(tmp_path / "env", tmp_path, "tiny"), tmp_path / "log")
