"""Fetching a snapshot: one piece or many, replaced while it is read, damaged, or not there."""

import random
from array import array
from typing import Any

import pytest

from router.core.cache_delta import CacheSnapshot, Stored
from router.core.types import WorkerId
from router.state.batch import Batch
from router.state.cache_codec import PIECE_BYTES, cut, encode_snapshot
from router.state.feed import Feed
from router.state.redis_keys import Keys, lane_of
from router.state.snapshot_load import PIECES_AT_ONCE, SnapshotLoad

A = WorkerId("a")
MAX_BLOCKS = 2**20


def snapshot(blocks: int, seq: int = 3) -> CacheSnapshot:
    return CacheSnapshot(A, "g", seq, (Stored(None, array("Q", random.Random(blocks).randbytes(8 * blocks))),))


def pieces(blocks: int, epoch: int = 1, seq: int = 3) -> list[bytes]:
    return cut(encode_snapshot(snapshot(blocks, seq)), epoch, seq)


def load(*lists: Any) -> SnapshotLoad:
    """Fetched from a list that is another one at each exchange; the last one stays."""
    fetched = SnapshotLoad(Feed(A, Keys("p").of(A), 0.0), MAX_BLOCKS)
    for exchange in range(100):
        if fetched.is_done:
            return fetched
        batch = Batch()
        fetched.plan(batch)
        ((name, _key, first, last),) = batch.plan[lane_of(A)]
        assert name == "LRANGE" and isinstance(first, int) and isinstance(last, int) and last - first < PIECES_AT_ONCE
        found = lists[min(exchange, len(lists) - 1)]
        batch.deliver({lane_of(A): [found[first : last + 1] if isinstance(found, list) else found]})
    raise AssertionError("it never ends")


@pytest.mark.parametrize("blocks", [0, 1, 1000, PIECE_BYTES // 8, PIECE_BYTES])
def test_a_snapshot_is_put_together(blocks: int) -> None:
    """From one piece, or from as many as there are."""
    fetched = load(pieces(blocks, epoch=9))
    assert fetched.snapshot == snapshot(blocks) and fetched.error is None and fetched.epoch == 9


@pytest.mark.parametrize("found", [[], None, OSError(), b"text"])
def test_where_there_is_none_nothing_is_found(found: Any) -> None:
    """No list, no answer, or something else under the key."""
    fetched = load(found)
    assert fetched.snapshot is None and fetched.error is None


def test_one_that_is_replaced_meanwhile_is_not_mixed() -> None:
    """Pieces of two snapshots never become one, whether the later one is longer or shorter."""
    large = PIECE_BYTES  # blocks: eight pieces and a bit
    for later in (pieces(large, seq=4), pieces(large, epoch=2), pieces(1, seq=4), []):
        fetched = load(pieces(large), later)
        assert fetched.snapshot is None and fetched.error is None


def test_damage_is_told() -> None:
    """Bytes that are no piece, pieces in the wrong order, and pieces that are no snapshot together."""
    several = pieces(PIECE_BYTES)
    foreign = cut(b"x" * PIECE_BYTES * 2, 1, 3)
    misnumbered = cut(encode_snapshot(snapshot(3, seq=3)), 1, 4)
    for damaged in ([b"nonsense"], [several[0], several[2], several[1]], foreign, misnumbered):
        fetched = load(damaged)
        assert fetched.snapshot is None and fetched.error is not None
