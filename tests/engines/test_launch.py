"""engines.launch: local engines that are ready, or an error that says why not."""

import dataclasses
import json
import os
import select
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.launch import EngineStartError, LlamaCppOptions, LocalEngine, is_healthy, launch
from engines.tiny_gguf import cached_tiny_gguf

ORPHANING_PARENT = """
import os, signal, sys
from pathlib import Path
from engines.launch import LlamaCppOptions, launch
engine = launch(LlamaCppOptions(Path(sys.argv[1]), "tiny"), Path(sys.argv[2]))
print(engine.process.pid, flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def options() -> LlamaCppOptions:
    return LlamaCppOptions(cached_tiny_gguf(), "tiny", slots=2, slot_context_tokens=512)


@pytest.fixture(scope="module")
def engine(options: LlamaCppOptions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    with launch(options, tmp_path_factory.mktemp("engine") / "log") as running:
        yield running


def get_json(url: str) -> object:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def test_ready_engine_answers(engine: LocalEngine) -> None:
    """A launched engine is healthy, on loopback, under its alias and with the slots it was given."""
    assert engine.url == f"http://127.0.0.1:{engine.port}" and is_healthy(engine.url)
    models = get_json(engine.url + "/v1/models")
    assert isinstance(models, dict) and [model["id"] for model in models["data"]] == ["tiny"]
    slots = get_json(engine.url + "/slots")
    assert isinstance(slots, list) and [slot["n_ctx"] for slot in slots] == [512, 512]
    with urllib.request.urlopen(engine.url + "/metrics", timeout=10) as answer:
        assert b"llamacpp:requests_processing" in answer.read()


def test_taken_port_is_refused(engine: LocalEngine, options: LlamaCppOptions, tmp_path: Path) -> None:
    """A port that others listen on fails with the engine's own words, not with a second listener beside the first."""
    with pytest.raises(EngineStartError, match=rf"(?s)port {engine.port}.*couldn't bind.*port: {engine.port}"):
        launch(dataclasses.replace(options, port=engine.port), tmp_path / "log")
    assert is_healthy(engine.url)


def test_missing_model_file_is_named(tmp_path: Path) -> None:
    """A path without a file fails before a process is started."""
    with pytest.raises(EngineStartError, match=r"no model file at .*nothing\.gguf"):
        launch(LlamaCppOptions(tmp_path / "nothing.gguf", "tiny"), tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_broken_model_file_shows_the_log(tmp_path: Path) -> None:
    """A file that is no model fails with the exit code and llama.cpp's last lines."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model" * 100)
    with pytest.raises(EngineStartError, match=r"(?s)ended with exit code 1; its last log lines:.*broken\.gguf"):
        launch(LlamaCppOptions(broken, "tiny"), tmp_path / "log")


def test_late_engine_is_ended(options: LlamaCppOptions, tmp_path: Path) -> None:
    """An engine that is not ready at the deadline is killed and the error says so."""
    with pytest.raises(EngineStartError, match=r"was not ready after 0\.01 s"):
        launch(options, tmp_path / "log", deadline_s=0.01)


def test_killed_engine_comes_back_on_its_port(options: LlamaCppOptions, tmp_path: Path) -> None:
    """After SIGKILL the port is free again at once, so a restarted engine keeps its address."""
    first = launch(options, tmp_path / "log")
    with urllib.request.urlopen(first.url + "/health", timeout=10) as answer:  # leaves a connection behind
        assert answer.status == 200
    first.kill()
    assert not is_healthy(first.url)
    with launch(dataclasses.replace(options, port=first.port), tmp_path / "log") as second:
        assert second.url == first.url and second.process.pid != first.process.pid
    assert not is_healthy(second.url)


def test_health_of_something_else() -> None:
    """A listener that does not speak HTTP is not healthy."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listener.close()
        assert not is_healthy(f"http://127.0.0.1:{port}")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the kernel's parent-death signal")
def test_engine_ends_with_a_killed_parent(options: LlamaCppOptions, tmp_path: Path) -> None:
    """Even SIGKILL of the process that launched it leaves no engine behind."""
    argv = [sys.executable, "-c", ORPHANING_PARENT, str(options.model_path), str(tmp_path / "log")]
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    engine = os.pidfd_open(int(parent.stdout.readline()))
    try:
        parent.kill()
        parent.wait()
        assert select.select([engine], [], [], 10)[0], "the engine outlived its parent"
    finally:
        parent.stdout.close()
        os.close(engine)
