"""loadtest.demo.figures: sums and percentiles of a run."""

import pytest

from loadtest.demo.conversations import Step
from loadtest.demo.driver import Exchange
from loadtest.demo.figures import add_up, as_json, percentile


def exchange(conversation: str, turn: int, *, prompt: int, cached: int, ttft_s: float) -> Exchange:
    return Exchange(Step(conversation, turn), f"{conversation}.{turn}", prompt, cached, 10, ttft_s, ttft_s + 1, "text")


EXCHANGES = [
    exchange("shop-1", 0, prompt=100, cached=0, ttft_s=1.0),
    exchange("shop-1", 1, prompt=200, cached=100, ttft_s=0.2),
    exchange("chef-1", 0, prompt=100, cached=0, ttft_s=0.6),
]


def test_sums() -> None:
    """The share is tokens over tokens, not the mean of shares; speed is over the whole run."""
    figures = add_up("warm", EXCHANGES, {}, wall_s=5.0)
    assert (figures.requests, figures.prompt_tokens, figures.cached_tokens, figures.computed_tokens) == (3, 400, 100, 300)
    assert figures.cached_share == 0.25
    assert figures.tokens_per_s == 6.0
    assert figures.ttft_p50_s == 0.6


def test_routes_follow_the_turns() -> None:
    """One letter per turn in the order of the turns, whatever the order of the answers; unknown ones show."""
    letters = {"shop-1.0": "A", "shop-1.1": "B"}
    figures = add_up("warm", list(reversed(EXCHANGES)), letters, wall_s=1.0)
    assert figures.routes == {"chef-1": ["?"], "shop-1": ["A", "B"]}
    assert figures.last_request_id == "shop-1.0"


def test_nothing_answered() -> None:
    """An empty run divides by nothing."""
    figures = add_up("warm", [], {}, wall_s=0.0)
    assert (figures.cached_share, figures.tokens_per_s, figures.ttft_p90_s, figures.last_request_id) == (0.0, 0.0, 0.0, "")


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([3.0], 90, 3.0), ([1.0, 2.0], 50, 1.5), ([4.0, 1.0, 3.0, 2.0], 0, 1.0), ([1.0, 2.0, 3.0], 100, 3.0), ([], 50, 0.0)],
)
def test_percentile(values: list[float], percent: float, expected: float) -> None:
    """Linear between the nearest ranks, in any order of the values."""
    assert percentile(values, percent) == expected


def test_json_has_every_number_of_the_tables() -> None:
    """The written file can rebuild both tables."""
    written = as_json(add_up("warm", EXCHANGES, {"shop-1.0": "A"}, wall_s=5.0))
    assert written["cached_share"] == 0.25 and written["ttft_p50_s"] == 0.6 and written["tokens_per_s"] == 6.0
    assert written["routes"] == {"chef-1": ["?"], "shop-1": ["A", "?"]}
