"""The workers whose keys one Redis node serves together: what is read of them, and what the answers mean.

A worker is lost only by what was read: while the lane cannot be read, or takes no writes, everything stays as it is.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from redis.exceptions import ResponseError

from router.core.types import WorkerId
from router.state.batch import Batch, Command
from router.state.cache_codec import count_blocks
from router.state.contract import StateListener
from router.state.feed import NEVER_S, Feed
from router.state.frame import BadMessage
from router.state.redis_keys import Keys
from router.state.snapshot_load import SnapshotLoad

LOG = logging.getLogger("warmline.state")
ENTRIES_AT_ONCE: Final = 64  # of one worker in one read
SPLIT_S: Final = 5.0  # that streams are read one by one after one of them spoiled a common command
GRACE_AFTER_S: Final = 1.0  # without a good read, after which nobody is lost for what was not seen meanwhile
PROBE_TTL_MS: Final = 10_000


@dataclass(slots=True)
class FollowCounts:
    """For metrics; all only count up."""

    reports: int = 0
    deltas: int = 0
    blocks: int = 0
    gaps: int = 0
    snapshots: int = 0
    bad_messages: int = 0  # values that are no message of this version
    surprises: int = 0


class Lane:
    """`plan` and `digest` by turns, with the exchange between them."""

    def __init__(
        self, number: int, keys: Keys, listener: StateListener, counts: FollowCounts, report_ttl_s: float, now_s: float
    ) -> None:
        self.feeds: dict[WorkerId, Feed] = {}
        self._number = number
        self._keys = keys
        self._listener = listener
        self._counts = counts
        self._report_ttl_s = report_ttl_s
        self._by_stream: dict[bytes, Feed] = {}
        self._good_s = now_s  # when the last good read began
        self._is_writable = True
        self._split_until_s = NEVER_S
        self._complained: set[WorkerId] = set()
        self._spoilt: list[bytes] = []  # keys of snapshots that are none; removed, so that the sidecars write them anew
        self._began_s = now_s
        self._asked: list[Feed] = []
        self._reports: Any = None
        self._streams: list[tuple[list[Feed], Any]] = []

    def add(self, worker: WorkerId, now_s: float) -> bool:
        """False where it is there already."""
        if worker in self.feeds:
            return False
        feed = self.feeds[worker] = Feed(worker, self._keys.of(worker), now_s)
        self._by_stream[feed.keys.stream] = feed
        return True

    def drop(self, feed: Feed) -> None:
        del self.feeds[feed.worker]
        del self._by_stream[feed.keys.stream]
        self._complained.discard(feed.worker)

    # Reading

    def plan(self, batch: Batch, began_s: float, probes: bool) -> None:
        """Adds the reads of this round: reports first, for deltas must be read up to where the reports say they are."""
        self._began_s = began_s
        self._asked = list(self.feeds.values())
        self._reports = None
        self._streams = []
        if not self._asked:
            return
        if probes:
            batch.add(self._number, ("SET", self._keys.probe(self._number), 1, "PX", PROBE_TTL_MS), self._take_probe)
        batch.add(self._number, ("MGET", *(feed.keys.report for feed in self._asked)), self._take_reports)
        if self._spoilt:
            batch.add(self._number, ("UNLINK", *self._spoilt))
            self._spoilt = []
        followed = [feed for feed in self._asked if feed.is_followed]
        groups = [[feed] for feed in followed] if began_s < self._split_until_s else [followed] if followed else []
        for group in groups:
            streams, positions = [feed.keys.stream for feed in group], [feed.position for feed in group]
            command: Command = ("XREAD", "COUNT", ENTRIES_AT_ONCE, "STREAMS", *streams, *positions)
            batch.add(self._number, command, partial(self._take_streams, group))

    def _take_probe(self, answer: Any) -> None:
        self._is_writable = not isinstance(answer, Exception)

    def _take_reports(self, answer: Any) -> None:
        self._reports = answer

    def _take_streams(self, group: list[Feed], answer: Any) -> None:
        self._streams.append((group, answer))

    # Taking in

    def digest(self, now_s: float) -> Iterator[None]:
        """Takes in what was read, one step after the other, so that the caller can pause between them."""
        if not isinstance(self._reports, list) or len(self._reports) != len(self._asked):
            return
        for feed, data in zip(self._asked, self._reports, strict=True):
            if data is not None:
                self._take_report(feed, data)
            feed.read_s = self._began_s
            yield
        for group, answer in self._streams:
            if isinstance(answer, ResponseError):  # one stream that is none, or a slot on its way to another node
                self._split_until_s = now_s + SPLIT_S
            if not isinstance(answer, Exception):
                yield from self._take_entries(group, answer or (), now_s)
        self._check_freshness()

    def _take_entries(self, group: list[Feed], streams: Any, now_s: float) -> Iterator[None]:
        unread: set[WorkerId] = set()  # that may have more entries than were asked for
        for stream, entries in streams:
            feed = self._by_stream.get(stream)
            if feed is None:
                continue
            if len(entries) >= ENTRIES_AT_ONCE:
                unread.add(feed.worker)
            for entry_id, fields in entries:
                self._take_entry(feed, entry_id, fields, now_s)
                yield
        for feed in group:
            if feed.worker not in unread and not feed.check_head(now_s):
                self._counts.gaps += 1

    def take_snapshot(self, load: SnapshotLoad, now_s: float) -> None:
        """A load that is done, whatever it found."""
        feed = load.feed
        try:
            if load.error is not None:
                raise load.error
            if load.snapshot is None:
                feed.put_off(now_s)
            elif feed.take_snapshot(load.snapshot, load.epoch, now_s, self._listener):
                self._counts.snapshots += 1
        except BadMessage as error:
            feed.put_off(now_s)
            self._spoilt.append(feed.keys.snapshot)
            self._refuse(feed, "snapshot", error)
        except Exception:
            feed.put_off(now_s)
            self._surprise(feed)

    def _check_freshness(self) -> None:
        began_s = self._began_s
        if not self._is_writable:
            return
        if began_s - self._good_s > GRACE_AFTER_S:
            for feed in self.feeds.values():
                feed.seen_s = max(feed.seen_s, began_s)
        self._good_s = began_s
        for feed in self.feeds.values():
            if feed.is_known and began_s - feed.seen_s > self._report_ttl_s:
                feed.lose(f"no report for {self._report_ttl_s:g} s", began_s, self._listener)

    def _take_report(self, feed: Feed, data: bytes) -> None:
        try:
            if feed.take_report(data, self._began_s, self._listener):
                self._counts.reports += 1
        except BadMessage as error:
            self._refuse(feed, "report", error)
        except Exception:
            self._surprise(feed)

    def _take_entry(self, feed: Feed, entry_id: bytes, fields: Any, now_s: float) -> None:
        wanted = feed.wants_snapshot
        try:
            delta = feed.take_entry(entry_id, fields[1] if fields else b"", now_s, self._listener)
            if delta is not None:
                self._counts.deltas += 1
                self._counts.blocks += count_blocks(delta.changes)
        except BadMessage as error:
            self._refuse(feed, "delta", error)
        except Exception:
            feed.want_snapshot(now_s)
            self._surprise(feed)
        if feed.wants_snapshot and not wanted:
            self._counts.gaps += 1

    def _refuse(self, feed: Feed, what: str, error: BadMessage) -> None:
        self._counts.bad_messages += 1
        self._tell_once(feed, f"its {what} in Redis cannot be read: {error}")

    def _surprise(self, feed: Feed) -> None:
        self._counts.surprises += 1
        if feed.worker not in self._complained:
            self._complained.add(feed.worker)
            LOG.exception("worker %s: surprise while taking in its state", feed.worker)

    def _tell_once(self, feed: Feed, text: str) -> None:
        if feed.worker not in self._complained:
            self._complained.add(feed.worker)
            LOG.warning("worker %s: %s", feed.worker, text)
