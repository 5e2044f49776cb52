import math
import random
import tracemalloc
from array import array
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.prefix_index import NEVER_S, PrefixIndex
from router.core.prefix_node import MAX_GHOSTS, held_blocks, slots_of
from tests.core.builders import chain

AMPLE_BYTES = 1 << 30
WORKERS = 3


class NaiveCache:
    """What the index should say of one worker: a set of blocks by last use, each block named by its whole prefix."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used_s: OrderedDict[tuple[int, ...], float] = OrderedDict()  # coldest first

    def insert(self, blocks: list[int], now_s: float) -> float:
        prefixes = prefixes_of(blocks[: self.capacity])
        held = [self.used_s[prefix] for prefix in prefixes if prefix in self.used_s]
        for prefix in reversed(prefixes):
            self.used_s[prefix] = now_s
            self.used_s.move_to_end(prefix)
        self.set_capacity(self.capacity)
        return held[-1] if held else NEVER_S

    def set_capacity(self, capacity: int) -> None:
        self.capacity = capacity
        while len(self.used_s) > capacity:
            self.used_s.popitem(last=False)

    def drop(self, blocks: list[int], from_block: int, since_s: float) -> int:
        before = len(self.used_s)
        for prefix in reversed(prefixes_of(blocks)[from_block:]):
            if prefix in self.used_s:
                if self.used_s[prefix] > since_s or any(other[:-1] == prefix for other in self.used_s):
                    break
                del self.used_s[prefix]
        return before - len(self.used_s)

    def evict_older(self, before_s: float) -> int:
        old = [prefix for prefix, used_s in self.used_s.items() if used_s < before_s]
        for prefix in old:
            del self.used_s[prefix]
        return len(old)

    def matched(self, blocks: list[int]) -> int:
        return sum(prefix in self.used_s for prefix in prefixes_of(blocks))


def prefixes_of(blocks: list[int]) -> list[tuple[int, ...]]:
    return [tuple(blocks[: i + 1]) for i in range(len(blocks))]


def matched(index: PrefixIndex, slot: int, keys: "array[int]") -> int:
    return next((blocks for blocks, mask in index.match(keys) if mask >> slot & 1), 0)


def check_structure(index: PrefixIndex) -> None:
    """Every rule in the module's docstring, on the inside, and all counters against a recount."""
    assert index.bytes <= index.limit_bytes
    nodes = list(index._first.values())
    assert index.blocks == sum(len(node.keys) for node in nodes)
    assert index._holds == sum(len(cache.holds) for cache in index._caches.values())
    for first, node in index._first.items():
        assert node.keys[0] == first
        assert node.mask, "a node that nobody holds in full"
        assert node.children == sum(other.parent is node for other in nodes)
        partial = node.partial or {}
        assert node.partial is None or partial
        assert all(0 < held < len(node.keys) and not node.mask & bit for bit, held in partial.items())
        holders = node.mask | sum(partial)
        assert node.parent is None or holders & node.parent.mask == holders, "not prefix-closed"
        for slot in slots_of(holders):
            assert node in index._caches[slot].holds
    for cache in index._caches.values():
        assert cache.used_blocks == sum(held_blocks(node, cache.bit) for node in cache.holds) <= cache.capacity_blocks
        order, hold = [], cache.end.newer
        while hold is not cache.end:
            order.append(hold.node)
            assert hold.newer.older is hold and cache.holds[hold.node] is hold
            hold = hold.newer
        assert len(order) == len(cache.holds)
        for node, hold in cache.holds.items():
            assert hold.children == sum(other.parent is node for other in cache.holds)
            assert node.parent is None or order.index(node) < order.index(node.parent), "an ancestor is colder"


