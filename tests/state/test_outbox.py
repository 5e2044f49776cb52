"""What waits for Redis: joined, numbered without gaps, bounded, and healed by snapshots. Redis is a list of ids here."""

import random
from array import array

import pytest

from router.core.cache_delta import CacheDelta, CacheSnapshot, Removed, Stored
from router.core.types import WorkerId
from router.state.cache_codec import MAX_DELTA_BYTES, count_blocks, decode_delta
from router.state.memory import MemoryState
from router.state.outbox import ASK_AGAIN_S, NEVER_S, TAKEOVER_S, Entry, Outbox, Outcome, groups
from tests.state.engine import Engine, Picture

WORKER = WorkerId("a")
EPOCH = 1000


class Stream:
    """Redis as an outbox sees it: entries by id in order, and one snapshot."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, bytes]] = []
        self.snapshot: tuple[int, CacheSnapshot] | None = None

    def write(self, epoch: int, entry: Entry) -> Outcome:
        if self.entries and (epoch, entry.seq) <= self.entries[-1][:2]:
            return Outcome.TOO_LATE
        self.entries.append((epoch, entry.seq, entry.data))
        return Outcome.WRITTEN

    def flush(self, outbox: Outbox, now_s: float) -> None:
        """One round of a publisher with a Redis that works."""
        snapshot = outbox.snapshot(now_s)
        outbox.pack(now_s)
        epoch = outbox.epoch
        for entry in list(outbox.entries):
            outbox.settle(entry, self.write(epoch, entry), now_s)
        if snapshot is not None:
            self.snapshot = (epoch, snapshot)
            outbox.wrote_snapshot(snapshot, epoch)

    def keys(self) -> set[int]:
        """What a router that starts now makes of it."""
        assert self.snapshot is not None
        epoch, snapshot = self.snapshot
        picture = Picture()
        picture.reports[WORKER] = Engine("a", MemoryState(picture), lambda: 0.0).report()
        picture.snapshot(snapshot)
        for entry_epoch, seq, data in self.entries:
            if (entry_epoch, seq) > (epoch, snapshot.seq):
                assert picture.delta(decode_delta(data)), f"a gap before {entry_epoch}-{seq}"
        return picture.keys[WORKER]


class Sidecar:
    """An engine whose deltas go into an outbox at a time that tests set."""

    def __init__(self, max_blocks: int = 10_000, max_deltas: int = 512, epoch: int = EPOCH) -> None:
        self.outbox = Outbox(WORKER, max_blocks, max_deltas, epoch)
        self.now_s = 0.0
        self.engine = Engine("a", MemoryState(Picture()), lambda: self.now_s)
        self.outbox.follow(self.engine.snapshot, 0.0)

    def work(self, blocks: int = 8) -> None:
        self.outbox.put_delta(self.engine.change(blocks), self.now_s)


def test_deltas_of_an_interval_become_one() -> None:
    """In the order of their changes, and numbered anew from 1."""
    sidecar, stream = Sidecar(), Stream()
    stream.flush(sidecar.outbox, 0.0)
    for round_ in range(1, 4):
        for _ in range(5):
            sidecar.work()
        stream.flush(sidecar.outbox, float(round_))
    assert [(epoch, seq) for epoch, seq, _ in stream.entries] == [(EPOCH + 1, 1), (EPOCH + 1, 2), (EPOCH + 1, 3)]
    assert stream.keys() == sidecar.engine.keys
    assert not sidecar.outbox.entries


def test_nothing_told_is_nothing_written() -> None:
    """No empty deltas, and no snapshot before one is due."""
    sidecar, stream = Sidecar(), Stream()
    stream.flush(sidecar.outbox, 0.0)
    stream.flush(sidecar.outbox, 100.0)
    assert (stream.entries, sidecar.outbox.seq, sidecar.outbox.snapshot_due_s) == ([], 0, NEVER_S)


def test_a_snapshot_is_due_before_its_deltas_are_trimmed() -> None:
    """After half of the deltas that Redis keeps."""
    sidecar, stream = Sidecar(max_deltas=16), Stream()
    stream.flush(sidecar.outbox, 0.0)
    for number in range(30):
        sidecar.work()
        stream.flush(sidecar.outbox, float(number))
        assert stream.snapshot is not None and sidecar.outbox.seq - stream.snapshot[1].seq <= 9
    assert stream.keys() == sidecar.engine.keys


def test_what_redis_does_not_take_is_bounded_and_healed() -> None:
    """Beyond the bound everything waiting is dropped and counted; a number is left out and a snapshot written."""
    sidecar, stream = Sidecar(max_blocks=100), Stream()
    stream.flush(sidecar.outbox, 0.0)
    sidecar.work()
    stream.flush(sidecar.outbox, 1.0)
    for _ in range(40):
        sidecar.work()
        sidecar.outbox.pack(sidecar.now_s)
        assert sum(entry.blocks for entry in sidecar.outbox.entries) <= 100
    assert sidecar.outbox.dropped_blocks > 100
    stream.flush(sidecar.outbox, 2.0)
    assert stream.keys() == sidecar.engine.keys
    sidecar.work()
    stream.flush(sidecar.outbox, 3.0)
    assert stream.keys() == sidecar.engine.keys


def test_a_new_generation_is_a_new_epoch() -> None:
    """What waited of the old one is dropped, numbers begin at 1, a snapshot follows at once."""
    sidecar, stream = Sidecar(), Stream()
    stream.flush(sidecar.outbox, 0.0)
    sidecar.work()
    sidecar.engine.restart()
    sidecar.work()
    assert not sidecar.outbox.has_snapshot
    stream.flush(sidecar.outbox, 1.0)
    assert [(epoch, seq) for epoch, seq, _ in stream.entries] == [(EPOCH + 2, 1)]
    assert stream.snapshot is not None and stream.snapshot[1].generation == "g1'"
    assert stream.keys() == sidecar.engine.keys and sidecar.outbox.has_snapshot


def test_a_generation_that_begins_in_its_middle_leaves_a_gap() -> None:
    """Its first deltas were missed: nobody may take the next one for the first."""
    sidecar, stream = Sidecar(), Stream()
    stream.flush(sidecar.outbox, 0.0)
    sidecar.engine.restart()
    sidecar.engine.change()
    sidecar.work()
    stream.flush(sidecar.outbox, 1.0)
    assert [seq for _, seq, _ in stream.entries] == [2] and stream.keys() == sidecar.engine.keys


def test_a_generation_may_show_in_a_snapshot_first() -> None:
    """A sidecar that has just restarted gives its picture before there is a delta."""
    sidecar, stream = Sidecar(), Stream()
    sidecar.engine.change()
    stream.flush(sidecar.outbox, 0.0)
    assert stream.snapshot is not None and stream.snapshot[1].seq == 0
    sidecar.work()
    stream.flush(sidecar.outbox, 1.0)
    assert stream.keys() == sidecar.engine.keys


@pytest.mark.parametrize("lost", [1, 3])
def test_a_gap_of_the_sidecar_is_passed_on_and_healed(lost: int) -> None:
    """Deltas that never came leave a number out, for readers that are there already; new ones read the snapshot."""
    sidecar, stream = Sidecar(), Stream()
    stream.flush(sidecar.outbox, 0.0)
    for _ in range(lost):
        sidecar.engine.change()
    sidecar.work()
    stream.flush(sidecar.outbox, 1.0)
    assert [seq for _, seq, _ in stream.entries] == [2]
    assert stream.keys() == sidecar.engine.keys


def test_a_snapshot_ahead_of_the_deltas_leaves_a_gap() -> None:
    """What the sidecar knows and never told reaches those that follow, too."""
    sidecar, stream = Sidecar(), Stream()
    stream.flush(sidecar.outbox, 0.0)
    sidecar.engine.change()
    sidecar.outbox.want_snapshot(1.0)
    stream.flush(sidecar.outbox, 1.0)
    sidecar.work()
    stream.flush(sidecar.outbox, 2.0)
    assert [seq for _, seq, _ in stream.entries] == [2]
    assert stream.keys() == sidecar.engine.keys


def test_repeated_deltas_change_nothing() -> None:
    """A sidecar that tells twice is heard once."""
    sidecar, stream = Sidecar(), Stream()
    delta = sidecar.engine.change()
    sidecar.outbox.put_delta(delta, 0.0)
    sidecar.outbox.put_delta(delta, 0.0)
    stream.flush(sidecar.outbox, 0.0)
    assert len(stream.entries) == 1 and stream.keys() == sidecar.engine.keys


def test_no_snapshot_while_the_sidecar_has_none_or_an_old_one() -> None:
    """It is asked again after a pause."""
    sidecar = Sidecar()
    sidecar.engine.knows_its_cache = False
    assert sidecar.outbox.snapshot(0.0) is None
    sidecar.engine.knows_its_cache = True
    assert sidecar.outbox.snapshot(ASK_AGAIN_S / 2) is None
    assert sidecar.outbox.snapshot(ASK_AGAIN_S) is not None
    old = sidecar.engine.snapshot()
    sidecar.work()
    sidecar.outbox.follow(lambda: old, 5.0)
    assert sidecar.outbox.snapshot(5.0) is None


def test_without_a_source_there_is_no_snapshot() -> None:
    """A worker that nobody follows asks for none."""
    outbox = Outbox(WORKER, 100, 16, EPOCH)
    outbox.want_snapshot(0.0)
    assert outbox.snapshot(1e9) is None


def test_a_write_without_an_answer_is_done_again_without_harm() -> None:
    """An entry that had arrived is refused as too late, and counts as written."""
    sidecar, stream = Sidecar(), Stream()
    stream.flush(sidecar.outbox, 0.0)
    sidecar.work()
    sidecar.outbox.pack(0.0)
    (entry,) = sidecar.outbox.entries
    stream.write(sidecar.outbox.epoch, entry)
    sidecar.outbox.settle(entry, Outcome.UNKNOWN, 0.0)
    sidecar.work()
    stream.flush(sidecar.outbox, 1.0)
    assert [seq for _, seq, _ in stream.entries] == [1, 2]
    assert stream.keys() == sidecar.engine.keys and not sidecar.outbox.displaced


def test_a_refused_write_is_done_again_or_healed() -> None:
    """Refused alone it waits; where a later one was taken it can never be written, and a snapshot is."""
    sidecar, stream = Sidecar(), Stream()
    stream.flush(sidecar.outbox, 0.0)
    sidecar.work()
    sidecar.outbox.pack(0.0)
    sidecar.work()
    sidecar.outbox.pack(0.0)
    first, second = sidecar.outbox.entries
    sidecar.outbox.settle(first, Outcome.REFUSED, 0.0)
    assert len(sidecar.outbox.entries) == 2 and sidecar.outbox.snapshot_due_s == NEVER_S
    sidecar.outbox.settle(second, stream.write(sidecar.outbox.epoch, second), 0.0)
    assert not sidecar.outbox.entries and sidecar.outbox.snapshot_due_s == 0.0
    stream.flush(sidecar.outbox, 1.0)
    assert stream.keys() == sidecar.engine.keys


def test_an_entry_that_was_dropped_meanwhile_is_not_settled() -> None:
    """An answer that comes late changes nothing."""
    sidecar = Sidecar(max_blocks=20)
    sidecar.work()
    sidecar.outbox.pack(0.0)
    (entry,) = sidecar.outbox.entries
    sidecar.work(64)
    sidecar.outbox.settle(entry, Outcome.WRITTEN, 0.0)
    assert not sidecar.outbox.entries


def test_of_two_sidecars_one_takes_over_at_a_time() -> None:
    """The one that was displaced waits, then begins a later epoch; what it could not write is not lost."""
    stream, old, new = Stream(), Sidecar(), Sidecar(epoch=EPOCH * 2)
    stream.flush(old.outbox, 0.0)
    new.engine.rng = random.Random(2)
    new.work()
    stream.flush(new.outbox, 0.0)
    old.work()
    stream.flush(old.outbox, 0.0)
    assert old.outbox.displaced and old.outbox.may_take_over(0.0)
    old.outbox.take_over(stream.entries[-1][0], 0.0)
    old.work()
    stream.flush(old.outbox, 1.0)
    assert stream.entries[-1][0] > EPOCH * 2 and stream.keys() == old.engine.keys
    new.work()
    stream.flush(new.outbox, 1.0)
    new.outbox.take_over(stream.entries[-1][0], 1.0)
    old.work()
    stream.flush(new.outbox, 2.0)
    stream.flush(old.outbox, 2.0)
    assert old.outbox.displaced and not old.outbox.may_take_over(2.0)
    assert old.outbox.may_take_over(TAKEOVER_S)


def test_a_snapshot_of_an_epoch_that_is_over_does_not_count() -> None:
    """It was on its way when the engine restarted."""
    sidecar = Sidecar()
    snapshot = sidecar.outbox.snapshot(0.0)
    assert snapshot is not None
    epoch = sidecar.outbox.epoch
    sidecar.engine.restart()
    sidecar.work()
    sidecar.outbox.wrote_snapshot(snapshot, epoch)
    assert not sidecar.outbox.has_snapshot


def test_large_changes_are_split_between_changes() -> None:
    """Each group fits a delta, nothing is lost or reordered; a change too large for any is replaced by a snapshot."""
    changes = [Removed(array("Q", range(size))) for size in (30_000, 30_000, 30_000, 5, 60_000)]
    cut = groups(changes)
    assert [count_blocks(group) for group in cut] == [60_000, 30_005, 60_000]
    assert [change for group in cut for change in group] == changes
    sidecar = Sidecar(max_blocks=10**6)
    sidecar.outbox.snapshot(0.0)
    too_large = Stored(None, array("Q", bytes(MAX_DELTA_BYTES)))
    sidecar.outbox.put_delta(CacheDelta(WORKER, "g1", 1, (Stored(None, array("Q", [1])), too_large)), 5.0)
    sidecar.outbox.pack(5.0)
    assert not sidecar.outbox.entries and sidecar.outbox.dropped_blocks > MAX_DELTA_BYTES // 8
    assert sidecar.outbox.snapshot_due_s <= 5.0


def test_a_report_of_another_generation_brings_a_snapshot() -> None:
    """Readers forget the cache when they see it, whether a delta comes or not."""
    sidecar, stream = Sidecar(), Stream()
    sidecar.outbox.put_report(sidecar.engine.report(), 0.0)
    stream.flush(sidecar.outbox, 0.0)
    sidecar.engine.restart()
    sidecar.outbox.put_report(sidecar.engine.report(), 1.0)
    stream.flush(sidecar.outbox, 1.0)
    assert stream.snapshot is not None and stream.snapshot[1].generation == "g1'" and stream.keys() == set()


def test_a_report_is_new_until_it_is_taken() -> None:
    """And again when the first snapshot of an epoch is there, so that readers learn of it."""
    sidecar, stream = Sidecar(), Stream()
    sidecar.outbox.put_report(sidecar.engine.report(), 0.0)
    assert sidecar.outbox.report_is_new
    sidecar.outbox.report_is_new = False
    stream.flush(sidecar.outbox, 0.0)
    assert sidecar.outbox.report_is_new


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_it_comes_right(seed: int) -> None:
    """Random work, restarts, lost deltas, failing writes: after a few good rounds Redis holds the truth."""
    rng = random.Random(seed)
    sidecar, stream = Sidecar(max_blocks=200, max_deltas=16), Stream()
    for step in range(200):
        sidecar.now_s = step * 0.1
        match rng.randrange(12):
            case 0:
                sidecar.engine.restart()
            case 1:
                sidecar.engine.change()
            case 2 | 3:
                sidecar.outbox.pack(sidecar.now_s)
                for entry in list(sidecar.outbox.entries):
                    outcome = rng.choice((Outcome.REFUSED, Outcome.UNKNOWN, None))
                    if outcome is None or (outcome is Outcome.UNKNOWN and rng.random() < 0.5):
                        written = stream.write(sidecar.outbox.epoch, entry)
                        outcome = outcome or written
                    sidecar.outbox.settle(entry, outcome, sidecar.now_s)
                sidecar.outbox.want_snapshot(sidecar.now_s)
            case 4 | 5 | 6:
                stream.flush(sidecar.outbox, sidecar.now_s)
            case _:
                sidecar.work()
    sidecar.work()
    for extra_s in (0.0, 1.1, 2.2):
        stream.flush(sidecar.outbox, 20.0 + extra_s)
    assert stream.keys() == sidecar.engine.keys
