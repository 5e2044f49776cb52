"""Event rows on small sizes."""

from loadtest.bench.event_rows import deep_lookup, filled


def test_events_of_multi_turn_traffic_are_followed() -> None:
    """Every delta is in order and behind a parent that is held; forgetting and sweeping leave the others' blocks."""
    told, lookup_us = filled(20, 20_000, 20)
    assert 20_000 <= told.index.blocks <= told.blocks
    assert all(told.feed.in_sync(worker.id) for worker in told.workers)
    assert told.index.orphan_blocks == told.feed.stale == 0
    assert lookup_us > 0 and told.used_s > 0
    held = [told.index.blocks_of(slot) for slot in range(20)]
    assert sum(held) == told.blocks
    told.forget_some()
    assert told.index.blocks_of(0) == told.index.blocks_of(10) == 0
    assert [told.index.blocks_of(slot) for slot in range(1, 10)] == held[1:10]
    assert told.longest_ms > 0


def test_a_lookup_sees_every_depth() -> None:
    """The timed lookup finds all 32 levels; it is checked while it is timed."""
    assert deep_lookup(3).value > 0
