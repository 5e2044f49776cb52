"""engines.process: one child process, from start to certain end."""

import os
import select
import sys
from pathlib import Path

import pytest

from engines.process import ChildProcess

STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
while True:
    signal.pause()
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_reads_the_report_and_keeps_the_log(tmp_path: Path) -> None:
    """The first line of standard output is the report; standard error is the log."""
    code = "import sys; print('log line', file=sys.stderr, flush=True); print('ready é'); print('more')"
    with ChildProcess(python(code), tmp_path / "log", reports=True) as child:
        assert child.read_report(20) == "ready é"
        assert child.wait(20) == 0
        assert child.log_tail() == "log line"


def test_report_of_a_child_that_ends(tmp_path: Path) -> None:
    """A child that ends without a line gives no report, at once and not at the deadline."""
    with ChildProcess(python("raise SystemExit(3)"), tmp_path / "log", reports=True) as child:
        assert child.read_report(60) is None
        assert child.wait(20) == 3
        assert child.exit_code == 3


def test_report_that_comes_too_late(tmp_path: Path) -> None:
    """The deadline holds even when half a line has come."""
    code = "import sys, signal; sys.stdout.write('half'); sys.stdout.flush(); signal.pause()"
    with ChildProcess(python(code), tmp_path / "log", reports=True) as child:
        assert child.read_report(0.2) is None
        assert child.is_running


def test_endless_line_is_no_report(tmp_path: Path) -> None:
    """A child that floods standard output without a line end is not read for ever."""
    code = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    with ChildProcess(python(code), tmp_path / "log", reports=True) as child:
        assert child.read_report(20) is None


def test_stop_ends_a_child_that_ignores_the_gentle_signal(tmp_path: Path) -> None:
    """SIGTERM first, SIGKILL after the deadline; afterwards the process is gone."""
    child = ChildProcess(python(STUBBORN), tmp_path / "log", reports=True)
    assert child.read_report(20) == "deaf"
    child.stop(deadline_s=0.1)
    assert child.exit_code == -9
    assert not Path(f"/proc/{child.pid}").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="watches a process by its descriptor")
def test_stop_takes_grandchildren_along(tmp_path: Path) -> None:
    """What the child started ends with it: the whole group gets the signal."""
    code = "import subprocess, signal; print(subprocess.Popen(['sleep', '60']).pid, flush=True); signal.pause()"
    child = ChildProcess(python(code), tmp_path / "log", reports=True)
    grandchild = os.pidfd_open(int(child.read_report(20) or 0))
    try:
        child.stop()
        assert select.select([grandchild], [], [], 10)[0], "the grandchild outlived the group"
    finally:
        os.close(grandchild)


def test_stop_twice_is_harmless(tmp_path: Path) -> None:
    """Stopping, killing or interrupting a child that is gone does nothing: its process id may belong to others by then."""
    child = ChildProcess(python("pass"), tmp_path / "log")
    child.wait(20)
    for end in (child.stop, child.kill, child.interrupt, child.stop):
        end()
    assert child.exit_code == 0


def test_wait_says_when_time_is_up(tmp_path: Path) -> None:
    """A child that still runs at the deadline raises TimeoutError and goes on running."""
    with ChildProcess(python("import signal; signal.pause()"), tmp_path / "log") as child:
        with pytest.raises(TimeoutError, match=r"still runs after 0\.1 s"):
            child.wait(0.1)
        assert child.is_running
    assert child.exit_code == -15


def test_interrupt_is_ctrl_c(tmp_path: Path) -> None:
    """`interrupt` raises KeyboardInterrupt in a Python child."""
    lines = ("import signal", "try:", "    print('up', flush=True)", "    signal.pause()")
    code = "\n".join((*lines, "except KeyboardInterrupt:", "    raise SystemExit(42)"))
    with ChildProcess(python(code), tmp_path / "log", reports=True) as child:
        assert child.read_report(20) == "up"
        child.interrupt()
        assert child.wait(20) == 42


def test_output_without_reports_goes_to_the_log(tmp_path: Path) -> None:
    """A child that does not report writes both outputs to one log, appended to what is there."""
    log = tmp_path / "log"
    log.write_text("before\n")
    with ChildProcess(python("print('out')"), log) as child:
        child.wait(20)
    assert child.log_tail() == "before\nout"
    assert child.log_tail(lines=1) == "out"


def test_environment_is_passed(tmp_path: Path) -> None:
    """A given environment replaces the parent's."""
    env = dict(os.environ, WARMLINE_TEST_WORD="seen")
    code = "import os; print(os.environ['WARMLINE_TEST_WORD'])"
    with ChildProcess(python(code), tmp_path / "log", reports=True, env=env) as child:
        assert child.read_report(20) == "seen"