blocks_lists = st.builds(
    lambda shared, branch, more: [0] * shared + [branch] * more, st.integers(0, 9), st.integers(1, 3), st.integers(0, 6)
)
steps = st.one_of(
    st.tuples(st.just("insert"), st.integers(0, WORKERS - 1), blocks_lists),
    st.tuples(st.just("insert"), st.integers(0, WORKERS - 1), blocks_lists),
    st.tuples(st.just("insert"), st.integers(0, WORKERS - 1), blocks_lists),
    st.tuples(st.just("drop"), st.integers(0, WORKERS - 1), blocks_lists, st.integers(0, 12), st.integers(0, 60)),
    st.tuples(st.just("evict_older"), st.integers(0, WORKERS - 1), st.integers(0, 60)),
    st.tuples(st.just("set_capacity"), st.integers(0, WORKERS - 1), st.integers(1, 30)),
    st.tuples(st.just("forget"), st.integers(0, WORKERS - 1)),
)


@settings(max_examples=150)
@given(st.lists(steps, min_size=12, max_size=40), st.lists(st.integers(1, 20), min_size=WORKERS, max_size=WORKERS))
def test_index_answers_like_a_naive_lru_of_blocks(steps: list[tuple[Any, ...]], capacities: list[int]) -> None:
    """Matches, sizes and every return value equal those of one plain LRU of blocks per worker, after each step."""
    index = PrefixIndex(AMPLE_BYTES)
    naive = [NaiveCache(capacity) for capacity in capacities]
    for slot, capacity in enumerate(capacities):
        index.add_worker(slot, capacity)
    for now, (what, slot, *arguments) in enumerate(steps):
        match (what, *arguments):
            case "insert", list(blocks):
                assert index.insert(slot, chain(blocks), now) == naive[slot].insert(blocks, now)
            case "drop", list(blocks), int(from_block), int(since):
                assert index.drop(slot, chain(blocks), from_block, since) == naive[slot].drop(blocks, from_block, since)
            case "evict_older", int(before):
                assert index.evict_older(slot, before) == naive[slot].evict_older(before)
            case "set_capacity", int(capacity):
                index.set_capacity(slot, capacity)
                naive[slot].set_capacity(capacity)
            case ("forget",):
                index.forget(slot)
                naive[slot].used_s.clear()
            case _:
                raise AssertionError(what)
        check_structure(index)
        for other in [step[2] for step in steps if step[0] == "insert"]:
            found = [naive[s].matched(other) for s in range(WORKERS)]
            assert [matched(index, s, chain(other)) for s in range(WORKERS)] == found
            assert index.deepest(chain(other)) == max(found)
        assert [index.blocks_of(s) for s in range(WORKERS)] == [len(cache.used_s) for cache in naive]
    for slot in range(WORKERS):
        index.remove_worker(slot)
    assert (index.nodes, index.blocks, index.bytes) == (0, 0, 0)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 3), max_size=60)), max_size=60), st.integers(0, 6000))
def test_index_is_never_above_its_byte_bound(inserts: list[tuple[int, list[int]]], limit: int) -> None:
    """Whatever is inserted, however small the bound: after each insert the index is within it and whole."""
    index = PrefixIndex(limit)
    for slot in range(4):
        index.add_worker(slot, 1000)
    for now, (slot, blocks) in enumerate(inserts):
        index.insert(slot, chain(blocks), now)
        check_structure(index)


def test_byte_bound_takes_from_the_largest_model_first() -> None:
    """A worker with little in the index keeps it while another floods the index."""
    index = PrefixIndex(100_000)
    index.add_worker(0, 10**6)
    index.add_worker(1, 10**6)
    small = chain(range(50))
    index.insert(0, small, 0.0)
    for i in range(1000):
        index.insert(1, chain([1000 + i] * 40), 1.0 + i)
    assert matched(index, 0, small) == 50
    assert index.bound_evicted_blocks > 0 and index.evicted_blocks == 0
    assert index.evictions == index.bound_evicted_blocks


def test_match_gives_levels_deepest_first_with_growing_masks() -> None:
    """A worker's match is the first level with its bit; runs that the same workers hold are one level."""
    index = PrefixIndex(AMPLE_BYTES)
    for slot in range(3):
        index.add_worker(slot, 100)
    index.insert(0, chain([0] * 4), 0.0)
    index.insert(0, chain([0] * 4 + [1] * 4), 1.0)
    index.insert(1, chain([0] * 4 + [1] * 2 + [2] * 2), 2.0)
    index.insert(2, chain([9]), 3.0)
    assert index.match(chain([0] * 4 + [1] * 4 + [5])) == [(8, 0b001), (6, 0b011)]
    assert index.match(chain([0] * 3)) == [(3, 0b011)]
    assert index.match(chain([7])) == []


