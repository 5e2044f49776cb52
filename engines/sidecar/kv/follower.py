"""One worker's cache, followed through its engine's KV events, and how far it can be trusted: the loop beside the watcher's."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from engines.fetch import EngineHttp
from engines.sidecar.kv.mirror import NOTHING_YET, CacheMirror
from engines.sidecar.kv.proof import Prover
from engines.sidecar.kv.socket import Endpoint
from engines.sidecar.kv.sources import EventSource, NoSource, find_source
from engines.sidecar.kv.stream import EventStream
from router.core.fleet import adapter_name
from router.core.types import Lifecycle, Truth, WorkerId, WorkerReport
from router.settings import EngineSpec, EventSettings
from router.state.contract import StatePublisher

LOG = logging.getLogger("warmline.fleet")
SOURCE_RETRY_S = 30.0  # until an engine without events is asked again
SURPRISE_PAUSE_S = 1.0
NARRATE_S = 2.0  # what stays from one look to the next is logged
POSTPONED_S = 0.25  # until a self-test is tried again that was put off
SAME_RESTART_S = 10.0  # within which events and scrapes tell of one restart: an engine takes longer to load a second time
NOT_TESTED = "self-test: not done yet"


class Resync(Exception):
    """The engine restarted or serves another model: its events are followed from the start again."""


class CacheFollower:
    """The watcher's reports pass through `report`, which adds what events tell; `run` follows the events."""

    def __init__(
        self,
        spec: EngineSpec,
        limits: EventSettings,
        http: EngineHttp,
        test_http: EngineHttp,
        publisher: StatePublisher,
        clock: Callable[[], float],
    ) -> None:
        self._spec = spec
        self._worker = WorkerId(spec.worker_id)
        self._limits = limits
        self._http = http
        self._publisher = publisher
        self._clock = clock
        self._mirror = CacheMirror(self._worker, spec.rank, limits, publisher.delta, self._events_restarted, self._review)
        self._prover = Prover(test_http, self._mirror, spec.rank, limits.self_test_timeout_s)
        self._stream: EventStream | None = None
        self._no_source = ""
        self._engine_generation = ""
        self._lives = 0  # restarts that the events showed
        self._restarted_s = float("-inf")  # when they did, unless a scrape has shown the same restart since
        self._model: str | None = None
        self._report: WorkerReport | None = None
        self._verdict = (Truth.MODELLED, "")
        self._proof = self._unproven = NOT_TESTED if limits.self_test else ""
        self._unproved = asyncio.Event()
        self._ready = asyncio.Event()
        self._resync = asyncio.Event()

    # Reports

    def report(self, report: WorkerReport) -> None:
        """Passes a report on. Takes note of restarts, of the model, and of whether the engine is ready."""
        self._report = report
        if report.generation != self._engine_generation:
            self._engine_restarted(report.generation)
        self._mirror.name_adapters(adapter_texts(report))
        model = base_model(self._spec, report)
        if model is not None and model != self._model:
            self._model = model
            self._resync.set()
        if report.lifecycle is Lifecycle.READY and report.generation and self._model is not None:
            self._ready.set()
        self._republish()

    def _republish(self) -> None:
        """The last report with what events tell now."""
        self._verdict = self.truth()
        if self._report is not None:
            self._publisher.report(self._amended(self._report))

    def _amended(self, report: WorkerReport) -> WorkerReport:
        truth, reason = self._verdict
        if self._stream is None:
            truth, reason = report.truth, report.truth_reason or (reason if report.truth is Truth.MODELLED else "")
        return replace(
            report,
            generation=self.generation,
            block_tokens=self._mirror.block_tokens or report.block_tokens,
            truth=truth,
            truth_reason=reason,
            extra={**report.extra, **self._counts()},
        )

    @property
    def generation(self) -> str:
        """The engine's, by markers and counters that scrapes show, and the number of restarts that its events showed."""
        if not self._engine_generation or not self._lives:
            return self._engine_generation
        return f"{self._engine_generation}+{self._lives}"

    def truth(self) -> tuple[Truth, str]:
        """Exact only while all events since the engine's start were followed and the self-test was passed."""
        stream = self._stream
        if stream is None:
            return Truth.MODELLED, self._no_source
        doubt = self._mirror.doubt
        if doubt == NOTHING_YET and self._proof:
            doubt = self._proof  # may say why
        reason = stream.trouble or doubt or self._proof
        return (Truth.UNTRUSTED, reason) if reason else (Truth.EXACT, "")

    def _counts(self) -> dict[str, float]:
        stream = self._stream
        if stream is None:
            return {}
        return {**self._mirror.counts(), "kv_gaps": float(stream.gaps), "kv_malformed_messages": float(stream.malformed)}

    def _engine_restarted(self, generation: str) -> None:
        """A scrape showed it. Where the events have done so just before, what they told since is of the new process."""
        first, self._engine_generation = not self._engine_generation, generation
        self._proof = self._unproven
        if first or self._clock() - self._restarted_s < SAME_RESTART_S:
            self._mirror.rename(self.generation)
            self._unproved.set()
        else:
            self._mirror.restart(self.generation, "the engine has restarted")
            self._resync.set()
        self._restarted_s = float("-inf")

    def _events_restarted(self) -> None:
        self._lives += 1
        self._restarted_s = self._clock()
        self._proof = self._unproven
        self._unproved.set()
        self._mirror.rename(self.generation)
        LOG.warning("worker %s: its KV events begin anew, what it had cached is forgotten", self._worker)
        self._republish()

    def _review(self) -> None:
        """Routers hear at once when the truth becomes another one."""
        if self.truth() != self._verdict:
            self._republish()

    # The loop

    async def run(self) -> None:
        """Until cancelled. A surprise is logged, and everything begins anew."""
        self._publisher.follow(self._worker, self._mirror.snapshot)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._narrate())
            while True:
                await self._ready.wait()
                self._resync.clear()
                try:
                    await self._follow()
                except Exception:
                    LOG.exception("worker %s: surprise while following its KV events", self._worker)
                    await asyncio.sleep(SURPRISE_PAUSE_S)

    async def _narrate(self) -> None:
        """People hear of what lasts."""
        told = seen = self._verdict
        while True:
            await asyncio.sleep(NARRATE_S)
            before, seen = seen, self._verdict
            if seen == before and seen != told:
                told = seen
                truth, reason = told
                level = logging.WARNING if truth is Truth.UNTRUSTED else logging.INFO
                LOG.log(level, "worker %s: cache truth is %s%s", self._worker, truth, f": {reason}" if reason else "")

    async def _follow(self) -> None:
        """Returns when it is to be done anew."""
        try:
            source = await find_source(self._spec, self._http)
            await self._follow_source(source)
            return
        except (NoSource, Endpoint) as error:
            self._no_source = str(error)
        self._review()
        with suppress(TimeoutError):
            async with asyncio.timeout(SOURCE_RETRY_S):
                await self._resync.wait()

    async def _follow_source(self, source: EventSource) -> None:
        """Until the engine restarts. Raises Endpoint."""
        assert self._model is not None
        self._mirror.begin(self._model)
        stream = self._stream = EventStream(source, self._limits, self._mirror)
        self._proof = self._unproven
        self._review()
        unusable: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(stream.run())
                group.create_task(self._prove(stream))
                group.create_task(self._interrupt())
        except* Resync:
            pass
        except* Endpoint as errors:
            unusable = errors.exceptions[0]
        finally:
            self._stream = None
        if unusable is not None:
            raise unusable

    async def _interrupt(self) -> None:
        await self._resync.wait()
        raise Resync

    async def _prove(self, stream: EventStream) -> None:
        """Tests whenever another generation is to be proved, and again after a while where it failed."""
        while True:
            self._unproved.clear()
            pause_s: float | None = None
            if self._limits.self_test:
                pause_s = await self._test(stream)
                self._review()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._unproved.wait()

    async def _test(self, stream: EventStream) -> float | None:
        """When to test again: None once it was passed."""
        report = self._report
        assert report is not None and self._model is not None
        if report.lifecycle is not Lifecycle.READY or report.waiting or not stream.connected:
            return POSTPONED_S
        reason = await self._prover.test(self._model, stream, report.block_tokens)
        if self._unproved.is_set():
            return 0.0
        self._proof = f"self-test: {reason}" if reason else ""
        return self._limits.self_test_retry_s if reason else None


def base_model(spec: EngineSpec, report: WorkerReport) -> str | None:
    """The model under whose name keys are made: the one that is given, else the first that is no adapter."""
    if spec.model is not None:
        return spec.model
    adapters = adapter_texts(report)
    return next((name for name in report.models or () if name not in adapters), None)


def adapter_texts(report: WorkerReport) -> dict[str, str]:
    """LoRA adapters by name: the text that keys of their prompts are made with."""
    return {adapter_name(text, report.models or ()): text for text in report.adapters or ()}
