import tracemalloc
from array import array
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.event_index import FIRST_PLACES, SHARD_BITS, SHARDS, EventIndex
from tests.core.builders import chain

ALL = (1 << 64) - 1
ROOMY = 1 << 40


def index_of(workers: int, limit_bytes: int = ROOMY, max_sets: int = 1000) -> EventIndex:
    index = EventIndex(limit_bytes, 64, max_sets)
    for slot in range(workers):
        index.add_worker(slot)
    return index


def found(index: EventIndex, keys: "array[int]", among: int = ALL) -> list[tuple[int, int]]:
    return [(level.blocks, level.mask) for level in index.levels(keys, among)]


def swept(index: EventIndex) -> int:
    """Sweeps to the end; how many calls that took."""
    calls = 1
    while index.sweep(1000):
        calls += 1
    return calls


def crowded(keys: int) -> "array[int]":
    """Unrelated keys of one shard."""
    rng = Random(5)
    return array("Q", [rng.getrandbits(64 - SHARD_BITS) << SHARD_BITS | 77 for _ in range(keys)])


def test_levels_tell_who_holds_how_much() -> None:
    """Deepest first, masks growing: the form in which PrefixIndex tells it."""
    index = index_of(4)
    keys = chain(range(100))
    assert found(index, keys) == [] == found(index, array("Q"))
    for slot, blocks in ((0, 100), (1, 37), (2, 37), (3, 1)):
        assert index.stored(slot, None, keys[:blocks]) == blocks
        assert index.blocks_of(slot) == blocks
    assert found(index, keys) == [(100, 0b1), (37, 0b111), (1, 0b1111)]
    assert found(index, keys[:37]) == [(37, 0b111), (1, 0b1111)]
    assert found(index, chain([*range(50), 999])) == [(50, 0b1), (37, 0b111), (1, 0b1111)]
    assert found(index, keys, among=0b1010) == [(37, 0b10), (1, 0b1010)]
    assert found(index, chain([7, 8])) == []
    assert index.depth(2, keys) == 37 and index.depth(2, chain([7])) == 0
    assert index.is_held(keys[60], 0b11) and not index.is_held(keys[60], 0b10)
    assert index.blocks == 100


@pytest.mark.parametrize("depths", [[6250], [1, 6250], [6249, 6250], list(range(190, 6250, 190)), [5, 6, 7, 8, 4000]])
def test_levels_are_found_wherever_they_lie(depths: list[int]) -> None:
    """Bisection sees every change along a chain."""
    index = index_of(len(depths))
    keys = chain(range(6250))
    for slot, blocks in enumerate(depths):
        index.stored(slot, None, keys[:blocks])
    levels = found(index, keys)
    assert [blocks for blocks, _ in levels] == depths[::-1]
    assert [mask.bit_count() for _, mask in levels] == list(range(1, len(depths) + 1))


def test_a_run_is_taken_only_behind_its_parent() -> None:
    """A parent that this worker does not hold is a hole in what it says, whoever else holds it: refused and counted."""
    index = index_of(2)
    keys = chain(range(9))
    index.stored(0, None, keys[:5])
    assert index.stored(1, keys[4], keys[5:]) == 0
    assert index.stored(1, 12345, keys[5:]) == 0
    assert index.orphan_blocks == 8
    assert index.stored(0, keys[4], keys[5:]) == 4
    assert found(index, keys) == [(9, 1)]


def test_a_repeated_run_changes_nothing() -> None:
    """Blocks that move to another tier are stored again; one that was removed finds its old place."""
    index = index_of(1)
    keys = chain(range(9))
    for _ in range(2):
        assert index.stored(0, None, keys) == 9
    assert (index.blocks, index.blocks_of(0)) == (9, 9)
    size = index.bytes
    for _ in range(100):
        index.removed(0, keys[4:])
        assert (index.blocks, index.blocks_of(0)) == (4, 4)
        index.stored(0, keys[3], keys[4:])
    assert found(index, keys) == [(9, 1)] and index.bytes == size


def test_removing_touches_only_that_worker() -> None:
    """Others keep what they hold; removing what is not held, twice or never, changes nothing."""
    index = index_of(3)
    keys = chain(range(20))
    index.stored(0, None, keys)
    index.stored(1, None, keys)
    for _ in range(2):
        index.removed(1, keys[12:])
        index.removed(2, keys)
        index.removed(1, chain([77, 78]))
    assert found(index, keys) == [(20, 0b1), (12, 0b11)]
    assert (index.blocks_of(0), index.blocks_of(1), index.blocks_of(2)) == (20, 12, 0)


