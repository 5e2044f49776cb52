from array import array
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.cache_delta import CacheChange, CacheDelta, CacheSnapshot, Cleared, Removed, Stored, Tier
from router.core.cache_feed import MAX_KEPT_BLOCKS, MAX_KEPT_DELTAS, MAX_PIECE, CacheFeed
from router.core.event_index import EventIndex
from router.core.fleet import Worker
from router.core.types import WorkerId
from tests.core.builders import chain, spec

A, B = WorkerId("10.0.0.1:8000"), WorkerId("10.0.0.2:8000")
KEYS = chain(range(40))


class Notes:
    """What a watcher is told."""

    def __init__(self) -> None:
        self.syncs: list[tuple[str, bool]] = []
        self.stored_blocks = 0

    def synced(self, worker: Worker, in_sync: bool) -> None:
        self.syncs.append((worker.id, in_sync))

    def stored(self, slot: int, keys: "array[int]") -> None:
        self.stored_blocks += len(keys)


class World:
    """Two workers, a in slot 0 and b in slot 1."""

    def __init__(self) -> None:
        self.index = EventIndex(1 << 40, 8)
        self.notes = Notes()
        self.feed = CacheFeed(self.index, self.notes)
        self.a, self.b = Worker(spec(1), 0), Worker(spec(2), 1)
        self.feed.joined(self.a)
        self.feed.joined(self.b)

    def report(self, worker: Worker, generation: str) -> None:
        worker.generation = generation
        self.feed.reported(worker)

    def tell(self, seq: int, *changes: CacheChange, worker: WorkerId = A, generation: str = "g1") -> bool:
        return self.feed.delta(CacheDelta(worker, generation, seq, changes))

    def show(self, seq: int, *runs: Stored, worker: WorkerId = A, generation: str = "g1") -> None:
        self.feed.snapshot(CacheSnapshot(worker, generation, seq, runs))

    def held(self, keys: "array[int]" = KEYS) -> list[tuple[int, int]]:
        return [(level.blocks, level.mask) for level in self.index.levels(keys, 0b11)]


def stored(start: int, stop: int, keys: "array[int]" = KEYS) -> Stored:
    return Stored(keys[start - 1] if start else None, keys[start:stop], Tier.HOST)


def test_deltas_in_order_are_followed_from_the_first() -> None:
    """A generation begins with an empty cache, so its first delta is a whole picture."""
    world = World()
    assert not world.feed.in_sync(A) and world.feed.wanted() == [A, B]
    assert world.tell(1, stored(0, 10))
    assert world.tell(2, stored(10, 20), Removed(KEYS[15:20]))
    assert world.held() == [(15, 1)]
    assert world.feed.in_sync(A) and world.feed.wanted() == [B]
    assert world.tell(3, Cleared(), stored(0, 4))
    assert world.held() == [(4, 1)]
    assert world.notes.syncs == [(A, True)] and world.notes.stored_blocks == 24


def test_a_late_router_asks_for_the_snapshot() -> None:
    """What came before is not known: not in sync, and nothing of it is used, until the snapshot and what follows it are in."""
    world = World()
    assert not world.tell(7, stored(8, 9))
    assert not world.tell(8, stored(9, 10))
    assert not world.feed.in_sync(A) and world.feed.wanted() == [A, B]
    world.show(6, stored(0, 8))
    assert world.feed.in_sync(A) and world.held() == [(10, 1)]
    assert world.tell(9, Removed(KEYS[9:10])) and world.held() == [(9, 1)]
    assert (world.feed.gaps, world.feed.stale) == (0, 0)


def test_a_gap_puts_out_of_sync_until_it_is_closed() -> None:
    """By a snapshot made after it, or by the delta that was late."""
    for close in ("snapshot", "delta"):
        world = World()
        world.tell(1, stored(0, 5))
        assert not world.tell(3, stored(6, 7))
        assert not world.feed.in_sync(A) and world.feed.gaps == 1
        if close == "snapshot":
            world.show(1, stored(0, 5))
            assert not world.feed.in_sync(A), "older than the gap"
            world.show(2, stored(0, 6))
        else:
            assert world.tell(2, stored(5, 6))
        assert world.feed.in_sync(A) and world.held() == [(7, 1)]
        assert world.notes.syncs == [(A, True), (A, False), (A, True)]


def test_repeated_and_old_deltas_change_nothing() -> None:
    """Each seq counts once, also one that is kept; a generation that is over never comes back."""
    world = World()
    for _ in range(3):
        assert world.tell(1, stored(0, 5))
    assert not world.tell(3, stored(6, 7))
    assert not world.tell(3, Cleared())
    assert world.feed.stale == 3
    assert world.tell(1, stored(0, 2), generation="g2")
    assert world.held() == [(2, 1)]
    assert world.tell(4, Cleared(), generation="g1")
    world.show(9, stored(0, 30), generation="g1")
    world.show(0, generation="g2")
    assert world.feed.stale == 6 and world.held() == [(2, 1)] and world.feed.in_sync(A)


