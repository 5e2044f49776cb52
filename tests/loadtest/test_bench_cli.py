"""The whole bench, small, with whatever contender is at hand."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtest.bench.accounting import process_tree
from loadtest.bench.cli import Plan, main, parse

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")


def test_a_quick_plan_is_smaller() -> None:
    """Fewer rounds, batches and prompts, hence fewer steps."""
    rows = ("chat2k", "first-byte", "unseen")
    quick, full = Plan(rows, ("nginx",), quick=True), Plan(rows, ("nginx",), quick=False)
    assert quick.steps(2) < full.steps(2)
    assert quick.rounds >= 3


@pytest.mark.parametrize("argv", [["--only", "nonsense"], ["--contender", "nobody"]])
def test_unknown_rows_and_contenders_are_refused(argv: list[str]) -> None:
    """A typo ends with usage, not with an empty table."""
    with pytest.raises(SystemExit):
        parse(argv)


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_one_row_against_nginx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Starts engines and nginx, measures, prints the table and keeps the file."""
    arguments = ["--quick", "--no-install", "--only", "repeat2k", "--contender", "nginx", "--out", str(tmp_path)]
    assert main(arguments) == 0
    (kept,) = tmp_path.glob("bench-*.json")
    figures = json.loads(kept.read_text())["figures"]
    assert [(figure["row"], figure["contender"]) for figure in figures] == [("repeat2k", "nginx")]
    assert len(figures[0]["rounds"]) == 3 and figures[0]["value"] > 0
    assert "÷ nginx" in capsys.readouterr().out


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM once servers run: status 130, no child and no temporary folder left."""
    command = [sys.executable, "-m", "loadtest.bench", "--no-install", "--only", "stream64", "--contender", "nginx"]
    command += ["--out", str(tmp_path / "out")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, preexec_fn=restore_interrupt) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith(b"starting"):
            assert process.poll() is None
        children = process_tree(process.pid)[1:]
        process.send_signal(number)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 130 and b"interrupted" in output
    assert children and gone(children, within_s=5.0)
    assert list(tmp_path.iterdir()) == []


def gone(processes: list[int], within_s: float) -> bool:
    """Whether all of them end; nginx's workers do a moment after their parent, which nobody can wait for."""
    ends_s = time.monotonic() + within_s
    while any(Path(f"/proc/{process}").exists() for process in processes):
        if time.monotonic() > ends_s:
            return False
        time.sleep(0.01)
    return True


def restore_interrupt() -> None:
    """Started in the background, as test runs may be, a process ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
