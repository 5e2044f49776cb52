"""Deltas and snapshots on the wire, whole and in pieces."""

import contextlib
import random
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.cache_delta import CacheDelta, CacheSnapshot, Cleared, Removed, Stored, Tier
from router.core.types import WorkerId
from router.state import cache_codec
from router.state.cache_codec import (
    CHANGE,
    MAX_DELTA_BYTES,
    PIECE_BYTES,
    Piece,
    count_blocks,
    cut,
    decode_delta,
    decode_piece,
    decode_snapshot,
    encode_delta,
    encode_snapshot,
)
from router.state.frame import DELTA, PIECE, SNAPSHOT, BadMessage, seal
from tests.state.hostile import assert_refuses_damage, assert_survives_forgery
from tests.state.strategies import SEQ, deltas, snapshots

WORKER = WorkerId("a:1")
ONE_TWO, THREE = array("Q", [1, 2]), array("Q", [3])
SAMPLE = CacheDelta(WORKER, "g", 3, (Stored(None, ONE_TWO), Stored(2, THREE, Tier.HOST), Removed(THREE), Cleared()))
MAX_BLOCKS = 1024


@given(deltas())
def test_deltas_come_back(delta: CacheDelta) -> None:
    """Changes of every kind, in their order."""
    assert decode_delta(encode_delta(delta)) == delta


@given(snapshots())
def test_snapshots_come_back(snapshot: CacheSnapshot) -> None:
    """Runs in their order, parents and tiers kept."""
    assert decode_snapshot(encode_snapshot(snapshot), MAX_BLOCKS) == snapshot


def test_damage_is_refused() -> None:
    """Cut at every length, every bit flipped."""
    assert_refuses_damage(decode_delta, encode_delta(SAMPLE))
    snapshot = CacheSnapshot(WORKER, "g", 3, (Stored(None, array("Q", [1, 2])),))
    assert_refuses_damage(lambda data: decode_snapshot(data, MAX_BLOCKS), encode_snapshot(snapshot))
    assert_refuses_damage(lambda data: decode_piece(data, MAX_BLOCKS), cut(b"content", 1, 2)[0])


@settings(max_examples=20)
@given(deltas(), snapshots(), st.integers(0, 2**32))
def test_forgery_is_a_value_or_refused(delta: CacheDelta, snapshot: CacheSnapshot, seed: int) -> None:
    """Hostile content under a right checksum raises nothing else."""
    assert_survives_forgery(decode_delta, DELTA, encode_delta(delta), random.Random(seed))
    assert_survives_forgery(
        lambda data: decode_snapshot(data, MAX_BLOCKS), SNAPSHOT, encode_snapshot(snapshot), random.Random(seed)
    )
    assert_survives_forgery(lambda data: decode_piece(data, MAX_BLOCKS), PIECE, cut(b"content", 1, 2)[0], random.Random(seed))


@given(st.binary(max_size=100))
def test_random_bodies_raise_nothing_else(body: bytes) -> None:
    """No body is read beyond its end."""
    for decode, kind in ((decode_delta, DELTA), (lambda data: decode_snapshot(data, MAX_BLOCKS), SNAPSHOT)):
        with contextlib.suppress(BadMessage):
            decode(seal(kind, body))


def forged(*changes: tuple[int, int, int, int], keys: int) -> bytes:
    head = cache_codec.HEAD.pack(1, len(changes), keys) + array("I", [1, 1]).tobytes() + b"ag"
    return head + b"".join(CHANGE.pack(*change) for change in changes) + bytes(8 * keys)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (forged((9, 0, 1, 0), keys=1), "no change is 9"),
        (forged((0, 3, 1, 0), keys=1), "in tier 3"),
        (forged((0, 0, 2, 0), keys=1), "do not add up"),
        (forged((0, 0, 1, 0), keys=2), "do not add up"),
        (forged((0, 0, 1, 0), keys=1)[:-20], "cut off|add up|no change"),
    ],
)
def test_tables_that_make_no_sense_are_refused(body: bytes, problem: str) -> None:
    """Unknown changes and tiers, and counts that differ from the keys that are there."""
    with pytest.raises(BadMessage, match=problem):
        decode_delta(seal(DELTA, body))


def test_a_snapshot_stores_only() -> None:
    """Removals in a snapshot are refused, and so is one of more blocks than allowed."""
    with pytest.raises(BadMessage, match="removes blocks"):
        decode_snapshot(seal(SNAPSHOT, forged((2, 0, 1, 0), keys=1)), MAX_BLOCKS)
    large = encode_snapshot(CacheSnapshot(WORKER, "g", 1, (Stored(None, array("Q", range(5000))),)))
    with pytest.raises(BadMessage, match="are more than"):
        decode_snapshot(large, 1024)
    assert decode_snapshot(large, 5000).runs[0].keys == array("Q", range(5000))


def test_a_snapshot_of_runs_of_one_block_fits() -> None:
    """The bound in blocks allows for the most scattered cache."""
    runs = tuple(Stored(key, array("Q", [key])) for key in range(1024))
    snapshot = CacheSnapshot(WorkerId("w" * 1000), "g" * 1000, 1, runs)
    assert decode_snapshot(encode_snapshot(snapshot), 1024) == snapshot


def test_too_large_a_delta_is_refused_by_the_sender() -> None:
    """What no reader would take is never written."""
    with pytest.raises(BadMessage, match="larger than"):
        encode_delta(CacheDelta(WORKER, "g", 1, (Removed(array("Q", bytes(MAX_DELTA_BYTES))),)))


def test_blocks_are_counted() -> None:
    """Stored and removed ones; a cleared cache does not say how many."""
    assert count_blocks(SAMPLE.changes) == 4


@given(SEQ, SEQ)
def test_a_small_snapshot_is_one_piece(epoch: int, seq: int) -> None:
    """Also the empty one."""
    for data in (b"", b"content"):
        (piece,) = cut(data, epoch, seq)
        assert decode_piece(piece, MAX_BLOCKS) == Piece(epoch, seq, 0, 1, data)


def test_large_snapshots_are_cut_and_joined() -> None:
    """Pieces are numbered, and together they are the whole."""
    data = random.Random(1).randbytes(2 * PIECE_BYTES + 5)
    pieces = [decode_piece(piece, 2**20) for piece in cut(data, 1, 2)]
    assert [(piece.index, piece.total, len(piece.data)) for piece in pieces] == [
        (0, 3, PIECE_BYTES),
        (1, 3, PIECE_BYTES),
        (2, 3, 5),
    ]
    assert b"".join(piece.data for piece in pieces) == data


def test_pieces_of_too_large_snapshots_are_refused() -> None:
    """A hostile count of pieces makes no reader fetch without end."""
    with pytest.raises(BadMessage, match="piece 0 of 3"):
        decode_piece(cut(bytes(2 * PIECE_BYTES + 5), 1, 2)[0], 1024)
    with pytest.raises(BadMessage, match="piece 1 of 1"):
        decode_piece(seal(PIECE, cache_codec.PIECE_HEAD.pack(1, 2, 1, 1)), 1024)
