"""How a router follows one worker: what is passed on, what is refused, when it asks for the whole."""

from array import array

import pytest

from router.core.cache_delta import CacheDelta, CacheSnapshot, Stored
from router.core.types import WorkerId
from router.state.cache_codec import encode_delta
from router.state.feed import CALM_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, REPEAT_S, Feed
from router.state.frame import BadMessage
from router.state.memory import MemoryState
from router.state.redis_keys import Keys
from router.state.report_codec import PostedReport, encode_left, encode_report
from tests.state.engine import Engine, Picture

A = WorkerId("a")
EPOCH = 7


class Following:
    """A feed with a picture, and messages for it."""

    def __init__(self) -> None:
        self.picture = Picture()
        self.feed = Feed(A, Keys("p").of(A), 0.0)
        self.engine = Engine("a", MemoryState(Picture()), lambda: 0.0)

    def report(
        self, began_s: float, number: int = 1, age_s: float = 0.0, at: tuple[int, int] = (0, 0), ready: bool = True
    ) -> bool:
        data = encode_report(PostedReport(self.engine.report(), number, age_s, *at, ready))
        changed = self.feed.take_report(data, began_s, self.picture)
        self.feed.read_s = began_s
        return changed

    def begin(self, seq: int = 0) -> None:
        """Known, with an empty snapshot at `seq`."""
        self.report(0.0, at=(EPOCH, seq))
        assert self.feed.take_snapshot(CacheSnapshot(A, "g1", seq, ()), EPOCH, 0.0, self.picture)

    def entry(self, seq: int, generation: str = "g1", epoch: int = EPOCH, now_s: float = 0.0) -> CacheDelta | None:
        delta = CacheDelta(A, generation, seq, (Stored(None, array("Q", [seq])),))
        return self.feed.take_entry(b"%d-%d" % (epoch, seq), encode_delta(delta), now_s, self.picture)


def test_the_same_report_is_passed_on_once() -> None:
    """A value that did not change is no news."""
    at = Following()
    data = encode_report(PostedReport(at.engine.report(), 1, 0.0, 0, 0, False))
    assert at.feed.take_report(data, 1.0, at.picture) and not at.feed.take_report(data, 2.0, at.picture)
    assert at.feed.seen_s == 1.0


def test_reports_are_stamped_no_later_than_they_were_made() -> None:
    """By the reader's clock: before the read in front of this one, less the age that the sidecar tells."""
    at = Following()
    at.report(10.0, age_s=0.5)
    assert at.picture.reports[A].reported_at_s == 10.0 - REPEAT_S - 0.5
    at.report(10.1, age_s=0.25)
    assert at.picture.reports[A].reported_at_s == 10.0 - 0.25


def test_the_whole_is_wanted_when_there_is_one() -> None:
    """Not before the report says that a snapshot is there, and once per epoch."""
    at = Following()
    at.report(0.0, at=(EPOCH, 0), ready=False)
    assert not at.feed.wants_snapshot and at.feed.is_current
    at.report(1.0, at=(EPOCH, 0))
    assert at.feed.wants_load(1.0) and not at.feed.is_current
    assert at.feed.take_snapshot(CacheSnapshot(A, "g1", 4, ()), EPOCH, 1.0, at.picture)
    assert (at.feed.position, at.feed.is_followed, at.feed.is_current) == (b"7-4", True, True)
    at.report(2.0, at=(EPOCH, 4))
    assert not at.feed.wants_snapshot
    at.report(3.0, at=(EPOCH + 1, 0), ready=False)
    assert not at.feed.wants_snapshot and at.entry(5) is None, "deltas of the epoch before are of no use any more"
    assert not at.feed.check_head(3.0) and at.feed.wants_snapshot


def test_deltas_in_order_are_passed_on() -> None:
    """Each one moves the position."""
    at = Following()
    at.begin()
    assert [at.entry(seq) is not None for seq in (1, 2, 3)] == [True] * 3
    assert at.picture.keys[A] == {1, 2, 3} and at.feed.position == b"7-3"


def test_a_gap_wants_the_whole() -> None:
    """The listener hears of it; nothing more is passed on until the snapshot is there."""
    at = Following()
    at.begin()
    at.entry(2)
    assert at.feed.wants_snapshot and len(at.picture.refused) == 1
    assert at.entry(3) is None and len(at.picture.refused) == 1
    assert at.feed.take_snapshot(CacheSnapshot(A, "g1", 2, ()), EPOCH, 1.0, at.picture)
    assert at.entry(3) is not None


def test_another_generation_is_passed_on_at_once() -> None:
    """From its first delta on it needs no snapshot; in its middle it does, and the old cache is forgotten either way."""
    at = Following()
    at.begin()
    at.entry(1)
    assert at.entry(1, "g2", EPOCH + 1) is not None
    assert at.picture.keys[A] == {1} and at.feed.epoch == EPOCH + 1 and not at.feed.wants_snapshot
    assert at.entry(2, "g2", EPOCH + 1) is not None
    assert at.entry(5, "g3", EPOCH + 2) is None
    assert at.picture.keys[A] == set() and at.feed.wants_snapshot