def test_a_new_generation_drops_the_old_at_once() -> None:
    """Whoever tells of it first, and whether or not its deltas can be followed."""
    world = World()
    for worker in (world.a, world.b):
        world.report(worker, "g1")
        world.tell(1, stored(0, 5), worker=worker.id)
    assert not world.tell(5, stored(7, 9), generation="g2")
    assert world.held() == [(5, 0b10)] and not world.feed.in_sync(A)
    world.report(world.b, "g2")
    assert world.held() == [] and not world.feed.in_sync(B)
    assert world.tell(1, stored(0, 4), worker=B, generation="g1") is False
    assert world.tell(1, stored(0, 3), worker=B, generation="g2")
    assert world.held() == [(3, 0b10)] and world.feed.in_sync(B)


def test_deltas_and_reports_must_tell_of_the_same_generation() -> None:
    """A new engine's deltas before its report, an old one's after the next one's report: neither is believed, and no order
    of messages keeps the worker out of sync for good."""
    world = World()
    world.report(world.a, "g1")
    assert world.tell(1, stored(0, 5))
    assert not world.tell(1, stored(0, 2), generation="g2")
    assert not world.feed.in_sync(A) and world.held() == [(2, 1)]
    world.report(world.a, "g1")
    assert world.held() == [(2, 1)], "late"
    world.report(world.a, "g2")
    assert world.feed.in_sync(A) and world.held() == [(2, 1)]
    while world.index.sweep(100_000):
        pass
    world.report(world.a, "g4")
    assert not world.tell(1, stored(0, 9), generation="g3")
    assert not world.feed.in_sync(A) and world.feed.wanted() == [A, B]
    world.show(6, stored(0, 7), generation="g4")
    while world.index.sweep(100_000) | world.feed.step():
        pass
    assert world.feed.in_sync(A) and world.held() == [(7, 1)]
    assert world.tell(2, stored(9, 10), generation="g3") and world.feed.stale == 1


def test_a_snapshot_replaces_what_is_older_only() -> None:
    """One that says less than the deltas already did is left out; a later one takes the place of everything."""
    world = World()
    world.tell(1, stored(0, 5))
    world.tell(2, stored(5, 9))
    world.show(2, stored(0, 1))
    world.show(1, stored(0, 1))
    assert world.held() == [(9, 1)] and world.feed.stale == 2
    world.show(8, stored(0, 3))
    assert world.held() == [(3, 1)]
    assert world.tell(9, stored(3, 4)) and world.held() == [(4, 1)]
    world.show(0, worker=B)
    assert world.feed.in_sync(B), "an empty snapshot is a whole one"


def test_a_large_snapshot_is_taken_in_by_pieces() -> None:
    """No call takes long; until all of it is in, the worker is not in sync, and later deltas wait behind it."""
    world = World()
    keys = chain(range(5 * MAX_PIECE))
    world.show(4, stored(0, len(keys) - 10, keys), stored(len(keys) - 10, len(keys), keys))
    assert not world.feed.in_sync(A) and world.feed.wanted() == [B]
    assert world.tell(5, Removed(keys[4000:]))
    assert world.tell(6, stored(4000, 4001, keys))
    assert world.held(keys)[0][0] <= MAX_PIECE * 3
    calls = 1
    while world.feed.step():
        calls += 1
    assert calls >= 4
    assert world.feed.in_sync(A) and world.held(keys) == [(4001, 1)]
    assert not world.feed.step()


def test_a_large_delta_is_taken_in_by_pieces() -> None:
    """A worker in sync stays so: what is in already is true, the rest follows."""
    world = World()
    keys = chain(range(3 * MAX_PIECE))
    assert world.tell(1, stored(0, len(keys), keys))
    assert world.feed.in_sync(A) and world.held(keys) == [(MAX_PIECE, 1)]
    assert world.tell(2, Removed(keys[100:]))
    for _ in range(20):
        world.feed.step(1000)
    assert world.held(keys) == [(100, 1)] and not world.feed.step()


def test_busy_workers_take_turns() -> None:
    """One worker's large snapshot does not keep another's waiting to its end."""
    world = World()
    keys = chain(range(8 * MAX_PIECE))
    for worker in (A, B):
        world.show(1, stored(0, len(keys), keys), worker=worker)
    world.feed.step()
    world.feed.step()
    assert [world.index.blocks_of(slot) for slot in (0, 1)] == [2 * MAX_PIECE, 2 * MAX_PIECE]