def test_forgetting_is_at_once_and_the_worker_goes_on() -> None:
    """A restarted engine holds nothing from that moment, stores anew at once, and what it held is swept later."""
    index = index_of(2)
    keys = chain(range(50))
    index.stored(0, None, keys)
    index.stored(1, None, keys[:10])
    index.forget(0)
    assert found(index, keys) == [(10, 0b10)] and index.blocks_of(0) == 0
    assert index.stored(0, keys[4], keys[5:]) == 0
    assert index.stored(0, None, keys[:5]) == 5
    assert found(index, keys) == [(10, 0b10), (5, 0b11)]
    assert index.blocks == 50
    assert swept(index) > 3
    assert found(index, keys) == [(10, 0b10), (5, 0b11)]
    assert index.blocks == 10
    assert not index.sweep(1)


def test_a_worker_forgotten_twice_waits_for_the_sweep() -> None:
    """With both of its bits in old sets nothing can be told of it: nothing is stored until a round is over."""
    index = index_of(2)
    keys = chain(range(50))
    for _ in range(2):
        assert index.accepts(0)
        index.stored(0, None, keys)
        index.forget(0)
    index.forget(0)
    assert not index.accepts(0) and index.stored(0, None, keys) == 0
    assert found(index, keys) == []
    with pytest.raises(ValueError, match="slot 0 is taken"):
        index.add_worker(0)
    swept(index)
    assert index.accepts(0) and index.stored(0, None, keys) == 50
    assert found(index, keys) == [(50, 1)]


