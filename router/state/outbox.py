"""What one worker's sidecar has told and Redis does not have yet. Pure; what writes it is redis_publisher.

Deltas that come within one interval are joined into one, so the outbox counts them anew: its own `seq` is gapless over
what it hands out, and the snapshot is numbered to fit. Where something could not be kept it leaves out a number, by
which every reader notices, and has a snapshot written.

A new generation, and a new sidecar, begins an epoch: a number larger than all before. Redis takes stream entries only
in the order of their ids, EPOCH-SEQ, so that writing one again after a time-out does no harm.
"""

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from router.core.cache_delta import CacheChange, CacheDelta, CacheSnapshot
from router.core.types import WorkerId, WorkerReport
from router.state.cache_codec import CHANGE, MAX_DELTA_BYTES, count_blocks, encode_delta
from router.state.contract import SnapshotSource
from router.state.frame import BadMessage

ASK_AGAIN_S: Final = 1.0  # for a snapshot that the sidecar could not give
NEVER_S: Final = float("inf")
TAKEOVER_S: Final = 10.0  # two sidecars of one worker take turns at this pace, rather than at every write


class Outcome(Enum):
    """What became of writing a stream entry."""

    WRITTEN = auto()
    TOO_LATE = auto()  # the stream has a later id
    REFUSED = auto()  # it is not in the stream
    UNKNOWN = auto()  # no answer


class Entry:
    """One stream entry; `tried` once it was written without knowing whether it arrived."""

    __slots__ = ("blocks", "data", "seq", "tried")

    def __init__(self, seq: int, data: bytes, blocks: int) -> None:
        self.seq = seq
        self.data = data
        self.blocks = blocks
        self.tried = False


