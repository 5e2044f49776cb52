"""A sidecar's side of Redis: takes in what is told of its workers and writes it, batched, in the background."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final

from router.core.cache_delta import CacheDelta
from router.core.types import WorkerId, WorkerReport
from router.settings import FleetSettings, StateSettings
from router.state.batch import Batch
from router.state.contract import SnapshotSource
from router.state.pace import Pace
from router.state.redis_health import RedisHealth
from router.state.redis_keys import Keys
from router.state.redis_link import RedisLink
from router.state.redis_post import Post

LOG = logging.getLogger("warmline.state")
PART: Final = "writing"
SPREAD_S: Final = 1.0  # over which a fleet's snapshots are written anew when Redis is back
CORE_SHARE: Final = 0.01  # that writing news at once may take
LAST_WORDS_S: Final = 3.0  # as long as routers take to notice a sidecar that ended without a word


class RedisPublisher:
    """A StatePublisher. `run` does the writing; the other methods only take in."""

    def __init__(
        self,
        settings: StateSettings,
        fleet: FleetSettings,
        health: RedisHealth,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Connects nowhere yet. `clock` is that of the reports. Raises SettingsError for an unreadable TLS file."""
        self._settings = settings
        self._fleet = fleet
        self._health = health
        self._clock = clock
        self._wall_clock = wall_clock
        self._link = RedisLink(settings, health, PART, clock)
        self._keys = Keys(settings.pool_name)
        self._posts: dict[WorkerId, Post] = {}
        self._leaving: dict[WorkerId, Post] = {}
        self._batch = Batch()
        self._seen_connects = 0
        self._finishing = False
        self._has_news = asyncio.Event()
        self._pace = Pace(settings.state_interval_s, CORE_SHARE)

    # Taking in

    def report(self, report: WorkerReport) -> None:
        self._post(report.worker).outbox.put_report(report, self._clock())

    def delta(self, delta: CacheDelta) -> None:
        self._post(delta.worker).outbox.put_delta(delta, self._clock())
        self._has_news.set()

    def follow(self, worker: WorkerId, snapshot: SnapshotSource) -> None:
        self._post(worker).outbox.follow(snapshot, self._clock())

    def leave(self, worker: WorkerId) -> None:
        post = self._posts.pop(worker, None)
        if post is not None:
            self._leaving[worker] = post

    def reports(self) -> list[WorkerReport]:
        """The newest report of each worker, written or not."""
        return [post.outbox.report for post in self._posts.values() if post.outbox.report is not None]

    def _post(self, worker: WorkerId) -> Post:
        post = self._posts.get(worker)
        if post is None:
            self._leaving.pop(worker, None)
            now_s, wall_s = self._clock(), self._wall_clock()
            post = self._posts[worker] = Post(worker, self._settings, self._fleet, self._keys, now_s, wall_s)
        return post

    # For metrics

    @property
    def posts(self) -> tuple[Post, ...]:
        """Per worker: counts of what was written, dropped (`outbox.dropped_blocks`) or could not be written."""
        return tuple(self._posts.values())

    # Writing

    async def run(self) -> None:
        """Writes until `finish`, or until cancelled; then closes its connections."""
        try:
            while not self._finishing:
                await self._write_and_rest()
            last_try_s = self._clock() + LAST_WORDS_S
            await self._write_and_rest()
            while self._has_last_words and self._clock() < last_try_s:
                await self._write_and_rest()
        finally:
            await self._link.close()

    def finish(self) -> None:
        """What was taken in is written, then `run` ends. While Redis does not take the last reports they are tried again
        for LAST_WORDS_S; the last try may take as long as an exchange with Redis."""
        self._finishing = True

    @property
    def _has_last_words(self) -> bool:
        """Whether Redis lacks the last report of a worker, or that it left."""
        return bool(self._leaving) or any(post.outbox.report_is_new for post in self._posts.values())

    async def _write_and_rest(self) -> None:
        """Until there are deltas to write, or it is time anyway."""
        began_s = self._clock()
        self._has_news.clear()
        self._pace.began()
        try:
            await self._round()
        except Exception:
            LOG.exception("surprise while writing the state to Redis")
        self._pace.ended()
        if self._finishing and not self._has_last_words:
            return
        soon_s = self._pace.soon_s
        await asyncio.sleep(soon_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.state_interval_s - soon_s - (self._clock() - began_s)):
                await self._has_news.wait()

    async def _round(self) -> None:
        """A surprise with one worker is logged and never keeps the others from being written."""
        for post in self._leaving.values():
            post.plan_leaving(self._batch)
        for post in list(self._posts.values()):
            try:
                await self._write(post)
            except Exception:
                LOG.exception("worker %s: surprise while writing its state", post.worker)
        await self._exchange()
        self._leaving = {worker: post for worker, post in self._leaving.items() if not post.has_left}
        if not self._posts:
            self._health.rest(PART)

    async def _write(self, post: Post) -> None:
        """Adds what is due to the batch; a full one is sent and another begun."""
        write = post.snapshot(self._clock())
        post.plan_deltas(self._batch, self._clock())
        while write is not None and not write.is_done:
            if self._batch.is_full:
                await self._exchange()
            write.plan_some(self._batch)
        post.plan_words(self._batch, self._clock(), self._wall_clock())
        if self._batch.is_full:
            await self._exchange()

    async def _exchange(self) -> None:
        batch, self._batch = self._batch, Batch()
        if not batch.size:
            return
        batch.deliver(await self._link.execute(batch.plan))
        if self._link.connects != self._seen_connects:
            if self._seen_connects:  # what was written before may be gone: everything is written anew
                now_s = self._clock()
                for post in self._posts.values():
                    post.outbox.want_snapshot(now_s + post.phase * SPREAD_S)
            self._seen_connects = self._link.connects
