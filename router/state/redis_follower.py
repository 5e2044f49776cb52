"""A router's side of Redis: reads what the sidecars of the pool publish, many workers with one command.

Freshness is told by this process's clock, from when another report was seen; no clocks of hosts need agree.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from router.core.types import WorkerId
from router.settings import FleetSettings, StateSettings
from router.state.batch import Batch
from router.state.contract import StateListener
from router.state.feed import NEVER_S, Feed
from router.state.lane import FollowCounts, Lane
from router.state.pace import Pace
from router.state.redis_health import PROBE_S, RedisHealth
from router.state.redis_keys import LANES, Keys, lane_of
from router.state.redis_link import RedisLink
from router.state.snapshot_load import SnapshotLoad

LOG = logging.getLogger("warmline.state")
PART: Final = "reading"
REGISTRY_S: Final = 1.0  # between two reads of who is there
SLICE_S: Final = 0.0005  # of work until other tasks get their turn: a request needs several turns
WORKERS_AT_ONCE: Final = 128  # read with one exchange, whose packing and parsing holds up the loop
LOADS_AT_ONCE: Final = 16
LOADING_S: Final = 0.1  # for snapshots until reports are looked at again
CORE_SHARE: Final = 0.05  # that looking for news may take while requests come in
SHORTEST_PAUSE_S: Final = 0.005


class RedisFollower:
    """Tells a StateListener what the sidecars of the pool publish, for as long as `run` runs."""

    def __init__(
        self,
        settings: StateSettings,
        fleet: FleetSettings,
        listener: StateListener,
        health: RedisHealth,
        clock: Callable[[], float] = time.monotonic,
        is_own: Callable[[WorkerId], bool] = lambda worker: False,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """Connects nowhere yet. `clock` stamps the reports. Raises SettingsError for an unreadable TLS file.

        `is_own` names the workers that this process hears of without Redis; nothing is read of them. While it `is_busy` with
        requests, news is looked for more often than `state_interval_s` tells, as long as that costs little: the next turn
        of a conversation should find the last one, whichever router had it.
        """
        self.counts = FollowCounts()
        self.health = health
        self._settings = settings
        self._max_workers = fleet.max_workers
        self._listener = listener
        self._clock = clock
        self._is_own = is_own
        self._is_busy = is_busy
        self._pace = Pace(settings.state_interval_s, CORE_SHARE)
        self._link = RedisLink(settings, health, PART, clock)
        self._keys = Keys(settings.pool_name)
        self._lanes = [Lane(number, self._keys, listener, self.counts, fleet.report_ttl_s, clock()) for number in range(LANES)]
        self._registered: set[WorkerId] | None = None  # None: not read yet
        self._registry_at_s = NEVER_S
        self._probe_at_s = NEVER_S
        self._slice_ends_s = NEVER_S
        self._cleans = False  # the registry was read anew
        self._hurries = False  # the next round has something to read that was not known before
        self._caught_up = asyncio.Event()

    @property
    def stale_s(self) -> float | None:
        """Seconds since the last good read; None before the first."""
        return self.health.stale_s(PART)

    @property
    def waiting_for_snapshots(self) -> int:
        return sum(feed.wants_snapshot for feed in self._feeds())

    async def caught_up(self, limit_s: float) -> bool:
        """Waits until every worker that was there at the start is known, with its cache; False when that takes longer."""
        try:
            async with asyncio.timeout(limit_s):
                await self._caught_up.wait()
        except TimeoutError:
            return False
        return True

    def want_snapshot(self, worker: WorkerId) -> None:
        """The listener can use the worker's snapshot: it is read, the less often the less that helps."""
        feed = self._lanes[lane_of(worker)].feeds.get(worker)
        if feed is not None and feed.is_known and feed.has_snapshot:
            feed.want_snapshot(self._clock())

    async def run(self) -> None:
        """Reads until cancelled; then closes its connections."""
        try:
            while True:
                began_s = self._clock()
                self._pace.began()
                try:
                    await self._round(began_s)
                except Exception:
                    self.counts.surprises += 1
                    LOG.exception("surprise while reading the state in Redis")
                self._pace.ended()
                interval_s = self._pace.soon_s if self._is_busy() else self._settings.state_interval_s
                rest_s = 0.0 if self._hurries else interval_s - (self._clock() - began_s)
                await asyncio.sleep(max(rest_s, SHORTEST_PAUSE_S))
        finally:
            await self._link.close()

    def _feeds(self) -> Iterable[Feed]:
        return (feed for lane in self._lanes for feed in lane.feeds.values())

    async def _round(self, began_s: float) -> None:
        self._hurries = False
        batch = Batch()
        if began_s >= self._registry_at_s:
            batch.add(0, ("ZREVRANGE", self._keys.workers, 0, self._max_workers - 1), self._take_registry)
        probes = began_s >= self._probe_at_s
        if probes:
            self._probe_at_s = began_s + PROBE_S
        lanes: list[Lane] = []
        for lane in self._lanes:
            lane.plan(batch, began_s, probes)
            lanes.append(lane)
            if sum(len(lane.feeds) for lane in lanes) >= WORKERS_AT_ONCE:
                await self._exchange(batch, lanes)
                batch, lanes = Batch(), []
        await self._exchange(batch, lanes)
        await self._load_snapshots()
        if self._cleans:
            await self._clean_up()
        if self._registered is not None and all(feed.is_current for feed in self._feeds()):
            self._caught_up.set()

    async def _exchange(self, batch: Batch, lanes: list[Lane]) -> None:
        if batch.size:
            batch.deliver(await self._link.execute(batch.plan))
        for lane in lanes:
            for _ in lane.digest(self._clock()):
                await self._breathe()

    async def _breathe(self) -> None:
        if self._clock() >= self._slice_ends_s:
            await asyncio.sleep(0)
            self._slice_ends_s = self._clock() + SLICE_S

    def _take_registry(self, answer: Any) -> None:
        """Those announced last come first; only so many are looked at."""
        if not isinstance(answer, list):
            return
        now_s = self._clock()
        self._registry_at_s = now_s + REGISTRY_S
        self._registered = set()
        # some of those that are known may not be listed any more, so twice as many can be there for a while
        room = 2 * self._max_workers - sum(len(lane.feeds) for lane in self._lanes)
        for name in answer:
            try:
                worker = WorkerId(name.decode())
            except (UnicodeDecodeError, AttributeError):
                self.counts.bad_messages += 1
                continue
            self._registered.add(worker)
            if room > 0 and not self._is_own(worker) and self._lanes[lane_of(worker)].add(worker, now_s):
                room -= 1
                self._hurries = True
        self._cleans = True

    async def _load_snapshots(self) -> None:
        """Small ones many at a time, large ones by parts; the rest in the next round."""
        ends_s = self._clock() + LOADING_S
        while (now_s := self._clock()) < ends_s:
            feeds = list(islice((feed for feed in self._feeds() if feed.wants_load(now_s)), LOADS_AT_ONCE))
            if not feeds:
                return
            loads = [SnapshotLoad(feed, self._settings.max_snapshot_blocks) for feed in feeds]
            await self._fetch(loads)
            for load in loads:
                while not load.is_done:
                    await self._fetch([load])
                self._lanes[lane_of(load.feed.worker)].take_snapshot(load, self._clock())
                await self._breathe()
            self._hurries = True

    async def _fetch(self, loads: Iterable[SnapshotLoad]) -> None:
        batch = Batch()
        for load in loads:
            load.plan(batch)
        batch.deliver(await self._link.execute(batch.plan))
        await self._breathe()

    async def _clean_up(self) -> None:
        """Forgets who has left, and has Redis forget who has been gone for long."""
        self._cleans = False
        now_s = self._clock()
        batch = Batch()
        for lane in self._lanes:
            for feed in [feed for feed in lane.feeds.values() if not feed.is_known and feed.read_s > NEVER_S]:
                if self._registered is None or feed.worker not in self._registered:
                    lane.drop(feed)
                elif now_s - feed.gone_since_s > self._settings.leftover_ttl_s:
                    batch.add(0, ("ZREM", self._keys.workers, feed.worker))
                    lane.drop(feed)
        if batch.size:
            await self._link.execute(batch.plan)
