"""The event stream of a busy engine is one that a sidecar follows, and its cache stays within its size."""

import random
from typing import Any

import msgpack
import pytest

from engines.sidecar.kv.mirror import CacheMirror
from loadtest.pool.event_engine import BLOCK_TOKENS, DECODED, BusyEngine
from router.core.cache_delta import CacheDelta
from router.core.types import WorkerId
from router.settings import EventSettings


@pytest.mark.parametrize("capacity", [1000, 1 << 30], ids=["full", "filling"])
def test_a_sidecar_follows_it(capacity: int) -> None:
    """Every block has a key, none is unknown, and so many are stored in each step as was asked for."""
    told: list[CacheDelta] = []
    mirror = CacheMirror(WorkerId("a"), 0, EventSettings(), told.append, lambda: None, lambda: None)
    mirror.begin("m")
    mirror.rename("g")
    mirror.fresh()
    engine = BusyEngine(40, capacity, random.Random(1))
    steps: list[list[dict[str, Any]]] = [engine.step() for _ in range(60)]
    for events in steps:
        assert sum(len(event["block_hashes"]) for event in events if event["type"] == "BlockStored") == 40
        mirror.batch(msgpack.packb([1.0, events, 0]))
        mirror.flush()
    counts = mirror.counts()
    assert (mirror.doubt, mirror.malformed, counts["kv_unknown_keys"], counts["kv_lost_blocks"]) == ("", 0, 0.0, 0.0)
    assert counts["kv_blocks"] == counts["kv_keys"] == (60 * 40 if capacity > 2400 else max(capacity, counts["kv_blocks"]))
    assert len([event for event in steps[-1] if event["type"] == "BlockStored"]) == 1 + DECODED
    assert len(steps[-1][-1]["token_ids"]) == BLOCK_TOKENS
