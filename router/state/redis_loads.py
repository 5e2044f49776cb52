"""What routers have in flight, told among them through a channel of Redis.

A change is told within `load_interval_s`, everything once a second. Each router hears itself too, and by that knows
whether the channel works.
"""

import asyncio
import contextlib
import logging
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Final

from router.core.cache_delta import Mark, RouterLoad
from router.core.elsewhere import marks_of
from router.core.types import WorkerId
from router.settings import StateSettings
from router.state.contract import StateListener
from router.state.frame import BadMessage
from router.state.load_codec import decode_load, encode_load
from router.state.redis_health import LINK_ERRORS, RedisHealth
from router.state.redis_keys import Keys
from router.state.redis_link import RedisLink

LOG = logging.getLogger("warmline.state")
TELLING: Final = "telling load"
HEARING: Final = "hearing load"
FULL_S: Final = 1.0  # between two full counts
ECHO_S: Final = 3.0  # longest silence of a channel that works
EXPIRE_S: Final = 0.1  # between two looks for routers that are gone
RETRY_S: Final = 0.2
NOTHING: Final = (0, 0)
MAX_ROUTERS: Final = 256
MAX_MARKS: Final = 4096  # in one message; of those told too seldom for that the newest
NEAR_ROUTERS: Final = 4  # up to which each tells every change at once; more wait longer, so that hearing stays cheap


