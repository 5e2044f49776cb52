"""One worker's writing to Redis: what is due, as commands, and what their answers mean."""

import logging
from typing import Any, Final
from zlib import crc32

from redis.exceptions import ResponseError

from router.core.cache_delta import CacheSnapshot
from router.core.types import WorkerId, WorkerReport
from router.settings import FleetSettings, StateSettings
from router.state.batch import Batch, OnAnswer
from router.state.cache_codec import count_blocks, cut, encode_snapshot
from router.state.feed import REPEAT_S
from router.state.frame import BadMessage
from router.state.outbox import Entry, Outbox, Outcome
from router.state.redis_keys import Keys, lane_of
from router.state.report_codec import PostedReport, encode_left, encode_report

LOG = logging.getLogger("warmline.state")
ANNOUNCE_S: Final = REPEAT_S  # a worker is announced, its keys are kept, and its last report is repeated
TOO_LATE: Final = "equal or smaller"  # XADD: the id is not larger than the stream's last one


class Post:
    """A worker's outbox with its place in Redis.

    Readers rely on the order of its commands: deltas, then the snapshot, then the report that tells where they stand.
    """

    def __init__(
        self, worker: WorkerId, settings: StateSettings, fleet: FleetSettings, keys: Keys, now_s: float, wall_s: float
    ) -> None:
        self.worker = worker
        self.lane = lane_of(worker)
        self.phase = crc32(worker.encode(errors="replace")) / 2**32  # spreads what a fleet does over an interval
        self.outbox = Outbox(worker, settings.max_pending_blocks, settings.max_stream_deltas, int(wall_s * 1000))
        self.written_deltas = 0
        self.written_snapshots = 0
        self.has_left = False
        self.unwritable = 0  # reports and snapshots that no message can carry
        self.leftover_ttl_ms = int(settings.leftover_ttl_s * 1000)
        self.keys = keys.of(worker)
        self._settings = settings
        self._report_ttl_ms = int(fleet.report_ttl_s * 1000)
        self._registry = keys.workers
        self._announce_at_s = now_s
        self._announced = False
        self._number = 0
        self._is_poisoned = False  # somebody keeps something else under our keys
        self._complaint = ""

    def plan_deltas(self, batch: Batch, now_s: float) -> None:
        if self._is_poisoned:
            self._is_poisoned = False
            batch.add(self.lane, ("UNLINK", self.keys.stream, self.keys.snapshot, self.keys.new_snapshot))
        outbox = self.outbox
        outbox.pack(now_s)
        if outbox.may_take_over(now_s):
            command = ("XREVRANGE", self.keys.stream, "+", "-", "COUNT", 1)
            batch.add(self.lane, command, lambda answer: self._take_over(answer, now_s))
        if not outbox.displaced:
            for entry in outbox.entries:
                self._plan_entry(batch, entry, now_s)

    def plan_words(self, batch: Batch, now_s: float, wall_s: float) -> None:
        """The report, where it is new or due again, and the announcement."""
        outbox = self.outbox
        announces = now_s >= self._announce_at_s
        if outbox.report is not None and (outbox.report_is_new or announces):
            self._plan_report(batch, outbox.report, now_s)
        if announces:
            # the second time at the worker's own phase, then at every interval
            self._announce_at_s = now_s + ANNOUNCE_S * (1.0 if self._announced else 0.5 + self.phase / 2)
            self._announced = True
            self._plan_announcement(batch, now_s, wall_s)

    def _plan_entry(self, batch: Batch, entry: Entry, now_s: float) -> None:
        outbox = self.outbox
        epoch = outbox.epoch

        def settle(answer: Any) -> None:
            if epoch == outbox.epoch:
                outbox.settle(entry, self._outcome(answer), now_s)

        limit = self._settings.max_stream_deltas
        command = ("XADD", self.keys.stream, "MAXLEN", "~", limit, f"{epoch}-{entry.seq}", "d", entry.data)
        batch.add(self.lane, command, settle, len(entry.data))

    def _outcome(self, answer: Any) -> Outcome:
        if not isinstance(answer, Exception):
            self.written_deltas += 1
            return Outcome.WRITTEN
        if not isinstance(answer, ResponseError):
            return Outcome.UNKNOWN
        self.notice_poison(answer)
        return Outcome.TOO_LATE if TOO_LATE in str(answer) else Outcome.REFUSED

    def notice_poison(self, answer: Any) -> None:
        if isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE"):
            self._is_poisoned = True

    def _take_over(self, answer: Any, now_s: float) -> None:
        """The answer tells the last entry of the stream."""
        if isinstance(answer, Exception):
            self.notice_poison(answer)
            return
        try:
            last_epoch = int(answer[0][0].partition(b"-")[0]) if answer else 0
        except (ValueError, TypeError, LookupError, AttributeError):
            last_epoch = 0
        self.outbox.take_over(last_epoch, now_s)
        self._complain("another sidecar writes its cache too, or the clock was set back; taking over")

    def _plan_report(self, batch: Batch, report: WorkerReport, now_s: float) -> None:
        outbox = self.outbox
        self._number += 1
        outbox.report_is_new = False
        age_s = max(now_s - report.reported_at_s, 0.0)
        try:
            data = encode_report(PostedReport(report, self._number, age_s, outbox.epoch, outbox.seq, outbox.has_snapshot))
        except BadMessage as error:
            self.unwritable += 1
            self._complain(f"its report cannot be written: {error}")
            return

        def posted(answer: Any) -> None:
            outbox.report_is_new |= isinstance(answer, Exception)

        batch.add(self.lane, ("SET", self.keys.report, data, "PX", self._report_ttl_ms), posted)

    def _plan_announcement(self, batch: Batch, now_s: float, wall_s: float) -> None:
        def keep(answer: Any) -> None:
            if answer == 0 and self.outbox.has_snapshot:  # it is not there any more
                self.outbox.want_snapshot(now_s)

        batch.add(self.lane, ("PEXPIRE", self.keys.stream, self.leftover_ttl_ms))
        batch.add(self.lane, ("PEXPIRE", self.keys.snapshot, self.leftover_ttl_ms), keep)
        batch.add(0, ("ZADD", self._registry, int(wall_s), self.worker))
        batch.add(0, ("PEXPIRE", self._registry, self.leftover_ttl_ms))

    def snapshot(self, now_s: float) -> "SnapshotWrite | None":
        """One that is due. Its deltas are planned first, then it."""
        snapshot = self.outbox.snapshot(now_s)
        if snapshot is None:
            return None
        blocks = count_blocks(snapshot.runs)
        if blocks > self._settings.max_snapshot_blocks:
            self.unwritable += 1
            self._complain(f"its {blocks} cached blocks are more than max_snapshot_blocks; routers will not know them")
            return None
        return SnapshotWrite(self, snapshot)

    def plan_leaving(self, batch: Batch) -> None:
        """The report says so to those that look soon; the rest is gone at once."""
        batch.add(self.lane, ("UNLINK", self.keys.stream, self.keys.snapshot, self.keys.new_snapshot))
        batch.add(0, ("ZREM", self._registry, self.worker))

        def left(answer: Any) -> None:
            self.has_left = not isinstance(answer, Exception)

        batch.add(self.lane, ("SET", self.keys.report, encode_left(self.worker), "PX", self._report_ttl_ms), left)

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            LOG.warning("worker %s: %s", self.worker, text)


