"""engines.tether: a command that ends with its parent."""

import os
import select
import subprocess
import sys

import pytest

from engines import tether

PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "engines.tether", str(os.getpid()), "sleep", "60"])
print(child.pid, flush=True)
child.wait()
"""


def run_tether(*argv: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "engines.tether", *argv], capture_output=True, text=True, timeout=20)


def test_becomes_the_command() -> None:
    """The command runs with its arguments and its exit code is passed on."""
    done = run_tether(str(os.getpid()), sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(7)", "a b", "c")
    assert (done.returncode, done.stdout) == (7, "['a b', 'c']\n")


def test_unknown_command_is_named() -> None:
    """A command that does not exist exits non-zero and names it, without a traceback."""
    done = run_tether(str(os.getpid()), "no-such-command-here")
    assert done.returncode == 1
    assert done.stderr.strip() == "tether: no-such-command-here: No such file or directory"


@pytest.mark.parametrize("argv", [[], ["123"], ["not-a-pid", "true"]])
def test_wrong_arguments_show_usage(argv: list[str]) -> None:
    """Missing or non-numeric arguments exit with the usage line."""
    done = run_tether(*argv)
    assert done.returncode == 1 and done.stderr.startswith("usage: ")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel call exists on Linux only")
def test_ends_when_the_parent_is_killed() -> None:
    """SIGKILL of the parent ends the child within seconds."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    try:
        parent.kill()
        parent.wait()
        assert select.select([child], [], [], 10)[0], "the child outlived its parent"
    finally:
        parent.stdout.close()
        os.close(child)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel call exists on Linux only")
def test_dead_parent_is_noticed() -> None:
    """A parent that died before the kernel was asked leaves no child: the command never runs."""
    done = run_tether("1", "true")
    assert done.returncode == 1 and "gone already" in done.stderr


def test_other_systems_just_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the kernel call nothing is refused."""
    monkeypatch.setattr(sys, "platform", "darwin")
    tether.tie_to_parent(parent_pid=1)