class RedisLoads:
    """A LoadBoard, and the way other routers' loads reach a StateListener."""

    def __init__(
        self,
        settings: StateSettings,
        router: str,
        load_of: Callable[[WorkerId], tuple[int, int]],
        listener: StateListener,
        health: RedisHealth,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`router` is a name that no other process of the pool has, ever. `load_of` tells its own load of a worker now:
        requests before their end, uncached tokens before their first token.

        Connects nowhere yet. Raises SettingsError for an unreadable TLS file.
        """
        self._settings = settings
        self._router = router
        self._load_of = load_of
        self._listener = listener
        self._health = health
        self._clock = clock
        self._telling = RedisLink(settings, health, TELLING, clock)
        self._hearing = RedisLink(settings, health, HEARING, clock)
        self._channel = Keys(settings.pool_name).load
        self._touched: set[WorkerId] = set()
        self._changed = asyncio.Event()
        self._changed_s = float("-inf")
        self._marks: deque[Mark] = deque(maxlen=MAX_MARKS)
        self._told: dict[WorkerId, tuple[int, int]] = {}  # what is not nothing
        self._seq = 0
        self._peers: dict[str, Peer] = {}
        self.heard = 0
        self.told = 0
        self.gaps = 0  # messages of others that did not arrive
        self.bad_messages = 0
        self.surprises = 0
        self.told_marks = 0
        self.dropped_marks = 0  # for want of room in a message
        self.refused = 0  # loads of more routers than there may be

    def touch(self, worker: WorkerId) -> None:
        self._touched.add(worker)
        if not self._changed.is_set():
            self._changed.set()

    def mark(self, worker: WorkerId, keys: "array[int]", known_blocks: int) -> None:
        """Is told with the load, if anybody hears it; the caller touches the worker too."""
        if not self._peers:
            return
        marks = marks_of(worker, keys, known_blocks)
        self.dropped_marks += max(0, len(self._marks) + len(marks) - MAX_MARKS)
        self._marks += marks

    def changed_within(self, seconds: float) -> bool:
        """Whether this router's load changed lately, on any worker."""
        return self._clock() - self._changed_s <= seconds

    @property
    def routers(self) -> int:
        """Other routers heard within `load_ttl_s`."""
        return len(self._peers)

    async def run(self) -> None:
        """Tells and hears until cancelled; then closes its connections."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tell_forever())
                group.create_task(self._hear_forever())
                group.create_task(self._expire_forever())
        finally:
            await self._telling.close()
            await self._hearing.close()

    # Telling

    async def _tell_forever(self) -> None:
        full_at_s = self._clock()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(full_at_s - self._clock()):
                    await self._changed.wait()
            await asyncio.sleep(self._settings.load_interval_s * max(1.0, len(self._peers) / NEAR_ROUTERS))
            if self._changed.is_set():
                self._changed_s = self._clock()
            self._changed.clear()
            is_full = self._clock() >= full_at_s
            if is_full:
                full_at_s = self._clock() + FULL_S
            try:
                load = self._next_load(is_full)
                works = load is None or await self._tell(load)
            except Exception:
                works = False
                self.surprises += 1
                LOG.exception("surprise while telling the load of this router")
            if not works:
                await asyncio.sleep(RETRY_S)

    def _next_load(self, is_full: bool) -> RouterLoad | None:
        """None when nothing changed. What is told counts as told, heard or not: the next full count mends it."""
        touched, self._touched = self._touched, set()
        news: dict[WorkerId, tuple[int, int]] = {}
        for worker in touched | self._told.keys() if is_full else touched:
            counts = self._load_of(worker)
            if counts != self._told.get(worker, NOTHING):
                news[worker] = counts
        for worker, counts in news.items():
            if counts == NOTHING:
                del self._told[worker]
            else:
                self._told[worker] = counts
        marks = tuple(self._marks)
        if not is_full and not news and not marks:
            return None
        self._marks.clear()
        self.told_marks += len(marks)
        self._seq += 1
        return RouterLoad(self._router, self._seq, is_full, dict(self._told) if is_full else news, marks)

    async def _tell(self, load: RouterLoad) -> bool:
        answers = await self._telling.execute({0: [("PUBLISH", self._channel, encode_load(load))]})
        if isinstance(answers[0][0], Exception):
            return False
        self.told += 1
        return True

    # Hearing

    async def _hear_forever(self) -> None:
        while True:
            try:
                await self._hear()
            except LINK_ERRORS as error:
                self._health.bad(HEARING, error)
            except Exception:
                self.surprises += 1
                LOG.exception("surprise while hearing the loads of other routers")
            await asyncio.sleep(RETRY_S)

    async def _hear(self) -> None:
        """Raises one of LINK_ERRORS when the channel fails or is silent."""
        await self._hearing.refresh()
        client = self._hearing.client(0)
        if client is None:
            raise ConnectionError("no node serves the channel")
        pubsub = client.pubsub(ignore_subscribe_messages=True)
        try:
            async with asyncio.timeout(self._settings.redis_timeout_s):
                await pubsub.subscribe(self._channel)
            echo_s = self._clock()
            while self._clock() - echo_s < ECHO_S:
                message = await pubsub.get_message(timeout=FULL_S)
                if message is not None and self._take(message["data"]):
                    echo_s = self._clock()
                    self._health.good(HEARING)
            raise TimeoutError
        finally:
            await pubsub.aclose()  # type: ignore[no-untyped-call]

    def _take(self, data: bytes) -> bool:
        """True for this router's own load."""
        try:
            load = decode_load(data)
        except BadMessage:
            self.bad_messages += 1
            return False
        if load.router == self._router:
            return True
        peer = self._peers.get(load.router)
        if peer is None:
            if len(self._peers) >= MAX_ROUTERS:
                self.refused += 1
                return False
            peer = self._peers[load.router] = Peer(load.seq - 1)
        if load.seq > peer.seq:
            self.gaps += load.seq - peer.seq - 1
            peer.seq = load.seq
            peer.heard_s = self._clock()
            self._pass_on(load)
        return False

    def _pass_on(self, load: RouterLoad) -> None:
        self.heard += 1
        try:
            self._listener.router_load(load)
        except Exception:
            self.surprises += 1
            LOG.exception("surprise while taking in the load of router %s", load.router)

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_S)
            oldest_s = self._clock() - self._settings.load_ttl_s
            for router in [router for router, peer in self._peers.items() if peer.heard_s < oldest_s]:
                peer = self._peers.pop(router)
                self._pass_on(RouterLoad(router, peer.seq, True, {}))


class Peer:
    """Another router."""

    def __init__(self, seq: int) -> None:
        self.seq = seq  # of its last load
        self.heard_s = 0.0
