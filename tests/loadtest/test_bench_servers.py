"""Starting and stopping the processes of the bench."""

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.bench.load import run_load
from loadtest.bench.servers import HOST, Launch, ServerFailed, clean_environment, fake_engines, free_port, running

LISTENER = """
import socket, sys, time
s = socket.socket()
s.bind(("127.0.0.1", int(sys.argv[1])))
s.listen()
print("up", flush=True)
time.sleep(60)
"""


def python(code: str, port: int) -> Launch:
    return Launch("server", [sys.executable, "-c", code, str(port)], port, ready_deadline_s=5.0)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_server_runs_until_the_block_ends(tmp_path: Path) -> None:
    """Inside the block it holds its port, after it nothing is left; its output is in the folder."""
    with running(python(LISTENER, free_port()), tmp_path) as server:
        socket.create_connection((HOST, server.port)).close()
        assert is_alive(server.pid)
    assert not is_alive(server.pid)
    assert (tmp_path / "server.log").read_text() == "up\n"


def test_a_server_that_ignores_the_signal_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM first, SIGKILL after the deadline."""
    monkeypatch.setattr("loadtest.bench.servers.STOP_DEADLINE_S", 0.1)
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LISTENER
    with running(python(stubborn, free_port()), tmp_path) as server:
        pass
    assert not is_alive(server.pid)


def test_a_taken_port_is_a_failure(tmp_path: Path) -> None:
    """Somebody else's server on the port is never measured."""
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        idle = Launch("idle", [sys.executable, "-c", "input()"], other.getsockname()[1], ready_deadline_s=0.2)
        with pytest.raises(ServerFailed, match="ended with"), running(idle, tmp_path):
            pass
        sleeper = Launch("sleeper", ["sleep", "60"], other.getsockname()[1], ready_deadline_s=0.2)
        with pytest.raises(ServerFailed, match="does not hold port"), running(sleeper, tmp_path):
            pass


def test_a_server_that_dies_tells_its_last_words(tmp_path: Path) -> None:
    """The error holds the end of the log."""
    with pytest.raises(ServerFailed, match="no such luck"), running(python("raise SystemExit('no such luck')", 1), tmp_path):
        pass


def test_servers_die_with_the_bench(tmp_path: Path) -> None:
    """Killing the bench outright leaves no server behind."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom loadtest.bench.servers import Launch, running, free_port\n"
        f"port = free_port()\nlistener = {LISTENER!r}\n"
        "with running(Launch('s', [sys.executable, '-c', listener, str(port)], port), Path(sys.argv[1])) as server:\n"
        "    print(server.pid, flush=True)\n    input()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bench:
        assert bench.stdout is not None
        pid = int(bench.stdout.readline())
        ended = os.pidfd_open(pid)
        bench.kill()
        assert bench.wait() == -signal.SIGKILL
        assert select.select([ended], [], [], 5)[0], "the server outlived the bench"
        os.close(ended)


def test_router_settings_do_not_leak_into_contenders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contenders run with their defaults, whatever WARMLINE_* says here."""
    monkeypatch.setenv("WARMLINE_PORT", "1")
    assert "WARMLINE_PORT" not in clean_environment()


async def test_fake_engines_come_up_on_ports_of_their_own(tmp_path: Path) -> None:
    """The engines run in another process and answer chats."""
    with fake_engines(2, tmp_path) as engines:
        assert len(set(engines.ports)) == 2 and engines.pid != os.getpid()
        for port in engines.ports:
            request = b"POST /v1/completions HTTP/1.1\r\nHost: e\r\nContent-Length: 2\r\n\r\n{}"
            assert (await run_load(HOST, port, [request], concurrency=1)).statuses == {200: 1}
    assert not is_alive(engines.pid)
