"""engines.sidecar.watcher: lifecycles, restarts and reports of a real-socket engine, round by round, with time passed in."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from engines.adapter import Health, Look
from engines.fetch import EngineHttp
from engines.kinds import adapter_of
from engines.sidecar.watcher import Watcher, listed
from router.core.types import Lifecycle, WorkerReport
from router.settings import EngineSpec, FleetSettings
from tests.engines.fake_engine import HANGS, FakeEngine, Reply, as_json

MODELS = as_json({"data": [{"id": "m"}]})
SETTINGS = FleetSettings(probe_interval_s=1.0, probe_timeout_s=5.0, scrape_interval_s=0.25, probe_failures=2)
IMPATIENT = replace(SETTINGS, probe_timeout_s=0.2)  # where something hangs on purpose


def page(running: int, start: float | None = 17.0, done: float = 0.0, waiting: int = 1) -> Reply:
    text = f'vllm:num_requests_running{{engine="0"}} {running}\nvllm:prompt_tokens_total{{engine="0"}} {done}\n'
    text += f'vllm:num_requests_waiting{{engine="0"}} {waiting}\n'
    text += 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
    return Reply((text + (f"process_start_time_seconds {start}\n" if start is not None else "")).encode())


def vllm_routes(**changes: Reply) -> dict[str, Reply]:
    return {"/health": Reply(), "/v1/models": MODELS, "/metrics": page(3), **changes}


class Scene:
    """A watcher of one engine, its clock and everything it published."""

    def __init__(
        self, engine: FakeEngine, http: EngineHttp, spec: EngineSpec, settings: FleetSettings, fleet_size: int
    ) -> None:
        self.engine = engine
        self.now_s = 100.0
        self.reports: list[WorkerReport] = []
        adapter = adapter_of(spec.kind, http)
        publish, clock = self.reports.append, lambda: self.now_s
        self.watcher = Watcher(spec, settings, adapter, publish, clock, lambda: fleet_size)

    async def rounds(self, count: int = 1, step_s: float | None = None) -> list[WorkerReport]:
        """So many rounds, each when it is due (or after `step_s`); what they published."""
        before = len(self.reports)
        for _ in range(count):
            self.now_s += self.watcher.pause_s() if step_s is None else step_s
            await self.watcher.round()
        return self.reports[before:]

    @property
    def last(self) -> WorkerReport:
        return self.reports[-1]


@asynccontextmanager
async def scene(
    routes: dict[str, Reply],
    kind: str = "vllm",
    settings: FleetSettings = SETTINGS,
    fleet_size: int = 1,
    **options: Any,
) -> AsyncIterator[Scene]:
    async with FakeEngine(routes) as engine:
        spec = engine.spec(kind, **options)
        yield Scene(engine, EngineHttp(spec, settings.probe_timeout_s), spec, settings, fleet_size)


async def test_first_report_is_whole() -> None:
    """The first report of a ready engine carries models, cache size, load and generation, stamped with when the look began."""
    async with scene(vllm_routes()) as s:
        (report,) = await s.rounds()
        assert (report.lifecycle, report.models, report.capacity_tokens, report.running) == (Lifecycle.READY, ("m",), 1600, 3)
        assert (report.generation, report.reported_at_s) == ("17.0.0", 100.0)
        assert s.engine.asked == ["/health", "/v1/models", "/metrics"]


async def test_scrapes_between_probes() -> None:
    """A ready engine's load is read each scrape interval, its health each probe interval."""
    async with scene(vllm_routes()) as s:
        await s.rounds()
        s.engine.asked.clear()
        s.engine.routes["/metrics"] = page(9)
        assert [report.running for report in await s.rounds(2)] == [9, 9]
        assert s.engine.asked == ["/metrics", "/metrics"]
        assert s.last.reported_at_s == pytest.approx(100.5)
        await s.rounds(1, step_s=1.0)
        assert s.engine.asked[2:] == ["/health", "/v1/models", "/metrics"]
        assert await s.rounds(1, step_s=0.01) == []


async def test_looks_closely_while_requests_wait() -> None:
    """Where nothing waits in the engine its load is read with each probe only; once something does, each scrape interval."""
    async with scene(vllm_routes(**{"/metrics": page(3, waiting=0)})) as s:
        await s.rounds(3)
        assert s.engine.asked == ["/health", "/v1/models", "/metrics"] * 3
        s.engine.routes["/metrics"] = page(9, waiting=4)
        await s.rounds(1)
        s.engine.asked.clear()
        assert s.watcher.pause_s() == pytest.approx(0.25)
        assert [report.waiting for report in await s.rounds(2)] == [4, 4]
        s.engine.routes["/metrics"] = page(9, waiting=0)
        assert [report.waiting for report in await s.rounds(1)] == [0]
        assert s.engine.asked == ["/metrics"] * 3
        assert s.watcher.pause_s() == pytest.approx(0.25)  # the next probe
        await s.rounds(1)
        assert s.engine.asked[3:] == ["/health", "/v1/models", "/metrics"]


