"""The whole bench, small, with whatever contender is at hand."""

import json
import shutil
from pathlib import Path

import pytest

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
