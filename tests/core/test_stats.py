"""Counters and histograms of the data plane."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.stats import DECISION_BUCKETS_S, LATENCY_BUCKETS_S, Histogram, Stats


@pytest.mark.parametrize("bounds", [LATENCY_BUCKETS_S, DECISION_BUCKETS_S])
def test_bounds_ascend(bounds: tuple[float, ...]) -> None:
    """bisect finds the bucket only in ascending bounds."""
    assert list(bounds) == sorted(set(bounds))


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        (0.0, [1, 1, 1]),
        (1.0, [1, 1, 1]),  # a bound belongs to its own bucket: Prometheus' `le`
        (1.5, [0, 1, 1]),
        (2.0, [0, 1, 1]),
        (2.1, [0, 0, 1]),
    ],
)
def test_buckets_are_at_most(value: float, rows: list[int]) -> None:
    """A bucket counts observations at most as large as its bound, the last one all of them."""
    histogram = Histogram((1.0, 2.0))
    histogram.observe(value)
    assert histogram.cumulative() == list(zip((1.0, 2.0, math.inf), rows, strict=True))
    assert histogram.sum == value


@given(st.lists(st.floats(0, 1000)))
def test_cumulative_counts_only_rise(values: list[float]) -> None:
    """Whatever is observed, buckets ascend to the number of observations and the sum is theirs."""
    histogram = Histogram(LATENCY_BUCKETS_S)
    for value in values:
        histogram.observe(value)
    counts = [count for _, count in histogram.cumulative()]
    assert counts == sorted(counts)
    assert counts[-1] == len(values)
    assert histogram.sum == pytest.approx(sum(values))


def test_reading_changes_nothing() -> None:
    """Two scrapes without traffic between read the same."""
    histogram = Histogram((1.0,))
    histogram.observe(0.5)
    assert histogram.cumulative() == histogram.cumulative()


def test_ttft_histogram_is_made_once_per_worker() -> None:
    """The same worker keeps its histogram; another has its own."""
    stats = Stats()
    stats.ttft_of("a").observe(0.1)
    assert stats.ttft_of("a") is stats.ttft_of("a")
    assert stats.ttft_of("b").cumulative()[-1][1] == 0
    assert stats.ttft_of("a").cumulative()[-1][1] == 1


def test_forgotten_worker_leaves_no_series() -> None:
    """Removing a worker removes every series with its name, and none of another's."""
    stats = Stats()
    for worker in ("a", "b"):
        stats.ttft_of(worker).observe(1)
        stats.requests[("/v1/completions", worker, 200)] += 1
        stats.upstream_failures[(worker, "upstream_refused")] += 1
        stats.upstream_connections[worker] += 1
        stats.upstream_reused[worker] += 1
    stats.requests[("/v1/completions", "", 503)] += 1
    stats.forget_worker("a")
    stats.forget_worker("never seen")
    assert set(stats.ttft_s) == {"b"}
    assert set(stats.requests) == {("/v1/completions", "b", 200), ("/v1/completions", "", 503)}
    assert set(stats.upstream_failures) == {("b", "upstream_refused")}
    assert set(stats.upstream_connections) == set(stats.upstream_reused) == {"b"}
