"""The composition root: builds, starts, drains and closes every part of a router process."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import random
import resource
import signal
import time
from collections.abc import Callable

import uvloop
from aiohttp import web

from engines.fetch import EngineHttp
from engines.shared_answers import SharedAnswers
from engines.sidecar.watch import shared_by_ranks, watch
from engines.token_routes import token_routes_of
from router.admin.app import make_app
from router.admin.recordings import Recordings
from router.catch_up import CatchUp
from router.core.fleet import Fleet, FleetChange
from router.core.placement import Placement
from router.core.stats import Stats
from router.core.types import WorkerId
from router.intake import Intake
from router.log import AccessLog, setup_logging
from router.overview import Overview
from router.proxy.listener import Listener
from router.proxy.plane import DataPlane
from router.settings import EngineSpec, Settings
from router.shared_pool import SharedPool
from router.state.memory import MemoryState
from router.tokens.book import TokenizerBook
from router.tokens.keyer import Keyer
from router.tokens.parity_watch import ParityWatch
from router.wire.engine_tokens import TokenRoutes

log = logging.getLogger("warmline")
BACKLOG = 4096  # connections the kernel holds before they are accepted
DRAIN_POLL_S = 0.05
ADMIN_SHUTDOWN_S = 1.0  # a half-sent request to the admin port does not hold up the end
YOUNG_OBJECTS = 5_000  # allocations between two collections of the youngest, 0.2 ms each
NO_FULL_COLLECTIONS = 1_000_000
KEPT_BYTES = 64 * 1024 * 1024
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h


class Router:
    """One router process. `serve` runs it from start-up to the end of draining."""

    def __init__(self, settings: Settings, stats: Stats, book: TokenizerBook, access_log: AccessLog | None) -> None:
        self.settings = settings
        self.stats = stats
        self.fleet = Fleet(settings.fleet)
        self.placement = Placement(settings.routing, settings.cache, self.fleet, stats, random.Random())
        self.keyer = Keyer(settings.tokens, book, stats, settings.routing.ring_blocks, self.fleet.namespaces)
        self.plane = DataPlane(settings, stats, self.fleet, self.placement, self.keyer, access_log, time.monotonic, time.time)
        self.listener = Listener(self.plane)
        self.parity = ParityWatch(settings.tokens, self.fleet, self.keyer.sources, self.token_routes, time.monotonic)
        self.fleet.on_change = tell_of_trust
        self.intake = Intake(self.fleet, self.placement, time.monotonic, self.plane.pool.close_worker)
        self.state = MemoryState(self.intake)
        self.shared: SharedPool | None = None
        if settings.state.redis:
            self.shared = SharedPool(settings, self.fleet, self.placement, self.intake, self._forget)
        self.catch_up = CatchUp(self.placement, time.monotonic, self._want_snapshot)
        self.overview = Overview(self.plane, self.parity, access_log, self.shared, self.catch_up)
        self.recordings = Recordings(settings.log.max_recording_bytes, stats, time.monotonic, self._listen)
        self._stop = asyncio.Event()
        self._watches: dict[WorkerId, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._token_https: dict[WorkerId, EngineHttp] = {}

    # Workers

    def add_worker(self, spec: EngineSpec) -> None:
        """Start to watch an engine, or each of its ranks, and to route to it once it is ready.

        Raises ValueError where there is no room for all of it.
        """
        ranks = spec.by_rank()
        if len(self.fleet) + len(ranks) > self.settings.fleet.max_workers:
            raise ValueError(f"max_workers {self.settings.fleet.max_workers} is reached")
        shared = shared_by_ranks(spec, self.settings.fleet, time.monotonic)
        for rank in ranks:
            self._add_rank(rank, shared)

    def _add_rank(self, spec: EngineSpec, shared: SharedAnswers | None) -> None:
        assert self._group is not None
        worker = self.fleet.add(spec, time.monotonic())
        log.info("worker %s joins as %s", worker.id, worker.kind)
        if self.shared is not None:
            self.shared.intake.watch(worker.id)
        settings = self.settings
        self._watches[worker.id] = self._group.create_task(
            watch(spec, settings.fleet, settings.events, self.state, time.monotonic, self._fleet_size, shared=shared)
        )

    def remove_worker(self, worker_id: str) -> None:
        """Forget a worker and all that is known of it; requests on it go on to their end.

        One that a sidecar reports stays away until it is added, or its sidecar was silent for a while.
        """
        if self.shared is not None:
            self.shared.intake.drop(WorkerId(worker_id))
        self._forget(worker_id)

    def _forget(self, worker_id: str) -> None:
        worker = self.fleet.remove(worker_id)
        if worker is not None:
            watching = self._watches.pop(worker.id, None)  # None: a sidecar does
            if watching is not None:
                watching.cancel()
                self.state.leave(worker.id)
            self.plane.forget_worker(worker.id)
            self.keyer.asking.forget(worker.id)
            if (http := self._token_https.pop(worker.id, None)) is not None:
                http.close()
            log.info("worker %s is removed; requests on it end on their own", worker.id)

    def drain_worker(self, worker_id: str) -> None:
        self.fleet.drain(worker_id)
        log.info("worker %s is drained: it gets no new requests until it is resumed", worker_id)

    def resume_worker(self, worker_id: str) -> None:
        self.fleet.resume(worker_id)
        log.info("worker %s is resumed", worker_id)

    def token_routes(self, worker_id: WorkerId) -> TokenRoutes | None:
        """How a worker is asked for tokens; None where it is gone or its kind cannot be."""
        worker = self.fleet.get(worker_id)
        if worker is None:
            return None
        http = self._token_https.get(worker.id)
        if http is None:
            http = self._token_https[worker.id] = EngineHttp(worker.spec, self.settings.fleet.probe_timeout_s)
        return token_routes_of(worker.kind, http)

    def _want_snapshot(self, worker_id: WorkerId) -> None:
        if worker_id in self._watches:
            self.state.want_snapshot(worker_id)
        elif self.shared is not None:
            self.shared.follower.want_snapshot(worker_id)

    def _fleet_size(self) -> int:
        return len(self._watches)

    # Running

    async def serve(self, started: Callable[[int, int], None] | None = None) -> None:
        """Listen until `stop`, then drain. `started(port, admin_port)` is called once both ports are bound.

        Raises OSError when a port cannot be bound.
        """
        settings, loop = self.settings, asyncio.get_running_loop()
        server = await loop.create_server(
            self.listener.protocol, settings.listen.host, settings.listen.port, backlog=BACKLOG, start_serving=False
        )
        try:
            async with contextlib.AsyncExitStack() as stack:
                admin_port = await self._start_admin(stack)
                self._group = await stack.enter_async_context(asyncio.TaskGroup())
                self.plane.pool.start(self._group)
                self.keyer.asking.open(self._group, self.token_routes)
                loops = [
                    self._group.create_task(self.listener.sweep_forever(time.monotonic)),
                    self._group.create_task(self.catch_up.run()),
                ]
                if settings.tokens.check_tokens:
                    loops.append(self._group.create_task(self.parity.run()))
                for spec in settings.engines:
                    self.add_worker(spec)
                if self.shared is not None:
                    loops.append(self._group.create_task(self.shared.run()))
                    await self._join_pool(self.shared)
                keep_collections_short()
                await server.start_serving()
                port = server.sockets[0].getsockname()[1]
                if started is not None:
                    started(port, admin_port)
                await self._stop.wait()
                await self._drain(server)
                self.keyer.asking.close()
                for http in self._token_https.values():
                    http.close()
                for task in (*loops, *self._watches.values()):
                    task.cancel()
                self.plane.pool.close()
        finally:
            server.close()
            self.keyer.close()

    async def _join_pool(self, shared: SharedPool) -> None:
        """Waits for the picture of the pool, within limits, and says what it is."""
        began_s = time.monotonic()
        is_whole = await shared.caught_up(self.catch_up)
        held = sum(self.placement.blocks_held(worker) for worker in self.fleet.workers)
        words = "picture of the pool" if is_whole else "picture of the pool is not complete"
        log.info("%s after %.2f s: %d workers, %d cached blocks", words, time.monotonic() - began_s, len(self.fleet), held)

    async def _start_admin(self, stack: contextlib.AsyncExitStack) -> int:
        listen = self.settings.listen
        app = make_app(self.overview, self, self.stats, self.recordings)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=ADMIN_SHUTDOWN_S)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, listen.host, listen.admin_port)
        await site.start()
        return int(runner.addresses[0][1])

    def _listen(self, listens: bool) -> None:
        """Requests are noted only while somebody records."""
        self.plane.recorder = self.recordings if listens else None

    def stop(self) -> None:
        """Begin to drain; a second call ends what is still in flight."""
        if self._stop.is_set():
            self.listener.abort_all()
        self._stop.set()

    async def _drain(self, server: asyncio.Server) -> None:
        """Stop listening, let requests in flight end within drain_timeout_s, then cut the rest."""
        self.plane.draining = True
        log.info("shutting down: no new connections, %d requests in flight", self.stats.requests_in_flight)
        server.close()
        self.listener.close_idle()
        deadline_s = time.monotonic() + self.settings.limits.drain_timeout_s
        while self.listener.owes_answers() and time.monotonic() < deadline_s:  # noqa: ASYNC110 - polled at shutdown only
            await asyncio.sleep(DRAIN_POLL_S)
        if self.stats.requests_in_flight:
            log.warning("drain timeout: %d requests are cut", self.stats.requests_in_flight)
        self.listener.abort_all()
        log.info("stopped")


def tell_of_trust(change: FleetChange) -> None:
    """One line when a worker's cache is believed less because of what its engine counted, and when it is believed again."""
    worker = change.worker
    if change.what != "truth" or not worker.trust.demotions:
        return
    if worker.trust.events.doubt or worker.trust.history.doubt:
        log.warning("worker %s: its cache is believed less, %s", worker.id, change.detail)
    else:
        log.info("worker %s: its cache is believed again, cache truth is %s", worker.id, change.after)