def test_another_sidecar_of_the_same_engine_counts_anew() -> None:
    """Its numbers say nothing about those before: the whole is read."""
    at = Following()
    at.begin()
    at.entry(1)
    assert at.entry(2, "g1", EPOCH + 1) is None
    assert at.feed.wants_snapshot and at.picture.keys[A] == {1}


def test_an_outdated_snapshot_is_not_taken() -> None:
    """One from before the epoch of the newest report, or of the newest delta, is of another engine's life."""
    at = Following()
    at.report(0.0, at=(EPOCH, 3))
    assert not at.feed.take_snapshot(CacheSnapshot(A, "g0", 9, ()), EPOCH - 1, 0.0, at.picture)
    assert not at.picture.snapshots and not at.feed.wants_load(0.0) and at.feed.wants_load(FIRST_PAUSE_S)
    at.begin()
    at.entry(5, "g3", EPOCH + 2)
    assert not at.feed.take_snapshot(CacheSnapshot(A, "g1", 9, ()), EPOCH, 0.0, at.picture)


def test_no_snapshot_of_a_worker_that_is_not_known() -> None:
    """It was lost while the snapshot was on its way."""
    at = Following()
    at.report(0.0, at=(EPOCH, 0))
    at.feed.lose("gone", 1.0, at.picture)
    assert not at.feed.take_snapshot(CacheSnapshot(A, "g1", 0, ()), EPOCH, 1.0, at.picture)


def test_what_a_report_speaks_of_must_have_been_read() -> None:
    """Deltas that are missing without a later one to show it."""
    at = Following()
    at.begin()
    at.report(1.0, at=(EPOCH, 2))
    assert not at.feed.is_current
    at.entry(1)
    assert not at.feed.check_head(1.0) and at.feed.wants_snapshot
    at.feed.take_snapshot(CacheSnapshot(A, "g1", 2, ()), EPOCH, 1.0, at.picture)
    assert at.feed.check_head(1.0)


def test_loads_that_do_not_help_are_done_less_and_less() -> None:
    """A gap after a long calm is mended at once; gap after gap waits longer each time, up to a bound."""
    at = Following()
    at.begin()
    now_s, pauses = CALM_S, []
    for seq in range(0, 40, 4):
        at.entry(seq + 2, now_s=now_s)
        pause_s = 0.0
        while not at.feed.wants_load(now_s + pause_s):
            pause_s += FIRST_PAUSE_S / 2
        pauses.append(round(pause_s, 3))
        now_s += pause_s
        at.feed.take_snapshot(CacheSnapshot(A, "g1", seq + 2, ()), EPOCH, now_s, at.picture)
    assert pauses[0] == 0 and pauses[1:4] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE_S, abs=FIRST_PAUSE_S)
    at.entry(90, now_s=now_s + CALM_S)
    assert at.feed.wants_load(now_s + CALM_S)


def test_a_lost_worker_begins_anew() -> None:
    """It is told once, and a report makes it known again, from a snapshot."""
    at = Following()
    at.begin()
    at.entry(1)
    at.feed.lose("gone", 5.0, at.picture)
    at.feed.lose("gone", 6.0, at.picture)
    assert at.picture.lost_workers == [(A, "gone")] and at.feed.gone_since_s == 5.0
    assert not at.feed.is_followed
    at.report(7.0, at=(EPOCH, 1))
    assert at.feed.wants_snapshot


def test_leaving_is_told_at_once() -> None:
    """The sidecar's last word stands where its report was."""
    at = Following()
    at.begin()
    assert at.feed.take_report(encode_left(A), 1.0, at.picture)
    assert at.picture.lost_workers == [(A, "it is not watched any more")]
    assert not at.feed.take_report(encode_left(A), 2.0, at.picture)


def test_what_is_another_workers_is_refused() -> None:
    """A value under the wrong key never touches either worker."""
    at, b = Following(), WorkerId("b")
    other = Engine("b", MemoryState(Picture()), lambda: 0.0)
    at.begin()
    for data in (encode_report(PostedReport(other.report(), 1, 0.0, 0, 0, False)), encode_left(b)):
        with pytest.raises(BadMessage, match="another worker's"):
            at.feed.take_report(data, 1.0, at.picture)
    with pytest.raises(BadMessage, match="another worker's"):
        at.feed.take_entry(b"7-1", encode_delta(CacheDelta(b, "g1", 1, ())), 1.0, at.picture)
    with pytest.raises(BadMessage, match="another worker's"):
        at.feed.take_snapshot(CacheSnapshot(b, "g1", 1, ()), EPOCH, 1.0, at.picture)
    assert set(at.picture.keys) == {A} and at.feed.wants_snapshot


def test_entries_that_are_none_are_passed_over() -> None:
    """The next ones are read; what was lost comes with a snapshot."""
    at = Following()
    at.begin()
    with pytest.raises(BadMessage):
        at.feed.take_entry(b"7-1", b"nonsense", 1.0, at.picture)
    assert at.feed.position == b"7-1" and at.feed.wants_snapshot
    at.begin()
    with pytest.raises(BadMessage, match="no epoch"):
        at.feed.take_entry(b"x-1", encode_delta(CacheDelta(A, "g9", 1, ())), 1.0, at.picture)