@pytest.mark.parametrize("kind", ["deltas", "blocks"])
def test_what_is_kept_is_bounded(kind: str) -> None:
    """Behind a gap only so much is kept; what is dropped is one more gap, closed by a later snapshot."""
    world = World()
    large = array("Q", bytes(8 * (MAX_KEPT_BLOCKS // 3))) if kind == "blocks" else array("Q")
    last = MAX_KEPT_DELTAS + 10
    for seq in range(5, last + 1):
        assert not world.tell(seq, Removed(large))
    assert world.feed._kept_blocks <= MAX_KEPT_BLOCKS
    world.show(4, stored(0, 2))
    while world.feed.step(1 << 30):
        pass
    assert not world.feed.in_sync(A) and world.feed.wanted() == [A, B]
    world.show(last - 1, stored(0, 3))
    while world.feed.step(1 << 30):
        pass
    assert world.feed.in_sync(A) and world.held() == [(3, 1)]
    world.tell(last + 2, Removed(large))
    world.feed.left(world.a)
    assert world.feed._kept_blocks == 0


def test_strangers_and_orphans_are_counted() -> None:
    """Workers nobody knows, runs behind blocks that are not held: no error, and nobody else's blocks move."""
    world = World()
    world.tell(1, stored(0, 3), worker=B)
    assert world.tell(1, stored(0, 3), worker=WorkerId("x:1"))
    world.show(1, worker=WorkerId("x:1"))
    assert world.tell(1, stored(10, 20), Removed(KEYS), Removed(array("Q")))
    assert world.feed.strangers == 2 and world.index.orphan_blocks == 10
    assert world.held() == [(3, 0b10)]


def test_a_worker_nobody_tells_of_is_out_of_sync() -> None:
    """Its sidecar is gone: what it said last is not believed any longer, and can be followed anew from a snapshot."""
    world = World()
    world.tell(1, stored(0, 3))
    world.feed.forget(A)
    world.feed.forget(WorkerId("x:1"))
    assert not world.feed.in_sync(A) and world.held() == []
    assert not world.tell(2, stored(3, 4))
    world.show(1, stored(0, 3))
    assert world.feed.in_sync(A) and world.held() == [(4, 1)]


def test_a_worker_cleared_again_and_again_waits_for_the_sweep() -> None:
    """Until it can be told apart from its own past it is out of sync; then what waited is taken in."""
    world = World()
    for told in ("deltas", "snapshot", "nothing"):
        world.tell(1, stored(0, 3), Cleared(), stored(0, 4), Cleared(), generation=told)
        assert not world.feed.in_sync(A) and world.feed.wanted() == [B]
        if told == "deltas":
            assert world.tell(2, generation=told) and world.tell(3, stored(0, 5), generation=told)
        elif told == "snapshot":
            world.show(3, stored(0, 5), generation=told)
        assert not world.feed.in_sync(A) and world.feed.step() and world.held() == []
        while world.index.sweep(100_000):
            pass
        assert not world.feed.step()
        assert world.feed.in_sync(A) and world.held() == ([] if told == "nothing" else [(5, 1)])
        while world.index.sweep(100_000):
            pass


def test_a_worker_that_left_is_forgotten() -> None:
    """In the middle of a snapshot too; its slot starts clean."""
    world = World()
    keys = chain(range(3 * MAX_PIECE))
    world.show(1, stored(0, len(keys), keys))
    world.feed.left(world.a)
    assert not world.feed.step() and world.held(keys) == []
    world.feed.joined(world.a)
    assert world.tell(1, stored(0, 2)) and world.held() == [(2, 1)]


@settings(max_examples=200)
@given(st.integers(0, 1 << 30), st.integers(1, 60))
def test_any_order_of_messages_ends_in_the_truth(seed: int, messages: int) -> None:
    """Deltas lost, repeated and reordered, snapshots in between, engine restarts: whenever the feed says that it is in sync
    with all that was sent, the index has what the engine has, and one snapshot always brings it there."""
    rng = Random(seed)
    world = World()
    depth, seq, life, told_of = 0, 0, 1, False
    sent: list[CacheDelta] = []

    def snapshot() -> None:
        world.show(seq, *([stored(0, depth)] if depth else []), generation=f"g{life}")

    for _ in range(messages):
        match rng.randrange(10):
            case 0:
                life, seq, depth = life + 1, 0, 0
                told_of = False
            case 1 if not told_of:
                world.report(world.a, f"g{life}")
                told_of = True
            case 1:
                snapshot()
            case 2 if sent:
                world.feed.delta(rng.choice(sent))
            case _:
                seq += 1
                change: CacheChange
                if depth < 40 and rng.random() < 0.6:
                    longer = rng.randint(depth + 1, 40)
                    change, depth = stored(depth, longer), longer
                elif rng.random() < 0.9:
                    shorter = rng.randint(0, depth)
                    change, depth = Removed(KEYS[shorter:depth]), shorter
                else:
                    change, depth = Cleared(), 0
                delta = CacheDelta(A, f"g{life}", seq, (change,))
                sent.append(delta)
                if rng.random() < 0.8:
                    world.feed.delta(delta)
        world.index.sweep(rng.randrange(30_000))
        world.feed.step()
        state = world.feed._feeds[A]
        if world.feed.in_sync(A) and (state.generation, state.seq) == (f"g{life}", seq):
            assert world.held() == ([(depth, 1)] if depth else [])
    world.report(world.a, f"g{life}")
    for _ in range(2):  # the second time without what is kept behind a gap
        snapshot()
        while world.index.sweep(100_000) | world.feed.step():
            pass
    assert world.feed.in_sync(A) and world.held() == ([(depth, 1)] if depth else [])
