"""The load of shared state on real routers, small: everything is taken in, and the figures are those of what ran."""

import pytest

from loadtest.pool import intake
from loadtest.pool.intake import lag_ms, measure, show, summed


async def test_a_small_load_is_taken_in_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes and a real Redis: each router ends with the blocks that the sidecars hold, no request fails."""
    monkeypatch.setattr(intake, "SETTLE_S", 0.5)
    found = await measure(12, 100, 0.5)
    assert found["failures"] == [{}, {}, {}], show(found)
    assert [turn["events"] for turn in found["turns"]] == [False, True, False, True]
    for turn in found["turns"]:
        assert all((blocks > 0) is turn["events"] for blocks in turn["blocks_per_s"])
        assert (
            turn["requests"]["requests"] > 0
            and turn["bystander"]["requests"] > 0
            and len(turn["lag_ms"]) == (2 if turn["events"] else 0)
        )
        assert turn["cpu_shares"].keys() == {"router_0", "router_1", "bystander", "sidecars", "redis", "engine"}
    for router in found["routers"]:
        assert router["event_blocks"] == found["held_by_sidecars"] > 0
        assert (router["exact_workers"], router["gaps"], router["feed_gaps"], router["refused_blocks"]) == (12, 0, 0, 0)


def test_lag() -> None:
    """The age of the oldest step that is not all taken in; none while all is."""
    told = [(1_000_000, 10), (2_000_000, 20), (3_000_000, 30)]
    assert lag_ms(told, 4_000_000, 15) == lag_ms(told, 4_000_000, 20) == 2.0
    assert lag_ms(told, 3_000_000, 30) == 0.0


def test_intake_is_a_difference() -> None:
    """The mean of the turns with events less that of those without."""
    turns = [
        {"events": number % 2 == 1, "cpu_shares": {"router_0": share}} for number, share in enumerate((0.1, 0.4, 0.2, 0.5))
    ]
    counts = {"event_blocks": 4.0, "index_bytes": 100.0}
    ended = [{**counts, **dict.fromkeys(("exact_workers", "gaps", "feed_gaps", "snapshots", "refused_blocks"), 0.0)}]
    found = summed(turns, ended, 4)
    assert found["intake_cpu_shares"] == [0.3] and found["routers"][0]["bytes_per_block"] == 25.0
