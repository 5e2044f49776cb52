"""Rows in a process of their own."""

import json

import pytest

from loadtest.bench import inprocess
from loadtest.bench.inprocess import RowFailed, from_json, main, measure_apart
from loadtest.bench.results import Figure


def test_figures_come_back_as_they_were(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed line holds everything of a figure."""
    figure = Figure("index", "what", "", "ms", 1.5, (1.0, 2.0), {"blocks": 3})
    monkeypatch.setitem(inprocess.ROWS, "index", lambda tokenizer, quick: [figure])
    assert main(["index", "--quick"]) == 0
    (fields,) = json.loads(capsys.readouterr().out)
    assert from_json(fields) == figure


def test_a_row_that_fails_tells_why() -> None:
    """The error of the other process is in the message."""
    with pytest.raises(RowFailed, match="invalid choice"):
        measure_apart("nonsense", None, quick=True)


def test_a_row_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench as a whole has an end."""
    monkeypatch.setattr(inprocess, "DEADLINE_S", 0.01)
    with pytest.raises(RowFailed, match="took more than"):
        measure_apart("index", None, quick=True)
