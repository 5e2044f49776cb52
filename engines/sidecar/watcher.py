"""One engine under watch: what is looked at when, and what a failure means. Does not sleep: the loop is in watch.py."""

import asyncio
import logging
import math
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engines.adapter import Adapter, Health, Look
from engines.fetch import BadAnswer, EngineError, NoAnswer, Refused
from engines.sidecar.portrait import Portrait
from router.core.types import Lifecycle, WorkerReport
from router.settings import EngineSpec, FleetSettings

LOG = logging.getLogger("warmline.fleet")
MAX_SCRAPES_PER_S = 200.0  # over the whole fleet: one GET costs the router's loop a third of a millisecond
MAX_PROBES_PER_S = 100.0
SHOWN_MODELS = 8
FLAP_WINDOW_S = 30.0  # a fourth restart within it is none

T = TypeVar("T")


class Watcher:
    """Publishes a report after every look that succeeded, and after every failed one once the engine counts as down.

    Between a first failure and that verdict nothing is published. A report is stamped with the time at which its look
    began, so that it never overrules a failure that the proxy met meanwhile.

    The load is looked at with every probe and, while requests wait in the engine, each scrape interval: routers know their
    own requests, and looking four times a second at four engines cost a router a tenth of the CPU of 117 streams a second.
    """

    def __init__(
        self,
        spec: EngineSpec,
        settings: FleetSettings,
        adapter: Adapter,
        publish: Callable[[WorkerReport], None],
        clock: Callable[[], float],
        fleet_size: Callable[[], int] = lambda: 1,
        *,
        unmarked: str = "start",
    ) -> None:
        self._worker_id = spec.worker_id
        self._given_model = spec.model
        self._settings = settings
        self._adapter = adapter
        self._publish = publish
        self._clock = clock
        self._fleet_size = fleet_size
        self._phase = zlib.crc32(spec.worker_id.encode()) / 2**32  # spreads the rounds of a fleet over the interval
        self._probe_at_s: float | None = None
        self._scrape_at_s = 0.0
        self._portrait = Portrait(spec, unmarked)
        self._fresh = True
        self._answered = False  # since nothing was reachable
        self._failures_in_row = 0
        self._probe_failures = 0
        self._scrape_failures = 0
        self._restarts_at_s: deque[float] = deque([float("-inf")] * 3, maxlen=3)
        self._told_of_flaps = False
        self._told_of_models = False

    async def round(self) -> None:
        """Looks at what is due. Raises nothing but cancellation: a surprise is logged, counted, and tried again later."""
        try:
            await self._look()
        except Exception:
            self._probe_failures += 1
            LOG.exception("worker %s: surprise while looking at it", self._worker_id)

    def pause_s(self) -> float:
        """Time until the next look is due."""
        if self._probe_at_s is None:
            return 0.0
        due_s = min(self._probe_at_s, self._scrape_at_s) if self._is_scraped else self._probe_at_s
        return max(due_s - self._clock(), 0.0)

    @property
    def _is_ready(self) -> bool:
        return self._portrait.lifecycle is Lifecycle.READY

    @property
    def _is_scraped(self) -> bool:
        """Whether looks at the load are due between probes."""
        return self._is_ready and self._portrait.has_queue

    async def _look(self) -> None:
        now_s = self._clock()
        if self._probe_at_s is None or now_s >= self._probe_at_s:
            await self._probe()
        elif self._is_scraped and now_s >= self._scrape_at_s:
            answered = await self._scrape()
            if answered:
                self._report(now_s)
            elif answered is False:
                await self._probe()  # busy or gone: the health route tells at once

    async def _probe(self) -> None:
        began_s = self._clock()
        self._plan(began_s)
        try:
            health = await self._within(self._adapter.health())
            if health.lifecycle is Lifecycle.DOWN:
                raise BadAnswer(health.detail)
            if health.lifecycle is Lifecycle.READY:
                await self._describe()
        except EngineError as error:
            self._failed(error, began_s)
            return
        self._failures_in_row = 0
        self._answered = True
        if health.lifecycle is Lifecycle.READY:
            await self._ready(health, began_s)
        else:
            self._not_yet(health, began_s)

    async def _describe(self) -> None:
        """Failing here is a failed probe only while the models were never told: a busy engine may be slow to list them."""
        try:
            look = await self._within(self._adapter.describe(fresh=self._fresh))
        except EngineError:
            if not self._portrait.described and self._given_model is None:
                raise
            self._probe_failures += 1
            return
        if look.unlisted and self._given_model is None:
            raise BadAnswer(f"{look.detail}; is its URL right? If it is, name the model with model=")
        self._tell_of_models(look)
        before = self._portrait.models
        restarted = self._portrait.describe(look, fresh=self._fresh)
        self._fresh = False
        if restarted:
            self._restarted()
        if before is not None and before != look.models:
            LOG.info("worker %s: now serves %s", self._worker_id, listed(look.models))

    def _tell_of_models(self, look: Look) -> None:
        """An engine that does not list its models is warned of once, not at every probe."""
        if look.models is None and not self._told_of_models:
            given = self._given_model
            effect = (
                "it gets requests for any model; name one with model="
                if given is None
                else f"taken to serve {listed((given,))}"
            )
            LOG.warning("worker %s: %s; %s", self._worker_id, look.detail, effect)
        self._told_of_models = look.models is None

    async def _ready(self, health: Health, began_s: float) -> None:
        """The load is looked at before the word is out, so that already the first report carries size and generation."""
        await self._scrape()
        if self._portrait.generation.settle():
            self._log_restart()
        self._become(health)
        self._report(began_s)

    def _not_yet(self, health: Health, began_s: float) -> None:
        """A ready engine that loads again is another process, or one that is leaving: its cache is in doubt."""
        if self._is_ready:
            self._portrait.generation.lost()
        self._fresh = True
        self._become(health)
        self._report(began_s)

    def _failed(self, error: EngineError, began_s: float) -> None:
        self._failures_in_row += 1
        self._probe_failures += 1
        if isinstance(error, Refused):
            self._portrait.generation.lost()
            self._fresh = True
            self._answered = False
            soon_s = min(self._settings.scrape_interval_s, self._settings.probe_interval_s)
            self._probe_at_s = self._clock() + soon_s
        if self._failures_in_row < self._settings.probe_failures:
            return
        self._plan(began_s)
        self._portrait.generation.lost()
        self._fresh = True
        starting = isinstance(error, NoAnswer) and not self._answered
        self._become(Health(Lifecycle.LOADING if starting else Lifecycle.DOWN, str(error)))
        self._report(began_s)

    async def _scrape(self) -> bool | None:
        """Whether the engine answered; None when its kind has no load to ask for."""
        self._scrape_at_s = self._clock() + self._scrape_interval_s()
        try:
            look = await self._within(self._adapter.scrape())
        except EngineError:
            self._scrape_failures += 1
            self._portrait.forget_load()
            return False
        if look is None:
            self._scrape_at_s = math.inf  # not before the next probe asks again
            return None
        if self._portrait.measure(look):
            self._restarted()
        return True

    async def _within(self, look: Awaitable[T]) -> T:
        """One step of several GETs under the one deadline."""
        try:
            async with asyncio.timeout(self._settings.probe_timeout_s):
                return await look
        except TimeoutError:
            raise NoAnswer(f"no answer within {self._settings.probe_timeout_s:g} s") from None

    def _plan(self, now_s: float) -> None:
        """Next probe: an interval on, the second one at the worker's own phase of it."""
        interval_s = max(self._settings.probe_interval_s, self._fleet_size() / MAX_PROBES_PER_S)
        part = (0.5 + self._phase / 2) if self._probe_at_s is None else 1.0
        self._probe_at_s = now_s + interval_s * part

    def _scrape_interval_s(self) -> float:
        return max(self._settings.scrape_interval_s, self._fleet_size() / MAX_SCRAPES_PER_S)

    def _become(self, health: Health) -> None:
        before = self._portrait.lifecycle
        self._portrait.lifecycle, self._portrait.detail = health.lifecycle, health.detail
        if before is health.lifecycle:
            return
        if health.lifecycle is Lifecycle.READY:
            LOG.info("worker %s: %s → ready, serves %s", self._worker_id, before, listed(self._portrait.models))
        else:
            level = logging.WARNING if health.lifecycle is Lifecycle.DOWN else logging.INFO
            LOG.log(level, "worker %s: %s → %s, %s", self._worker_id, before, health.lifecycle, health.detail)

    def _restarted(self) -> None:
        """The facts belong to another process: the next probe asks for all of them again."""
        self._fresh = True
        self._log_restart()

    def _log_restart(self) -> None:
        """Several engines behind one URL look like a restart at every look: that is said once, not four times a second."""
        now_s = self._clock()
        flaps = now_s - self._restarts_at_s[0] < FLAP_WINDOW_S
        self._restarts_at_s.append(now_s)
        if not flaps:
            LOG.warning("worker %s: restarted, what it had cached is forgotten", self._worker_id)
        elif not self._told_of_flaps:
            LOG.warning("worker %s: restarts at every look; are there several engines behind its URL?", self._worker_id)
        self._told_of_flaps = flaps

    def _report(self, began_s: float) -> None:
        counts = {"probe_failures": float(self._probe_failures), "scrape_failures": float(self._scrape_failures)}
        self._publish(self._portrait.report(began_s, counts))


def listed(models: tuple[str, ...] | None) -> str:
    """Model names for one log line."""
    if models is None:
        return "models it does not tell"
    more = f" and {len(models) - SHOWN_MODELS} more" if len(models) > SHOWN_MODELS else ""
    return (", ".join(name if name.isprintable() else repr(name) for name in models[:SHOWN_MODELS]) or "no model") + more
