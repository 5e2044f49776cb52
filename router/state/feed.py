"""How far a router has followed one worker: its newest report, the last delta, and whether a snapshot is needed. Pure."""

from typing import Final

from router.core.cache_delta import CacheDelta, CacheSnapshot
from router.core.types import WorkerId
from router.state.cache_codec import decode_delta
from router.state.contract import StateListener
from router.state.frame import LEFT, BadMessage, kind_of
from router.state.redis_keys import WorkerKeys
from router.state.report_codec import decode_left, decode_report

FIRST_PAUSE_S: Final = 0.1  # between two loads of a snapshot; doubled while they do not help
LONGEST_PAUSE_S: Final = 2.0
CALM_S: Final = 10.0  # without a gap, after which a load may follow at once again
REPEAT_S: Final = 1.0  # a sidecar that has nothing new to report repeats its last report this often
NEVER_S: Final = float("-inf")


class Feed:
    """Everything a router knows of the reading of one worker.

    `position` is the id of the last stream entry that was taken in; entries behind it are read once there is one.
    """

    __slots__ = (
        "_last_report",
        "_least_epoch",
        "_load_at_s",
        "_loaded_at_s",
        "_pause_s",
        "_prefix",
        "epoch",
        "generation",
        "gone_since_s",
        "has_snapshot",
        "head_epoch",
        "head_seq",
        "is_known",
        "keys",
        "position",
        "read_s",
        "seen_s",
        "seq",
        "wants_snapshot",
        "worker",
    )

    def __init__(self, worker: WorkerId, keys: WorkerKeys, now_s: float) -> None:
        self.worker = worker
        self.keys = keys
        self.is_known = False  # the listener has a valid report
        self.seen_s = now_s  # when the newest report was seen; while none was, since when it is waited for
        self.gone_since_s = now_s
        self.read_s = NEVER_S  # when the last read of its report began
        self.head_epoch = 0  # where the worker's deltas stood at its newest report
        self.head_seq = 0
        self.has_snapshot = False  # of the head's epoch, says that report
        self.epoch = 0  # of what was taken in
        self.seq = 0
        self.generation = ""
        self.position = b""
        self.wants_snapshot = False
        self._prefix = b""  # of ids in this epoch
        self._last_report = b""
        self._least_epoch = 0  # a snapshot of an earlier one is outdated
        self._load_at_s = NEVER_S
        self._loaded_at_s = NEVER_S
        self._pause_s = FIRST_PAUSE_S

    @property
    def is_followed(self) -> bool:
        return bool(self.position) and not self.wants_snapshot

    @property
    def is_current(self) -> bool:
        """All that the newest report speaks of was taken in."""
        if self.wants_snapshot or self.read_s == NEVER_S:
            return False
        return not self.has_snapshot or (self.epoch, self.seq) >= (self.head_epoch, self.head_seq)

    def wants_load(self, now_s: float) -> bool:
        return self.wants_snapshot and now_s >= self._load_at_s

    # Reports

    def take_report(self, data: bytes, began_s: float, listener: StateListener) -> bool:
        """A value as it was read; `began_s` is when that read began.

        The report was posted after the read before it began, and is stamped with that: no later than it was made. The
        first one may have been there for as long as it takes until it is posted again.
        True when it is another one than before. Raises BadMessage.
        """
        if data == self._last_report:
            return False
        self._last_report = data
        if kind_of(data) == LEFT:
            if decode_left(data) != self.worker:
                raise BadMessage("the report is another worker's")
            self.lose("it is not watched any more", began_s, listener)
            return True
        posted = decode_report(data)
        report = posted.report
        if report.worker != self.worker:
            raise BadMessage("the report is another worker's")
        before_s = self.read_s if self.read_s > NEVER_S else began_s - REPEAT_S
        report.reported_at_s = before_s - posted.age_s
        self.seen_s = began_s
        self.is_known = True
        self.head_epoch, self.head_seq, self.has_snapshot = posted.epoch, posted.seq, posted.has_snapshot
        self._least_epoch = max(self._least_epoch, posted.epoch)
        listener.report(report)
        if posted.has_snapshot and not self.position:
            self.want_snapshot(began_s)
        return True

    def lose(self, reason: str, now_s: float, listener: StateListener) -> None:
        """Forgets how far it was followed: a worker that comes back is read from a snapshot."""
        if self.is_known:
            self.is_known = False
            self.gone_since_s = now_s
            listener.lost(self.worker, reason)
        self.head_epoch = self.epoch = self.seq = self._least_epoch = 0
        self.position = self._prefix = b""
        self.wants_snapshot = self.has_snapshot = False

    # Deltas

    def take_entry(self, entry_id: bytes, data: bytes, now_s: float, listener: StateListener) -> CacheDelta | None:
        """The next entry of the stream; the delta where it was passed on. Raises BadMessage."""
        if self.wants_snapshot:
            return None  # it is read again from behind the snapshot
        self.position = entry_id
        try:
            delta = decode_delta(data)
            if delta.worker != self.worker:
                raise BadMessage("the delta is another worker's")
        except BadMessage:
            self.want_snapshot(now_s)
            raise
        if not entry_id.startswith(self._prefix):
            return self._take_first(entry_id, delta, now_s, listener)
        if self.epoch < self._least_epoch:
            return None  # a report has told that the engine or its sidecar is another one by now
        follows = delta.seq == self.seq + 1
        self.seq = delta.seq
        if not listener.delta(delta) or not follows:
            self.want_snapshot(now_s)
        return delta

    def _take_first(self, entry_id: bytes, delta: CacheDelta, now_s: float, listener: StateListener) -> CacheDelta | None:
        """An entry of another epoch: the engine is another one, or else its sidecar, which counts anew."""
        epoch = epoch_of(entry_id)
        if epoch < self._least_epoch:
            return None
        self._least_epoch = epoch
        if delta.generation == self.generation or not listener.delta(delta) or delta.seq != 1:
            self.want_snapshot(now_s)
            return None
        self._begin(epoch, delta.generation)
        self.seq = delta.seq
        return delta

    def check_head(self, now_s: float) -> bool:
        """To be called when all entries that the newest report speaks of were read. False: some are missing."""
        if self.is_followed and (self.epoch, self.seq) < (self.head_epoch, self.head_seq):
            self.want_snapshot(now_s)
            return False
        return True

    # Snapshots

    def want_snapshot(self, now_s: float) -> None:
        if self.wants_snapshot:
            return
        self.wants_snapshot = True
        if now_s - self._loaded_at_s >= CALM_S:
            self._pause_s = FIRST_PAUSE_S
            self._load_at_s = now_s
        else:
            self.put_off(now_s)

    def put_off(self, now_s: float) -> None:
        """There is no usable snapshot, or loading one has just not helped."""
        self._load_at_s = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)

    def take_snapshot(self, snapshot: CacheSnapshot, epoch: int, now_s: float, listener: StateListener) -> bool:
        """False for an outdated one. Raises BadMessage."""
        if snapshot.worker != self.worker:
            raise BadMessage("the snapshot is another worker's")
        if epoch < self._least_epoch or not self.is_known:
            self.put_off(now_s)
            return False
        listener.snapshot(snapshot)
        self._begin(epoch, snapshot.generation)
        self.seq = snapshot.seq
        self.position = b"%d-%d" % (epoch, snapshot.seq)
        self.wants_snapshot = False
        self._loaded_at_s = now_s
        return True

    def _begin(self, epoch: int, generation: str) -> None:
        self.epoch = epoch
        self.generation = generation
        self._prefix = b"%d-" % epoch


def epoch_of(entry_id: bytes) -> int:
    """Raises BadMessage."""
    try:
        return int(entry_id.partition(b"-")[0])
    except ValueError:
        raise BadMessage("an entry's id has no epoch") from None
