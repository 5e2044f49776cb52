"""Budgets over made-up figures."""

import pytest

from loadtest.bench.budgets import judge
from loadtest.bench.contenders import NGINX, WARMLINE, WARMLINE_TOKENS
from loadtest.bench.cpu_rows import CPU
from loadtest.bench.latency_rows import ADDED, UNSEEN_OTHERS, UNSEEN_SELF
from loadtest.bench.results import Figure, Results, median_figure


def cpu(row: str, name: str, value: float) -> Figure:
    return median_figure(row, CPU, name, "µs", [value] * 3)


@pytest.mark.parametrize(
    ("row", "ours", "verdicts"),
    [
        ("chat2k", 54.0, {"nginx": True, "smg": True}),
        ("chat2k", 60.0, {"nginx": True, "smg": True}),
        ("chat2k", 61.0, {"nginx": False, "smg": False}),
        ("chat100k", 49.0, {"nginx": True, "smg": True}),
        ("chat100k", 121.0, {"nginx": False, "smg": False}),
        ("stream64", 27.0, {"nginx": False}),
    ],
)
def test_cpu_budgets_are_ratios_of_the_same_run(row: str, ours: float, verdicts: dict[str, bool]) -> None:
    """3× / 2.5× / 1.3× nginx, half of every LLM router on 2 KB, below it on 100 KB, none for streams."""
    results = Results([cpu(row, WARMLINE, ours), cpu(row, NGINX, 20.0), cpu(row, "smg", 120.0)])
    judge(results)
    assert {check.what.rpartition(" ")[2]: check.passed for check in results.checks} == verdicts


def test_what_was_not_measured_is_not_judged() -> None:
    """No router, no verdict; no peer, no ratio to it."""
    results = Results([cpu("chat2k", NGINX, 20.0)])
    judge(results)
    assert results.checks == []


def test_latency_budgets() -> None:
    """Added first byte 0.3 and 1 ms; a long prompt 3 ms on itself and 5 ms on others, for both kinds of keys."""
    figures = [Figure("first-byte", f"{ADDED} {label}", WARMLINE, "ms", 0.5) for label in ("p50", "p99")]
    for name in (WARMLINE, WARMLINE_TOKENS):
        figures += [Figure("unseen", UNSEEN_SELF, name, "ms", 3.0), Figure("unseen", UNSEEN_OTHERS, name, "ms", 5.1)]
    results = Results(figures)
    judge(results)
    assert [check.passed for check in results.checks] == [False, True, True, True, False, False]