async def test_death_and_return() -> None:
    """Refused: soon asked again, down after probe_failures in a row, ready again at the first answer, with a new generation."""
    async with scene(vllm_routes(**{"/metrics": page(3, start=None)})) as s:
        (before,) = await s.rounds()
        await s.engine.stop()
        assert await s.rounds() == []  # the first failure alone changes nothing
        assert s.watcher.pause_s() == pytest.approx(0.25)
        (down,) = await s.rounds()
        assert (down.lifecycle, down.detail, down.running) == (Lifecycle.DOWN, "no connection: connection refused", None)
        assert down.extra["probe_failures"] == 2.0
        assert s.watcher.pause_s() == pytest.approx(1.0)
        (still,) = await s.rounds()
        assert still.lifecycle is Lifecycle.DOWN
        await s.engine.start()
        (back,) = await s.rounds()
        assert (back.lifecycle, back.models, back.detail) == (Lifecycle.READY, ("m",), "")
        assert back.generation and back.generation != before.generation


async def test_same_process_after_an_absence() -> None:
    """A network gap is no restart when the process start is the same: the cache is still there."""
    async with scene(vllm_routes()) as s:
        (before,) = await s.rounds()
        await s.engine.stop()
        await s.rounds(3)
        await s.engine.start()
        (back,) = await s.rounds()
        assert back.generation == before.generation


async def test_short_absence_counts_too(caplog: pytest.LogCaptureFixture) -> None:
    """One refused look is enough to doubt an engine that shows no start: it stays ready, under a new generation."""
    async with scene(vllm_routes(**{"/metrics": Reply(status=404)})) as s:
        (before,) = await s.rounds()
        await s.engine.stop()
        await s.rounds()
        await s.engine.start()
        with caplog.at_level(logging.INFO, "warmline.fleet"):
            (back,) = await s.rounds()
        assert back.lifecycle is Lifecycle.READY and back.generation != before.generation
        assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
            "restarted, what it had cached is forgotten"
        ]


@pytest.mark.parametrize("changed", [page(0, start=18.0), page(0, start=17.0, done=1.0)])
async def test_restart_between_two_looks(changed: Reply) -> None:
    """A process start that changed, or a counter that fell, shows in the very next scrape."""
    async with scene(vllm_routes(**{"/metrics": page(3, done=5.0)})) as s:
        (before,) = await s.rounds()
        s.engine.routes["/metrics"] = changed
        (after,) = await s.rounds()
        assert after.generation != before.generation


async def test_restart_seen_in_the_facts() -> None:
    """A process marker that changed among the lasting facts is a restart as well, and all facts are asked for again."""
    facts = {"total_slots": 2, "default_generation_settings": {"n_ctx": 512}}
    markers = [f"<__media_{letter * 32}__>" for letter in "ab"]
    routes = {"/health": Reply(), "/v1/models": MODELS, "/props": as_json({**facts, "media_marker": markers[0]})}
    async with scene(routes, "llama.cpp") as s:
        (before,) = await s.rounds()
        assert before.capacity_tokens == 1024
        s.engine.routes["/props"] = as_json({**facts, "total_slots": 4, "media_marker": markers[1]})
        (after,) = await s.rounds(1, step_s=1.0)
        assert after.generation != before.generation and after.capacity_tokens == 2048


async def test_loading_engine() -> None:
    """503 "Loading model" is loading with the engine's words; once up it is ready within one probe interval."""
    loading = as_json({"error": {"message": "Loading model", "code": 503}}, 503)
    async with scene({"/health": loading}, "llama.cpp") as s:
        (report,) = await s.rounds()
        assert (report.lifecycle, report.detail) == (Lifecycle.LOADING, "/health answered 503: Loading model")
        s.engine.routes.update({"/health": Reply(), "/v1/models": MODELS})
        (report,) = await s.rounds()
        assert report.lifecycle is Lifecycle.READY


async def test_loading_again_is_a_restart() -> None:
    """A ready engine that answers "loading" has been replaced: nothing of its cache is trusted."""
    async with scene({"/health": Reply(), "/v1/models": MODELS}, "llama.cpp") as s:
        (before,) = await s.rounds()
        s.engine.routes["/health"] = Reply(status=503)
        (report,) = await s.rounds(1, step_s=1.0)
        assert report.lifecycle is Lifecycle.LOADING
        s.engine.routes["/health"] = Reply()
        (back,) = await s.rounds(1, step_s=1.0)
        assert back.lifecycle is Lifecycle.READY and back.generation != before.generation


