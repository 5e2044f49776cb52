"""Deltas and snapshots of workers' caches, put in order and taken into the event index.

A worker's index is whole at `seq`: before its first delta, which is an empty cache, after each delta in turn, and after a
whole snapshot. It is in sync while no later delta is known that cannot follow, and the worker's reports tell of the same
generation: what comes late from a generation that is over, or early from a new one, is not believed. Deltas behind a gap
are kept, so that a snapshot made before them is followed up at once. What is large is taken in piece by piece (`step`), so
that no call takes long, and what makes no sense, however it is made, is counted and left out.
"""

from array import array
from collections import deque
from typing import Final, Protocol

from router.core.cache_delta import CacheChange, CacheDelta, CacheSnapshot, Cleared, Stored
from router.core.event_index import EventIndex
from router.core.fleet import Worker
from router.core.types import WorkerId

MAX_PIECE: Final = 1024  # blocks taken in at once: 1 ms compiled
MAX_KEPT_DELTAS: Final = 64  # per worker
MAX_KEPT_BLOCKS: Final = 1 << 20  # over all workers: 8 MiB
MAX_PAST: Final = 8  # past generations remembered per worker


class FeedWatcher(Protocol):
    def synced(self, worker: Worker, in_sync: bool) -> None:
        """The worker came into sync, or fell out of it."""

    def stored(self, slot: int, keys: "array[int]") -> None:
        """The index was told that the worker in this slot has these blocks."""


class Feed:
    """What is known of one worker's deltas."""

    __slots__ = (
        "at", "doing", "generation", "in_sync", "is_whole", "kept", "kept_blocks", "loading", "past", "seq", "slot", "waits",
        "worker",
    )  # fmt: skip

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.slot = worker.slot
        self.generation = ""
        self.past: deque[str] = deque(maxlen=MAX_PAST)
        self.seq = 0  # the last one taken in, or in `doing`
        self.is_whole = False  # the index has all that was told of this generation
        self.in_sync = False
        self.loading = False  # `doing` is a snapshot: the index is not whole
        self.waits = False  # for the index to accept its blocks
        self.doing: deque[CacheChange] = deque()
        self.at = 0  # blocks of its first change that are taken in
        self.kept: dict[int, CacheDelta] = {}  # by seq: behind `doing` or behind a gap
        self.kept_blocks = 0

    @property
    def is_busy(self) -> bool:
        """Whether it comes further without being told more."""
        return self.loading or self.waits or bool(self.doing) or self.seq + 1 in self.kept