def test_forgotten_during_a_round_is_swept_in_the_next() -> None:
    """Shards that the round has passed still have the bit, so it is not clean when the round ends."""
    index = index_of(2)
    keys = chain(range(400))
    index.stored(0, None, keys)
    index.stored(1, None, keys)
    index.forget(0)
    assert index.sweep(SHARDS // 2)
    index.forget(1)
    swept(index)
    assert index.blocks == 0
    for slot in (0, 1):
        index.stored(slot, None, keys[:7])
        index.forget(slot)
        assert index.accepts(slot)
    assert found(index, keys) == []


def test_a_slot_is_free_again_after_its_worker_left() -> None:
    """The newcomer in a slot starts empty, also where the old worker was waiting."""
    index = index_of(1)
    keys = chain(range(8))
    for _ in range(3):
        index.stored(0, None, keys)
        index.remove_worker(0)
        index.remove_worker(0)
        index.add_worker(0)
        assert found(index, keys) == []
    assert not index.accepts(0)
    with pytest.raises(ValueError, match="slot 64 is taken or not below 64"):
        index.add_worker(64)


def test_sets_of_holders_are_kept_once_and_go_when_unused() -> None:
    """A thousand blocks held alike have one set; as holders come and go, sets that no block has make room."""
    index = index_of(8)
    keys = chain(range(1000))
    for slot in range(8):
        index.stored(slot, None, keys)
    assert len(index._sets) == 1
    for slot in range(8):
        index.removed(slot, keys)
    assert (len(index._sets), index.blocks) == (0, 0)
    index.stored(3, None, keys)
    assert len(index._masks) <= 4 and found(index, keys) == [(1000, 8)]


def test_beyond_the_byte_bound_runs_are_refused() -> None:
    """What is taken stays a prefix of what was told, so that only less is predicted; what was removed makes room."""
    index = index_of(1, limit_bytes=64 * 1024)
    keys = chain(range(5000))
    taken = index.stored(0, None, keys)
    assert 50 < taken < 1000 and index.full_blocks == 5000 - taken
    assert index.bytes <= index.limit_bytes
    assert found(index, keys) == [(taken, 1)]
    assert index.stored(0, keys[taken - 1], keys[taken:]) == 0
    index.removed(0, keys[:taken])
    assert index.stored(0, None, keys[:taken]) == taken


def test_a_full_shard_refuses_what_would_make_it_grow() -> None:
    """Entries that are there can still change hands; dead ones make room without more bytes."""
    index = index_of(2, limit_bytes=1200)
    keys = crowded(200)
    taken = index.stored(0, None, keys)
    assert FIRST_PLACES // 2 < taken < 100 and index.blocks == taken
    assert index.stored(1, None, keys) == taken
    index.removed(0, keys[3:taken])
    index.removed(1, keys[3:taken])
    assert index.stored(0, None, keys[100:105]) == 5
    assert found(index, keys[:3]) == [(3, 0b11)]


def test_no_set_beyond_the_bound() -> None:
    """With no number left for a set, a block that would need one is refused, or lost for all its holders."""
    index = index_of(3, max_sets=3)
    one, two, three = chain([1, 2]), chain([3, 4]), chain([5, 6])
    for slot, keys in ((0, one), (1, two), (2, three)):
        assert index.stored(slot, None, keys) == 2
    assert index.stored(1, None, one) == 0 and index.full_blocks == 2
    index = index_of(3, max_sets=3)
    for slot in range(3):
        index.stored(slot, None, one)
    index.stored(0, None, two)
    index.stored(1, None, three)
    assert index.full_blocks == 0
    index.removed(0, one)
    assert found(index, one) == []
    assert (index.full_blocks, index.blocks) == (4, 4)
    assert [index.blocks_of(slot) for slot in range(3)] == [2, 2, 0]


def test_a_sweep_without_room_for_sets_loses_blocks() -> None:
    """The sets that forgotten workers leave behind may be new ones: where they find no number, their blocks go."""
    index = index_of(3, max_sets=2)
    shared, own = chain([1, 2]), chain([3])
    for slot in range(3):
        index.stored(slot, None, shared)
    index.stored(2, None, own)
    index.forget(0)
    swept(index)
    assert found(index, shared) == []
    assert found(index, own) == [(1, 0b100)]
    assert [index.blocks_of(slot) for slot in range(3)] == [0, 0, 1]


def test_growing_takes_forgotten_holders_out_too() -> None:
    """A table that is made anew leaves out what nobody holds any more, in the middle of a run as well."""
    index = index_of(3)
    keys = crowded(600)
    index.stored(0, None, keys[:100])
    index.stored(1, None, keys[:50])
    index.forget(0)
    assert index.stored(2, None, keys) == 600
    assert found(index, keys) == [(600, 0b100), (50, 0b110)]
    assert index.blocks == 600
    swept(index)
    assert found(index, keys) == [(600, 0b100), (50, 0b110)]


def test_bytes_per_block_are_few() -> None:
    """Traced memory per block stays far under the budget of 100 bytes, and near the own account."""
    rng = Random(3)
    blocks = 200_000
    tracemalloc.start()
    try:
        index = index_of(8)
        for start in range(0, blocks, 500):
            index.stored(start // 500 % 8, None, array("Q", rng.randbytes(8 * 500)))
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert traced / blocks < 40
    assert 0.6 < index.bytes / traced < 1.2


steps = st.lists(
    st.tuples(
        st.sampled_from(["stored"] * 6 + ["removed"] * 3 + ["forget", "sweep", "swap"]),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(0, 12),
        st.integers(1, 12),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(steps)
def test_the_index_is_what_the_workers_said(told: list[tuple[str, int, int, int, int]]) -> None:
    """Against a set of keys per worker: any order of runs, removals, restarts and sweeps."""
    index = index_of(4)
    chains = [chain([*range(6), *([branch] * 18)]) for branch in range(3)]
    held: list[set[int]] = [set() for _ in range(4)]
    waiting: set[int] = set()
    for what, slot, branch, start, count in told:
        keys = chains[branch]
        match what:
            case "stored":
                start = min(start, max((at + 1 for at, key in enumerate(keys) if key in held[slot]), default=0))
                index.stored(slot, keys[start - 1] if start else None, keys[start : start + count])
                if slot not in waiting:
                    held[slot].update(keys[start : start + count])
            case "removed":
                behind = array("Q", {key for other in chains if other[start] == keys[start] for key in other[start:]})
                index.removed(slot, behind)
                held[slot].difference_update(behind)
            case "forget":
                index.forget(slot)
                held[slot].clear()
            case "sweep":
                index.sweep(count * 1000)
            case "swap":
                index.remove_worker(slot)
                index.add_worker(slot)
                held[slot].clear()
        waiting = {slot for slot in range(4) if not index.accepts(slot)}
        for keys in chains:
            depths = [next((at for at, key in enumerate(keys) if key not in mine), len(keys)) for mine in held]
            assert [index.depth(slot, keys) for slot in range(4)] == depths
            assert found(index, keys) == [
                (blocks, sum(1 << slot for slot in range(4) if depths[slot] >= blocks))
                for blocks in sorted(set(depths) - {0}, reverse=True)
            ]
        assert [index.blocks_of(slot) for slot in range(4)] == [len(mine) for mine in held]
        assert index.blocks >= len(set().union(*held))
    swept(index)
    assert index.blocks == len(set().union(*held))