def test_a_conversation_on_one_worker_is_one_run() -> None:
    """Turn after turn grows the run in place, and touching both halves of a run undoes an earlier split."""
    index = PrefixIndex(AMPLE_BYTES)
    index.add_worker(0, 1000)
    index.add_worker(1, 1000)
    for turn in range(1, 20):
        index.insert(0, chain(range(turn * 5)), turn)
    assert index.nodes == 1
    index.insert(0, chain(range(33)), 30.0)
    assert index.nodes == 2
    index.insert(0, chain(range(95)), 31.0)
    assert index.nodes == 1
    index.insert(1, chain(range(33)), 32.0)
    index.insert(0, chain(range(95)), 33.0)
    assert index.nodes == 2, "two workers hold the head, one the tail"


def test_keys_beyond_the_capacity_are_left_out() -> None:
    """A prompt longer than the cache keeps its head: the tail would have evicted it otherwise."""
    index = PrefixIndex(AMPLE_BYTES)
    index.add_worker(0, 10)
    index.insert(0, chain(range(25)), 0.0)
    assert matched(index, 0, chain(range(25))) == index.blocks_of(0) == 10


def test_inserting_does_not_keep_the_callers_array() -> None:
    """Runs grow in place; the array that a prompt still uses must not grow with them."""
    index = PrefixIndex(AMPLE_BYTES)
    index.add_worker(0, 100)
    keys = chain(range(4))
    index.insert(0, keys, 0.0)
    index.insert(0, chain(range(9)), 1.0)
    assert len(keys) == 4


def test_a_trimmed_run_is_cut_to_the_longest_part_somebody_holds() -> None:
    """When its last whole holder loses a run's tail, the blocks nobody holds go, and the longest partial hold is whole."""
    index = PrefixIndex(AMPLE_BYTES)
    for slot in range(3):
        index.add_worker(slot, 100)
        index.insert(slot, chain(range(10)), slot)
    index.set_capacity(0, 4)
    index.set_capacity(1, 7)
    assert index.blocks == 10
    index.set_capacity(2, 7)
    assert index.blocks == 7
    assert index.match(chain(range(10))) == [(7, 0b110), (4, 0b111)]
    index.forget(1)
    index.forget(2)
    assert index.match(chain(range(10))) == [(4, 0b001)]
    check_structure(index)