def run(settings: Settings) -> int:
    """Run a router until SIGTERM or SIGINT; the exit status.

    Raises SettingsError for a tokenizer and OSError for a port that cannot be used.
    """
    stats = Stats()
    book = TokenizerBook(settings.tokens)
    raise_file_limit()
    keep_freed_memory()
    handler = setup_logging(settings.log, stats)
    access_log = AccessLog(settings.log, stats) if settings.log.access_log else None
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_main(settings, stats, book, access_log))
        return 0
    finally:
        if access_log is not None:
            access_log.close()
        handler.close()


async def _main(settings: Settings, stats: Stats, book: TokenizerBook, access_log: AccessLog | None) -> None:
    router = Router(settings, stats, book, access_log)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, router.stop)
    host = settings.listen.host

    def started(port: int, admin_port: int) -> None:
        log.info("listening on http://%s:%d, admin on http://%s:%d", host, port, host, admin_port)

    await router.serve(started)


def keep_collections_short() -> None:
    """Let the cycle collector look at young objects only, so that no pause grows with the index (user-pain P39).

    A full collection walks every object: with a million index nodes that stops the event loop for 100 ms and more.
    So cycles are collected while they are young; what lives longer is freed by its reference counts, and long-lived
    objects here (connections, leases, index nodes) part their cycles when they end. Collecting every 700 allocations,
    Python's default, costs a tenth of a request.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, NO_FULL_COLLECTIONS)


def keep_freed_memory() -> None:
    """Tell glibc to keep memory that large bodies gave back, for the next ones; elsewhere this does nothing.

    By default it returns blocks over 128 KB to the system at once, and taking them back page by page made up two
    thirds of the cost of relaying a 100 KB body (105 against 35 us).
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES // 2)


def raise_file_limit() -> None:
    """Use all file descriptors the system grants: a stream takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