async def test_silent_engine_never_ready_is_loading() -> None:
    """A port that accepts and says nothing (vLLM while it loads) is loading; one that was ready and falls silent goes down."""
    async with scene({"/health": HANGS}, settings=IMPATIENT) as s:
        assert await s.rounds() == []
        (report,) = await s.rounds()
        assert report.lifecycle is Lifecycle.LOADING and report.detail.endswith("no answer within 0.2 s")
        s.engine.routes.update(vllm_routes())
        await s.rounds()
        assert s.last.lifecycle is Lifecycle.READY
        s.engine.routes["/health"] = HANGS
        assert await s.rounds(1, step_s=1.0) == []
        (report,) = await s.rounds(1, step_s=1.0)
        assert report.lifecycle is Lifecycle.DOWN


async def test_dead_core_is_down() -> None:
    """An engine whose health route says 500 or that its core died is down after probe_failures, in its own words."""
    async with scene(vllm_routes(**{"/health": Reply(status=503)})) as s:
        assert await s.rounds() == []
        (report,) = await s.rounds()
        assert (report.lifecycle, report.detail) == (Lifecycle.DOWN, "/health answered 503")


async def test_busy_engine_stays_ready() -> None:
    """A load page that does not come makes the load unknown, asks the health route at once, and never takes the worker down."""
    async with scene(vllm_routes(), settings=IMPATIENT) as s:
        await s.rounds()
        s.engine.routes["/metrics"] = HANGS
        for _ in range(3):
            (report,) = await s.rounds()
            assert (report.lifecycle, report.running, report.capacity_tokens) == (Lifecycle.READY, None, 1600)
        assert report.extra["scrape_failures"] >= 3.0
        s.engine.routes["/metrics"] = page(2)
        (report,) = await s.rounds()
        assert report.running == 2


async def test_slow_model_list() -> None:
    """Known models are kept while their list does not come; one that never told them is not ready unless they are given."""
    async with scene(vllm_routes(), settings=IMPATIENT) as s:
        await s.rounds()
        s.engine.routes["/v1/models"] = HANGS
        (report,) = await s.rounds(1, step_s=1.0)
        assert (report.lifecycle, report.models) == (Lifecycle.READY, ("m",))
    async with scene(vllm_routes(**{"/v1/models": HANGS}), settings=IMPATIENT) as s:
        await s.rounds(2)
        assert s.last.lifecycle is Lifecycle.LOADING
    async with scene(vllm_routes(**{"/v1/models": HANGS}), settings=IMPATIENT, model="given") as s:
        await s.rounds()
        assert s.last.lifecycle is Lifecycle.READY


