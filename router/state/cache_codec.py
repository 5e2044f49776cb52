"""Cache deltas and snapshots as bytes: a table of changes, then all their keys as one array.

Keys are never looked at one by one: 200 thousand of them pass a router every second.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from router.core.cache_delta import CacheChange, CacheDelta, CacheSnapshot, Cleared, Removed, Stored, Tier
from router.core.types import WorkerId
from router.state.frame import (
    DELTA,
    PIECE,
    SNAPSHOT,
    BadMessage,
    name_bytes,
    pack_texts,
    read_array,
    seal,
    unpack_texts,
    unseal,
    wire_array,
)

MAX_DELTA_BYTES: Final = 1024 * 1024
MAX_DELTA_BLOCKS: Final = 65_536
PIECE_BYTES: Final = 1024 * 1024
MAX_PIECE_BYTES: Final = PIECE_BYTES + 1024
BLOCK_ROOM: Final = 24  # largest size of a block in a snapshot: its key, and the change it may be alone in
SPARE_ROOM: Final = 4096  # for all the rest

HEAD: Final = Struct("<QII")  # seq, changes, keys; then two text lengths, the texts, the changes, the keys
TEXTS_AT: Final = HEAD.size + 8
CHANGE: Final = Struct("<BBxxIQ")  # what, tier, blocks, parent
PIECE_HEAD: Final = Struct("<QQII")  # epoch, seq, index, pieces in all
STORED_FIRST, STORED_BEHIND, REMOVED, CLEARED = range(4)
TIERS: Final = tuple(Tier)
TIER_NUMBERS: Final = {tier: number for number, tier in enumerate(TIERS)}
CLEAR: Final = Cleared()


def encode_delta(delta: CacheDelta) -> bytes:
    """Raises BadMessage for more blocks than a delta carries."""
    data = seal(DELTA, pack_changes(delta.worker, delta.generation, delta.seq, delta.changes))
    if len(data) > MAX_DELTA_BYTES:
        raise BadMessage(f"a delta of {len(data)} bytes is larger than {MAX_DELTA_BYTES}")
    return data


def decode_delta(data: bytes) -> CacheDelta:
    """Raises BadMessage."""
    worker, generation, seq, changes = unpack_changes(unseal(data, DELTA, MAX_DELTA_BYTES, TEXTS_AT))
    return CacheDelta(worker, generation, seq, tuple(changes))


def encode_snapshot(snapshot: CacheSnapshot) -> bytes:
    return seal(SNAPSHOT, pack_changes(snapshot.worker, snapshot.generation, snapshot.seq, snapshot.runs))


def decode_snapshot(data: bytes, max_blocks: int) -> CacheSnapshot:
    """Raises BadMessage."""
    body = unseal(data, SNAPSHOT, max_blocks * BLOCK_ROOM + SPARE_ROOM, TEXTS_AT)
    worker, generation, seq, changes = unpack_changes(body)
    runs = tuple(change for change in changes if isinstance(change, Stored))
    if len(runs) != len(changes):
        raise BadMessage("a snapshot removes blocks")
    return CacheSnapshot(worker, generation, seq, runs)


def count_blocks(changes: Iterable[CacheChange]) -> int:
    """Keys in them; an upper bound of the blocks that change."""
    return sum(0 if isinstance(change, Cleared) else len(change.keys) for change in changes)


def pack_changes(worker: WorkerId, generation: str, seq: int, changes: Sequence[CacheChange]) -> bytes:
    name_bytes(worker), name_bytes(generation)
    lengths, joined = pack_texts([worker, generation])
    table = []
    runs = []
    for change in changes:
        if isinstance(change, Stored):
            what, parent = (STORED_FIRST, 0) if change.parent is None else (STORED_BEHIND, change.parent)
            table.append(CHANGE.pack(what, TIER_NUMBERS[change.tier], len(change.keys), parent))
            runs.append(wire_array(change.keys))
        elif isinstance(change, Removed):
            table.append(CHANGE.pack(REMOVED, 0, len(change.keys), 0))
            runs.append(wire_array(change.keys))
        else:
            table.append(CHANGE.pack(CLEARED, 0, 0, 0))
    keys = b"".join(runs)
    return b"".join((HEAD.pack(seq, len(table), len(keys) // 8), lengths, joined, *table, keys))


def unpack_changes(body: memoryview) -> tuple[WorkerId, str, int, list[CacheChange]]:
    seq, n_changes, n_keys = HEAD.unpack_from(body)
    texts_end = len(body) - 8 * n_keys - CHANGE.size * n_changes
    if texts_end < TEXTS_AT:
        raise BadMessage("the changes are cut off")
    worker, generation = unpack_texts(bytes(body[HEAD.size : TEXTS_AT]), bytes(body[TEXTS_AT:texts_end]))
    keys_at = len(body) - 8 * n_keys
    keys = read_array("Q", body[keys_at:])
    return WorkerId(worker), generation, seq, read_table(body[texts_end:keys_at], keys)


def read_table(table: memoryview, keys: "array[int]") -> list[CacheChange]:
    changes: list[CacheChange] = []
    at = 0
    for what, tier, blocks, parent in CHANGE.iter_unpack(table):
        end = at + blocks
        if what <= STORED_BEHIND and tier < len(TIERS):
            changes.append(Stored(parent if what == STORED_BEHIND else None, keys[at:end], TIERS[tier]))
        elif what == REMOVED:
            changes.append(Removed(keys[at:end]))
        elif what == CLEARED:
            changes.append(CLEAR)
        else:
            raise BadMessage(f"no change is {what} or in tier {tier}")
        at = end
    if at != len(keys):
        raise BadMessage("the blocks of the changes do not add up")
    return changes


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an encoded snapshot, small enough for one value. All pieces of one have the same epoch, seq and total."""

    epoch: int
    seq: int
    index: int
    total: int
    data: bytes


def cut(data: bytes, epoch: int, seq: int) -> list[bytes]:
    """An encoded snapshot as encoded pieces."""
    total = max(1, -(-len(data) // PIECE_BYTES))
    view = memoryview(data)
    return [
        seal(PIECE, PIECE_HEAD.pack(epoch, seq, index, total) + view[index * PIECE_BYTES : (index + 1) * PIECE_BYTES])
        for index in range(total)
    ]


def decode_piece(data: bytes, max_blocks: int) -> Piece:
    """Raises BadMessage, also for a piece of a snapshot of more than `max_blocks`."""
    body = unseal(data, PIECE, MAX_PIECE_BYTES, PIECE_HEAD.size)
    epoch, seq, index, total = PIECE_HEAD.unpack_from(body)
    if not index < total <= 1 + (max_blocks * BLOCK_ROOM + SPARE_ROOM) // PIECE_BYTES:
        raise BadMessage(f"piece {index} of {total}")
    return Piece(epoch, seq, index, total, bytes(body[PIECE_HEAD.size :]))