class SnapshotWrite:
    """A snapshot on its way to Redis, piece by piece into a place where no reader looks, then exposed at once."""

    def __init__(self, post: Post, snapshot: CacheSnapshot) -> None:
        self._post = post
        self._snapshot = snapshot
        self._epoch = post.outbox.epoch
        self._pieces = cut(encode_snapshot(snapshot), self._epoch, snapshot.seq)
        self._planned = 0
        self._is_intact = True
        self.is_done = False

    def plan_some(self, batch: Batch) -> None:
        """At least one piece, as many as the batch has room for; the exposure behind the last one."""
        post = self._post
        if not self._planned:
            batch.add(post.lane, ("UNLINK", post.keys.new_snapshot))
        while self._is_intact and self._planned < len(self._pieces):
            piece = self._pieces[self._planned]
            self._planned += 1
            batch.add(post.lane, ("RPUSH", post.keys.new_snapshot, piece), self._checker(self._planned), len(piece))
            if batch.is_full:
                break
        if self._is_intact and self._planned == len(self._pieces):
            batch.add(post.lane, ("PEXPIRE", post.keys.new_snapshot, post.leftover_ttl_ms))
            batch.add(post.lane, ("RENAME", post.keys.new_snapshot, post.keys.snapshot), self._exposed)
        self.is_done = not self._is_intact or self._planned == len(self._pieces)

    def _checker(self, length: int) -> OnAnswer:
        """RPUSH answers with the length of the list."""

        def check(answer: Any) -> None:
            self._is_intact = self._is_intact and answer == length

        return check

    def _exposed(self, answer: Any) -> None:
        post = self._post
        if self._is_intact and not isinstance(answer, Exception):
            post.written_snapshots += 1
            post.outbox.wrote_snapshot(self._snapshot, self._epoch)
        post.notice_poison(answer)