UNLISTED = {"/health": Reply(), "/v1/models": Reply(status=404)}


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llama.cpp"])
async def test_engine_without_its_model_list(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Health without the model list that its kind always has is a wrong URL: down, and it says what to do about it."""
    async with scene(UNLISTED, kind) as s:
        await s.rounds(4)
        seen = [s.last.lifecycle]
        why = "models unknown: /v1/models answered 404; is its URL right? If it is, name the model with model="
        assert s.last.detail == why
        s.engine.routes["/v1/models"] = MODELS
        await s.rounds()
        seen.append(s.last.lifecycle)
        s.engine.routes["/v1/models"] = Reply(status=404)
        await s.rounds(2, step_s=1.0)
        seen.append(s.last.lifecycle)
        assert seen == [Lifecycle.DOWN, Lifecycle.READY, Lifecycle.DOWN]


@pytest.mark.parametrize(
    ("kind", "options", "effect"),
    [
        ("vllm", {"model": "m"}, "taken to serve m"),
        ("openai", {}, "it gets requests for any model; name one with model="),
        ("openai", {"model": "m"}, "taken to serve m"),
    ],
)
async def test_unknown_models_are_warned_of_once(
    kind: str, options: dict[str, Any], effect: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the model is given, or the kind may lack the list, it is used; one warning and `why` say what is not known."""
    async with scene(UNLISTED, kind, **options) as s:
        await s.rounds(4, step_s=1.0)
        assert (s.last.lifecycle, s.last.detail) == (Lifecycle.READY, "models unknown: /v1/models answered 404")
        assert [r.getMessage().partition(": ")[2] for r in caplog.records if r.levelno == logging.WARNING] == [
            f"models unknown: /v1/models answered 404; {effect}"
        ]


@pytest.mark.parametrize(
    "reply",
    [Reply(b"<html>busy</html>"), Reply(b"\xff\xfe\x00"), Reply(b"x" * 2_000_000), as_json({"data": 7}), Reply(status=500)],
)
async def test_nonsense_never_ends_the_rounds(reply: Reply) -> None:
    """HTML, binary, huge or mistyped answers on every route but health: the worker is ready with what is known."""
    async with scene({"/health": Reply(), "/v1/models": reply, "/metrics": reply}, model="m") as s:
        await s.rounds(6)
        assert (s.last.lifecycle, s.last.running) == (Lifecycle.READY, None)


async def test_nonsense_on_the_health_route() -> None:
    """An engine whose health route talks nonsense is down, and ready again as soon as it does not."""
    async with scene(vllm_routes(**{"/health": Reply(b"x" * 2_000_000)})) as s:
        await s.rounds(2)
        assert (s.last.lifecycle, s.last.detail) == (Lifecycle.DOWN, "/health answered more than 1048576 bytes")
        s.engine.routes["/health"] = Reply()
        await s.rounds()
        assert s.last.lifecycle is Lifecycle.READY


async def test_kind_without_load() -> None:
    """For a generic server only probes are evidence of life: nothing is published in between."""
    async with scene({"/v1/models": MODELS}, "openai") as s:
        assert len(await s.rounds()) == 1
        assert await s.rounds(1, step_s=0.3) == []
        assert len(await s.rounds(1, step_s=1.0)) == 1


async def test_one_log_line_per_change(caplog: pytest.LogCaptureFixture) -> None:
    """Each change of state or models is one line; rounds that change nothing say nothing; keys are in none."""
    async with scene(vllm_routes(), api_key="s3cret") as s:
        with caplog.at_level(logging.DEBUG, "warmline.fleet"):
            await s.rounds(8)
            s.engine.routes["/v1/models"] = as_json({"data": [{"id": "m"}, {"id": "lora"}]})
            await s.rounds(8)
            await s.engine.stop()
            await s.rounds(6)
    lines = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert lines == ["loading → ready, serves m", "now serves m, lora", "ready → down, no connection: connection refused"]
    assert "s3cret" not in caplog.text


async def test_several_engines_behind_one_url(caplog: pytest.LogCaptureFixture) -> None:
    """A marker that flips at every look is a restart each time, but is not logged each time."""
    async with scene(vllm_routes()) as s:
        with caplog.at_level(logging.WARNING, "warmline.fleet"):
            for turn in range(20):
                s.engine.routes["/metrics"] = page(1, start=float(turn % 2))
                await s.rounds()
        assert len({report.generation for report in s.reports}) > 10
        texts = [record.getMessage() for record in caplog.records]
        assert len(texts) == 4 and "several engines behind its URL" in texts[-1]


async def test_large_fleet_stretches_the_intervals() -> None:
    """All scrapes together stay within MAX_SCRAPES_PER_S, all probes within MAX_PROBES_PER_S."""
    async with scene(vllm_routes(), fleet_size=1000) as s:
        await s.rounds()
        assert s.watcher.pause_s() == pytest.approx(5.0)
        s.now_s += 5.0
        await s.watcher.round()
        assert s.engine.asked.count("/health") <= 2


class Broken:
    """An adapter with a defect."""

    async def health(self) -> Health:
        raise ZeroDivisionError

    async def describe(self, *, fresh: bool) -> Look:
        raise NotImplementedError

    async def scrape(self) -> Look | None:
        raise NotImplementedError


async def test_defect_does_not_end_the_rounds(caplog: pytest.LogCaptureFixture) -> None:
    """A failure nobody thought of is logged with its trace and counted, and the next round comes."""
    now_s = 1.0
    watcher = Watcher(EngineSpec("openai", "http://127.0.0.1:9"), SETTINGS, Broken(), lambda report: None, lambda: now_s)
    await watcher.round()
    assert watcher.pause_s() > 0
    assert "surprise" in caplog.text and "ZeroDivisionError" in caplog.text


class Stuck(Broken):
    """An adapter whose every step takes forever."""

    async def health(self) -> Health:
        await asyncio.Event().wait()
        return Health(Lifecycle.READY)


async def test_every_step_has_a_deadline_and_can_be_cancelled() -> None:
    """A step that does not end is ended by the probe's deadline; cancelling in the middle of one ends the round at once."""
    reports: list[WorkerReport] = []
    watcher = Watcher(EngineSpec("openai", "http://127.0.0.1:9"), IMPATIENT, Stuck(), reports.append, lambda: 1.0)
    await watcher.round()
    assert reports == []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await watcher._probe()


def test_model_names_in_log_lines() -> None:
    """Few names are listed, many are counted, and no name breaks the line."""
    assert listed(None) == "models it does not tell"
    assert listed(()) == "no model"
    assert listed(("a", "b\nc")) == "a, 'b\\nc'"
    assert listed(tuple(f"m{i}" for i in range(10))) == "m0, m1, m2, m3, m4, m5, m6, m7 and 2 more"
