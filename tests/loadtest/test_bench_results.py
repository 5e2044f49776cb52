"""Figures, checks and the kept file."""

import json
from pathlib import Path

import pytest

from loadtest.bench.results import Check, Figure, Results, keep, median_figure, paired_ratio


@pytest.mark.parametrize(
    ("value", "limit", "at_least", "passed"),
    [
        (1.0, 2.0, False, True),
        (2.0, 2.0, False, True),
        (2.1, 2.0, False, False),
        (5.0, 4.0, True, True),
        (3.0, 4.0, True, False),
    ],
)
def test_a_budget_is_met_at_its_limit(value: float, limit: float, at_least: bool, passed: bool) -> None:
    """Upper bounds by default, lower ones on request; the limit itself is met."""
    assert Check("row", "what", value, limit, "×", at_least).passed is passed


def test_the_value_is_the_median_of_the_rounds() -> None:
    """One slow round does not move a figure."""
    assert median_figure("r", "w", "c", "µs", [1.0, 100.0, 2.0]).value == 2.0


def test_ratios_are_paired_by_round() -> None:
    """A round in which the whole machine was slow cancels out; without rounds the values are divided."""
    ours, theirs = median_figure("r", "w", "a", "µs", [2.0, 20.0, 6.0]), median_figure("r", "w", "b", "µs", [1.0, 10.0, 2.0])
    assert paired_ratio(ours, theirs) == 2.0
    assert paired_ratio(Figure("r", "w", "a", "µs", 9.0), Figure("r", "w", "b", "µs", 3.0)) == 3.0


def test_figures_are_found_by_row_quantity_and_contender() -> None:
    """All three name a figure; contenders come in the order they were measured."""
    results = Results([Figure("r", "w", "b", "µs", 1.0), Figure("r", "w", "a", "µs", 2.0), Figure("s", "w", "c", "µs", 3.0)])
    found = results.find("r", "w", "a")
    assert found is not None and found.value == 2.0
    assert results.find("s", "w", "a") is None
    assert results.contenders("r") == ["b", "a"]


@pytest.mark.parametrize(("dirty", "name"), [(False, "bench-0123456789ab.json"), (True, "bench-0123456789ab-dirty.json")])
def test_the_kept_file_is_named_after_the_commit(tmp_path: Path, dirty: bool, name: str) -> None:
    """Rounds and verdicts are kept raw; uncommitted changes show in the name."""
    results = Results([median_figure("r", "w", "c", "µs", [1.0, 3.0, 2.0], rate=5.0)], [Check("r", "w", 1, 2, "×")])
    path = keep(results, {"commit": "0123456789abcdef", "dirty": dirty}, tmp_path / "deep" / "er")
    kept = json.loads(path.read_text())
    assert path.name == name
    assert kept["figures"][0]["rounds"] == [1.0, 3.0, 2.0] and kept["figures"][0]["detail"] == {"rate": 5.0}
    assert kept["checks"][0]["passed"] is True