def test_a_lower_limit_takes_effect_at_once() -> None:
    """The largest model gives up its oldest blocks; a limit that nothing can keep leaves nothing."""
    index = PrefixIndex(AMPLE_BYTES)
    for slot, prompts in enumerate((50, 5)):
        index.add_worker(slot, 1000)
        for number in range(prompts):
            index.insert(slot, chain([slot, number]), number)
    index.set_limit(index.bytes // 2)
    assert index.bytes <= index.limit_bytes and 5 < index.blocks_of(1) <= 10 and 20 < index.blocks_of(0) < 60
    check_structure(index)
    index.set_limit(-1)
    assert index.blocks == index.bytes == 0


def test_splits_and_refills_of_runs_that_some_hold_in_part() -> None:
    """A split run leaves each worker what it had; a worker that comes back to a trimmed run fills it up."""
    index = PrefixIndex(AMPLE_BYTES)
    for slot, capacity in enumerate((100, 2, 5, 8)):
        index.add_worker(slot, 100)
        index.insert(slot, chain([0] * 10), slot)
        index.set_capacity(slot, capacity)
    index.insert(0, chain([0] * 5 + [1]), 9.0)
    assert index.match(chain([0] * 10)) == [(10, 0b0001), (8, 0b1001), (5, 0b1101), (2, 0b1111)]
    check_structure(index)
    index.set_capacity(3, 100)
    index.insert(3, chain([0] * 10), 10.0)
    assert index.match(chain([0] * 10))[0] == (10, 0b1001)
    index.insert(1, chain([0] * 10), 11.0)
    index.forget(1)
    assert index.match(chain([0] * 10)) == [(10, 0b1001), (5, 0b1101)]
    check_structure(index)
    for slot, capacity in enumerate((9, 7, 8, 6)):
        index.set_capacity(slot, 100)
        index.insert(slot, chain([2] * 10), 20.0)
        index.set_capacity(slot, capacity)
    index.forget(1)
    assert index.match(chain([2] * 10)) == [(9, 0b0001), (8, 0b0101), (6, 0b1101)]
    index.insert(3, chain([2] * 10), 21.0)
    check_structure(index)


def test_evicted_blocks_are_remembered_only_where_asked() -> None:
    """A hit right behind the predicted one proves a model too small only if that block had been evicted from it."""
    index = PrefixIndex(AMPLE_BYTES)
    index.add_worker(0, 10)
    old = chain([1] * 8)
    index.insert(0, old, 0.0)
    index.insert(0, chain([2] * 6), 1.0)
    assert not index.was_evicted(0, old[4])
    index.watch_evicted(0, True)
    index.watch_evicted(0, True)
    index.insert(0, chain([3] * 2), 2.0)
    assert index.was_evicted(0, old[2]) and not index.was_evicted(0, old[3])
    index.forget(0)
    assert not index.was_evicted(0, old[2])
    for i in range(MAX_GHOSTS * 2):
        index.insert(0, chain([100 + i] * 10), 3.0 + i)
    assert index._ghosts == len(index._caches[0].ghosts or ()) <= MAX_GHOSTS
    index.watch_evicted(0, False)
    index.forget(0)
    assert index.bytes == 0


def test_dropping_an_insert_spares_what_others_use() -> None:
    """Undoing keeps blocks used since by another request, and those with another's blocks behind them."""
    index = PrefixIndex(AMPLE_BYTES)
    index.add_worker(0, 100)
    index.insert(0, chain([0] * 10), 1.0)
    index.insert(0, chain([0] * 14), 2.0)
    assert index.drop(0, chain([0] * 10), 2, 1.0) == 0, "the longer prompt needs them"
    index.insert(0, chain([5] * 4), 3.0)
    index.insert(0, chain([5] * 4), 4.0)
    assert index.drop(0, chain([5] * 4), 0, 3.0) == 0, "used since"
    assert index.drop(0, chain([5] * 4), 1, 4.0) == 3
    assert index.drop(0, chain([6] * 4), 0) == 0, "not held at all"


def test_slots_are_taken_once_and_free_again() -> None:
    """A slot belongs to one worker at a time; removing an unknown one is no error."""
    index = PrefixIndex(AMPLE_BYTES)
    index.add_worker(40, 10)
    with pytest.raises(ValueError, match="taken"):
        index.add_worker(40, 10)
    index.insert(40, chain([1]), 0.0)
    assert index.match(chain([1])) == [(1, 1 << 40)]
    index.remove_worker(40)
    index.remove_worker(40)
    assert not index.has_worker(40)
    index.add_worker(40, 0)
    assert index.capacity_of(40) == 1 and index.blocks_of(40) == 0


def test_bytes_are_what_the_index_takes() -> None:
    """The account is within a third of what is allocated, and under 100 bytes a block on multi-turn traffic."""
    rng = random.Random(3)
    sessions = [[chain([rng.getrandbits(60) for _ in range(30 * turn)]) for turn in (1, 2, 3)] for _ in range(150)]
    tracemalloc.start()
    index = PrefixIndex(AMPLE_BYTES)
    for slot in range(4):
        index.add_worker(slot, 10**6)
    for turn in range(3):
        for session in sessions:
            index.insert(rng.randrange(4), session[turn], float(turn))
    allocated = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert math.isclose(index.bytes, allocated, rel_tol=1 / 3)
    assert allocated / index.blocks < 100
