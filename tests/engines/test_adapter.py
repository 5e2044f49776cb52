"""engines.adapter: reading numbers that an engine may or may not have told."""

import math
from typing import Any

import pytest

from engines.adapter import mapping, printable, ratio, rows, sum_known, whole


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (0, 0),
        (3, 3),
        (2.0, 2),
        (-1, None),
        (math.nan, None),
        (math.inf, None),
        (2.0**60, None),
        ("3", None),
        (True, None),
        (None, None),
    ],
)
def test_whole(value: Any, count: int | None) -> None:
    """A count is a number from 0 on; everything else is unknown, not 0."""
    assert whole(value) == count


@pytest.mark.parametrize(
    ("value", "share"),
    [(0.5, 0.5), (1, 1.0), (1.01, 1.0), (-0.1, 0.0), (math.nan, None), ("0.5", None), (False, None), (None, None)],
)
def test_ratio(value: Any, share: float | None) -> None:
    """A share is clamped to 0..1; what is not a finite number is unknown."""
    assert ratio(value) == share


def test_sum_of_parts() -> None:
    """A sum with an unknown part is unknown, and so is the sum of nothing."""
    assert sum_known([1, 2]) == 3
    assert sum_known([1, None]) is None
    assert sum_known([]) is None


def test_wrong_json_types_read_as_nothing() -> None:
    """An object or list of the wrong type is an empty one, so that a reader needs no checks of its own."""
    assert mapping([1]) == {} and mapping({"a": 1}) == {"a": 1}
    assert rows({"a": 1}) == [] and rows([{"a": 1}, 2, None, "x"]) == [{"a": 1}]


def test_engine_words_fit_one_log_line() -> None:
    """Control characters go, and so does the end of a long text."""
    assert printable("Loading\nmodel\x1b[31m") == "Loading model [31m"
    assert len(printable("x" * 1000)) == 200
