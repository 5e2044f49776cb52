"""Latency rows, with fake engines posing as proxies."""

import pytest

from loadtest.bench.latency_rows import (
    ADDED,
    BATCH,
    DIRECT,
    FIRST_BYTE,
    UNSEEN_OTHERS,
    UNSEEN_SELF,
    first_byte_row,
    group_percentiles,
    percentile_figures,
    read_arrivals,
    unseen_row,
)
from loadtest.bench.results import Results
from tests.loadtest.bench_rig import engine


async def test_first_byte_is_told_whole_and_added() -> None:
    """Direct adds nothing to itself; a contender that is gone is left out with the reason."""
    results, steps = Results(), list[str]()
    async with engine(2) as (direct, proxy):
        await first_byte_row({DIRECT: direct, "proxy": proxy, "gone": 1}, 2, results, steps.append)
    assert results.contenders("first-byte") == [DIRECT, "proxy"]
    added, whole = (results.find("first-byte", f"{what} p50", DIRECT) for what in (ADDED, FIRST_BYTE))
    assert added is not None and added.value == 0.0
    assert whole is not None and whole.value > 0.0
    assert "cannot reach" in results.absent["first-byte/gone"]
    assert len(steps) == 5  # two batches of two contenders, one of the one that is gone


def test_one_burst_of_noise_spoils_one_group_only() -> None:
    """Percentiles are taken over neighbouring batches; the figure is the median over the groups."""
    quiet, burst = [1.0] * 10, [1.0] * 5 + [90.0] * 5
    percentiles = group_percentiles([quiet, quiet, burst, *[quiet] * 7], 0.99)
    assert percentiles == [1.0, 90.0, 1.0, 1.0, 1.0]
    whole, added = percentile_figures("proxy", "p99", percentiles, [0.5] * 5)
    assert (whole.value, added.value, max(added.rounds)) == (1.0, 0.5, 89.5)
    assert group_percentiles([quiet], 0.5) == [1.0]


async def test_arrivals_come_from_every_engine() -> None:
    """Requests that went to different engines are all seen, with their sizes."""
    results = Results()
    async with engine(2) as ports:
        await first_byte_row({DIRECT: ports[0], "proxy": ports[1]}, 1, results, lambda _: None)
        arrivals = await read_arrivals(ports)
        assert await read_arrivals(ports) == []
    assert len(arrivals) == 2 * BATCH
    assert all(first <= last and size > 1000 for first, last, size in arrivals)


async def test_a_long_prompt_is_timed_on_its_way_and_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Own delay and the slowest small request beside it are kept per prompt."""
    monkeypatch.setattr("loadtest.bench.latency_rows.WATCH_S", 0.02)
    results = Results()
    async with engine(2) as (direct, proxy):
        await unseen_row({DIRECT: direct, "proxy": proxy}, [direct, proxy], 1, results, lambda _: None)
    for name in (DIRECT, "proxy"):
        own, others = results.find("unseen", UNSEEN_SELF, name), results.find("unseen", UNSEEN_OTHERS, name)
        assert own is not None and len(own.rounds) == 1
        assert others is not None and others.rounds == (others.value,)
