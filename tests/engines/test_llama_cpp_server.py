"""engines.llama_cpp_server: the engine's own process (a running one is tested in test_launch)."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engines import llama_cpp_server
from engines.tiny_gguf import cached_tiny_gguf


def test_parameters_are_what_was_asked() -> None:
    """Context is per slot on the command line and in total for llama.cpp; nothing but loopback is listened on."""
    argv = ["--model", "m.gguf", "--alias", "a", "--port", "1234", "--slots", "3", "--slot-context-tokens", "1000"]
    params = llama_cpp_server.parameters(llama_cpp_server.arguments().parse_args([*argv, "--threads", "2"]))
    assert (params.n_parallel, params.n_ctx, params.port) == (3, 3000, 1234)
    assert (params.cpuparams.n_threads, params.cpuparams_batch.n_threads) == (2, 2)
    assert params.hostnames == ["127.0.0.1"] and params.cache_ram_mib == 0
    assert params.endpoint_slots and params.endpoint_metrics and params.endpoint_props


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(number: signal.Signals) -> None:
    """SIGTERM and SIGINT end the engine at once, without a traceback; standard output held the report only."""
    argv = ["--model", str(cached_tiny_gguf()), "--alias", "tiny", "--slots", "1", "--slot-context-tokens", "256"]
    process = subprocess.Popen(
        [sys.executable, "-m", "engines.llama_cpp_server", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline().startswith('{"url": "http://127.0.0.1:')
    process.send_signal(number)
    rest, log = process.communicate(timeout=20)
    assert (process.returncode, rest) == (-number, "")
    assert "Traceback" not in log


def test_model_that_cannot_load_exits_with_its_reason(tmp_path: Path) -> None:
    """A missing file exits with code 1 and one line, amid llama.cpp's own log, which a thread of its own writes."""
    argv = ["--model", str(tmp_path / "nothing.gguf"), "--alias", "tiny"]
    done = subprocess.run([sys.executable, "-m", "engines.llama_cpp_server", *argv], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert sum(line.startswith("llama.cpp did not start: ") for line in done.stderr.splitlines()) == 1