class Outbox:
    """`epoch` and `seq` name the last delta handed out; `first_epoch_ms` is the wall clock, to be later than all before."""

    def __init__(self, worker: WorkerId, max_blocks: int, max_deltas: int, first_epoch_ms: int) -> None:
        self.worker = worker
        self.report: WorkerReport | None = None
        self.report_is_new = False
        self.epoch = first_epoch_ms
        self.seq = 0
        self.has_snapshot = False  # one of this epoch is in Redis
        self.displaced = False  # another sidecar writes the stream
        self.snapshot_due_s = NEVER_S
        self.entries: deque[Entry] = deque()  # not known to be in Redis, in order
        self.dropped_blocks = 0
        self._max_blocks = max_blocks
        self._max_deltas = max_deltas
        self._source: SnapshotSource | None = None
        self._generation: str | None = None
        self._heard = 0  # the sidecar's number of the last delta
        self._pending: list[CacheChange] = []
        self._blocks = 0  # in pending and entries
        self._deltas_since_snapshot = 0
        self._takeover_s = float("-inf")

    # In

    def put_report(self, report: WorkerReport, now_s: float) -> None:
        """A new generation makes readers forget the cache, so that they need a snapshot even if no delta comes."""
        if self.report is not None and report.generation != self.report.generation:
            self.want_snapshot(now_s)
        self.report = report
        self.report_is_new = True

    def put_delta(self, delta: CacheDelta, now_s: float) -> None:
        if delta.generation != self._generation:
            self._begin(delta.generation, now_s)
            if delta.seq != 1:
                self._leave_gap(now_s)
        elif delta.seq <= self._heard:
            return
        elif delta.seq != self._heard + 1:
            self._leave_gap(now_s)
        self._heard = delta.seq
        blocks = weight(delta.changes)
        if self._blocks + blocks > self._max_blocks:
            self._drop(blocks, now_s)
            return
        self._pending += delta.changes
        self._blocks += blocks

    def follow(self, source: SnapshotSource, now_s: float) -> None:
        self._source = source
        self.snapshot_due_s = now_s

    def _begin(self, generation: str, now_s: float) -> None:
        self._generation = generation
        self._heard = 0
        self._renew()
        self.seq = 0
        self.entries.clear()
        self._pending = []
        self._blocks = 0
        self.want_snapshot(now_s)

    def _renew(self) -> None:
        self.epoch += 1
        self.has_snapshot = False
        self.displaced = False

    def _drop(self, blocks: int, now_s: float) -> None:
        self.dropped_blocks += self._blocks + blocks
        self.entries.clear()
        self._pending = []
        self._blocks = 0
        self._leave_gap(now_s)

    def _leave_gap(self, now_s: float) -> None:
        self.pack(now_s)
        self.seq += 1
        self.want_snapshot(now_s)

    # Out

    def pack(self, now_s: float) -> None:
        """Moves what was told since into `entries`."""
        if not self._pending:
            return
        changes, self._pending = self._pending, []
        for group in groups(changes):
            try:
                data = encode_delta(CacheDelta(self.worker, self._generation or "", self.seq + 1, group))
            except BadMessage:
                self._drop(0, now_s)
                return
            self.seq += 1
            self._deltas_since_snapshot += 1
            self.entries.append(Entry(self.seq, data, weight(group)))
        if self._deltas_since_snapshot >= self._max_deltas // 2:  # well before Redis trims those behind the last one
            self.want_snapshot(now_s)

    def settle(self, entry: Entry, outcome: Outcome, now_s: float) -> None:
        """What became of writing an entry; entries are settled in their order."""
        if self.displaced or entry not in self.entries:
            return
        if outcome is Outcome.WRITTEN and entry is not self.entries[0]:
            self.want_snapshot(now_s)  # those before it can never be written now
        if outcome is Outcome.TOO_LATE and not entry.tried:
            self.displaced = True
        elif outcome is Outcome.WRITTEN or outcome is Outcome.TOO_LATE:  # too late, but tried: it had arrived before
            self._forget_until(entry)
        elif outcome is Outcome.UNKNOWN:
            entry.tried = True

    def _forget_until(self, entry: Entry) -> None:
        while self.entries:
            oldest = self.entries.popleft()
            self._blocks -= oldest.blocks
            if oldest is entry:
                return

    def may_take_over(self, now_s: float) -> bool:
        return self.displaced and now_s - self._takeover_s >= TAKEOVER_S

    def take_over(self, last_epoch: int, now_s: float) -> None:
        """Begins an epoch after that of the stream's last entry, with what was not written yet."""
        self._takeover_s = now_s
        self.epoch = max(self.epoch, last_epoch)
        self._renew()
        self.want_snapshot(now_s)

    def want_snapshot(self, due_s: float) -> None:
        self.snapshot_due_s = min(self.snapshot_due_s, due_s) if self._source is not None else NEVER_S

    def snapshot(self, now_s: float) -> CacheSnapshot | None:
        """Asks the sidecar when one is due; to be written behind all `entries`. None: not now."""
        if self.snapshot_due_s > now_s or self._source is None:
            return None
        self.snapshot_due_s = now_s + ASK_AGAIN_S
        told = self._source()
        if told is None:
            return None
        if told.generation != self._generation:
            self._begin(told.generation, now_s)
            self._heard = told.seq
        elif told.seq < self._heard:
            return None
        elif told.seq > self._heard:
            self._heard = told.seq
            self._leave_gap(now_s)
        self.pack(now_s)
        self.snapshot_due_s = now_s + ASK_AGAIN_S
        return CacheSnapshot(self.worker, told.generation, self.seq, told.runs)

    def wrote_snapshot(self, snapshot: CacheSnapshot, epoch: int) -> None:
        if epoch != self.epoch:
            return  # something began meanwhile
        if not self.has_snapshot:
            self.has_snapshot = True
            self.report_is_new = True  # it tells readers so
        self.snapshot_due_s = NEVER_S
        self._deltas_since_snapshot = self.seq - snapshot.seq


def weight(changes: Sequence[CacheChange]) -> int:
    """Blocks, and one for each change, as those without blocks take room too."""
    return count_blocks(changes) + len(changes)


def groups(changes: Sequence[CacheChange]) -> list[tuple[CacheChange, ...]]:
    """Cut between changes so that each group fits a delta, unless a single change does not."""
    found: list[tuple[CacheChange, ...]] = []
    group: list[CacheChange] = []
    room = MAX_DELTA_BYTES // 2
    for change in changes:
        size = CHANGE.size + 8 * count_blocks((change,))
        if group and size > room:
            found.append(tuple(group))
            group, room = [], MAX_DELTA_BYTES // 2
        group.append(change)
        room -= size
    found.append(tuple(group))
    return found
