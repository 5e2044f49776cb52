"""CPU time and sockets of other processes."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtest.bench.accounting import ProcessGone, cpu_seconds, listens, process_tree, resident_bytes

SPIN = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\ninput()"


def test_cpu_time_is_that_of_proc_stat() -> None:
    """The CPU clock agrees with utime + stime of /proc/PID/stat within its steps."""
    with subprocess.Popen([sys.executable, "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        from_stat_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        measured_s = cpu_seconds(process.pid)
        process.stdin.close()
    assert measured_s == pytest.approx(from_stat_s, abs=0.03)
    assert measured_s >= 0.2


def test_children_count_with_their_parent() -> None:
    """A proxy that works in child processes is charged for them."""
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        tree = process_tree(process.pid)
        used_s = cpu_seconds(process.pid)
        process.stdin.close()
    assert len(tree) == 2 and tree[0] == process.pid
    assert used_s >= 0.2


def test_a_process_that_ended_is_an_error() -> None:
    """Measuring a proxy that died is a failure, not zero CPU."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(ProcessGone):
        cpu_seconds(process.pid)


def test_own_cpu_time_moves_with_work() -> None:
    """Work done between two readings is in their difference."""
    before_s, start_s = cpu_seconds(os.getpid()), time.process_time()
    while time.process_time() < start_s + 0.02:
        pass
    assert cpu_seconds(os.getpid()) - before_s >= 0.02


def test_resident_memory_is_in_bytes() -> None:
    """A Python process holds more than a megabyte and less than this machine."""
    assert 1 << 20 < resident_bytes(os.getpid()) < 1 << 36


def test_only_the_holder_of_a_port_listens() -> None:
    """A port counts as a process's own only when that process tree holds the listening socket."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert not listens(os.getpid(), port)
        held.listen()
        assert listens(os.getpid(), port)
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            assert not listens(other.pid, port)
            assert other.stdin is not None
            other.stdin.close()