class CacheFeed:
    """The feeds of all workers."""

    def __init__(self, index: EventIndex, watcher: FeedWatcher) -> None:
        self.gaps = 0
        self.stale = 0  # of a past generation, or repeated
        self.strangers = 0  # of workers that are not known
        self._index = index
        self._watcher = watcher
        self._feeds: dict[WorkerId, Feed] = {}
        self._busy: dict[WorkerId, Feed] = {}
        self._kept_blocks = 0

    def joined(self, worker: Worker) -> None:
        self._index.add_worker(worker.slot)
        self._feeds[worker.id] = Feed(worker)

    def left(self, worker: Worker) -> None:
        feed = self._feeds[worker.id]
        feed.in_sync = False  # of one who left nobody is told
        self._empty(feed)
        self._index.remove_worker(feed.slot)
        del self._feeds[worker.id]

    def in_sync(self, worker: WorkerId) -> bool:
        return self._feeds[worker].in_sync

    def wanted(self) -> list[WorkerId]:
        """Workers that a snapshot would help."""
        return [worker for worker, feed in self._feeds.items() if not feed.in_sync and not feed.is_busy]

    def reported(self, worker: Worker) -> None:
        """The worker's reports tell of another generation than before."""
        feed = self._feeds[worker.id]
        if worker.generation not in feed.past:
            self._follow(feed, worker.generation)
        self._settle(feed)

    def forget(self, worker: WorkerId) -> None:
        """Nobody tells of this worker any more."""
        feed = self._feeds.get(worker)
        if feed is not None:
            self._empty(feed)

    def delta(self, delta: CacheDelta) -> bool:
        """False: a snapshot is wanted, this delta does not follow what is known."""
        feed = self._feeds.get(delta.worker)
        if feed is None:
            self.strangers += 1
            return True
        if not self._follow(feed, delta.generation) or delta.seq <= feed.seq or delta.seq in feed.kept:
            self.stale += 1
        else:
            self._keep(feed, delta)
            self._advance(feed, MAX_PIECE)
        return feed.in_sync or feed.is_busy

    def snapshot(self, snapshot: CacheSnapshot) -> None:
        """Takes the place of all that the index has of the worker, unless that is newer."""
        feed = self._feeds.get(snapshot.worker)
        if feed is None:
            self.strangers += 1
            return
        follows = self._follow(feed, snapshot.generation)
        is_known = feed.is_whole or feed.is_busy or bool(feed.kept)
        if not follows or snapshot.seq < feed.seq + is_known:
            self.stale += 1
            return
        later = [delta for seq, delta in feed.kept.items() if seq > snapshot.seq]
        self._empty(feed)
        feed.seq = snapshot.seq
        feed.loading = True
        feed.doing.extend(snapshot.runs)
        for delta in later:
            self._keep(feed, delta)
        self._advance(feed, MAX_PIECE)

    def step(self, blocks: int = MAX_PIECE) -> bool:
        """Goes on with what is large, by about so many blocks. Whether there is more to do."""
        for feed in list(self._busy.values()):
            del self._busy[feed.worker.id]  # whoever is not done takes the last place
            blocks = self._advance(feed, blocks)
            if blocks <= 0:
                break
        return bool(self._busy)

    def is_stuck(self) -> bool:
        """Whether all that there is to do waits for the index to be swept."""
        return all(feed.waits for feed in self._busy.values())

    def _follow(self, feed: Feed, generation: str) -> bool:
        """Whether this is the worker's generation, or a new one: then the old is gone at once."""
        if generation != feed.generation:
            if generation in feed.past:
                if generation != feed.worker.generation:
                    return False
                feed.past.remove(generation)  # the one between was older
            self._empty(feed)
            feed.past.append(feed.generation)
            feed.generation = generation
        return True

    def _empty(self, feed: Feed) -> None:
        """Back to an empty cache before its first delta."""
        self._index.forget(feed.slot)
        self._drop_kept(feed)
        feed.seq = feed.at = 0
        feed.is_whole = feed.loading = feed.waits = False
        feed.doing.clear()
        self._busy.pop(feed.worker.id, None)
        self._settle(feed)

    def _keep(self, feed: Feed, delta: CacheDelta) -> None:
        """Where there is no room for more, this one is kept in place of those before: a gap, for a snapshot to close."""
        blocks = blocks_of(delta)
        if len(feed.kept) >= MAX_KEPT_DELTAS or self._kept_blocks + blocks > MAX_KEPT_BLOCKS:
            self._drop_kept(feed)
        feed.kept[delta.seq] = delta
        feed.kept_blocks += blocks
        self._kept_blocks += blocks

    def _drop_kept(self, feed: Feed) -> None:
        self._kept_blocks -= feed.kept_blocks
        feed.kept_blocks = 0
        feed.kept.clear()

    def _advance(self, feed: Feed, blocks: int) -> int:
        """Takes in what follows, up to so many blocks; how many of them are left."""
        while blocks > 0:
            feed.waits = not self._index.accepts(feed.slot)
            if feed.waits:
                break
            if feed.doing:
                blocks -= self._take(feed, blocks)
                continue
            feed.loading = False
            delta = feed.kept.pop(feed.seq + 1, None)
            if delta is None:
                break
            feed.seq += 1
            feed.doing.extend(delta.changes)
            feed.kept_blocks -= blocks_of(delta)
            self._kept_blocks -= blocks_of(delta)
        if feed.is_busy:
            self._busy[feed.worker.id] = feed
        has_gap = bool(feed.kept) and not feed.is_busy
        if has_gap and feed.is_whole:
            self.gaps += 1
        feed.is_whole = not has_gap and not feed.loading and not feed.waits
        self._settle(feed)
        return blocks

    def _take(self, feed: Feed, blocks: int) -> int:
        """Takes in the first change, or that many blocks of it; how many these were, and one for the change."""
        change, at = feed.doing[0], feed.at
        if isinstance(change, Cleared):
            self._index.forget(feed.slot)
            feed.doing.popleft()
            return 1
        keys = change.keys
        if at or len(keys) > blocks:
            keys = keys[at : at + blocks]
        if isinstance(change, Stored):
            self._index.stored(feed.slot, change.keys[at - 1] if at else change.parent, keys)
            self._watcher.stored(feed.slot, keys)
        else:
            self._index.removed(feed.slot, keys)
        feed.at = at + len(keys)
        if feed.at >= len(change.keys):
            feed.doing.popleft()
            feed.at = 0
        return len(keys) + 1

    def _settle(self, feed: Feed) -> None:
        in_sync = feed.is_whole and feed.worker.generation in ("", feed.generation)
        if in_sync != feed.in_sync:
            feed.in_sync = in_sync
            self._watcher.synced(feed.worker, in_sync)


def blocks_of(delta: CacheDelta) -> int:
    """What a delta costs to keep and to take in: its blocks, and one for each change."""
    blocks = 0
    for change in delta.changes:
        blocks += 1 if isinstance(change, Cleared) else len(change.keys) + 1
    return blocks
