"""engines.sidecar.kv.follower: from an engine's events to a router's picture of its cache, and the word on how true it is."""

import asyncio
import logging
from dataclasses import replace

import pytest

from engines.sidecar.kv.follower import base_model
from router.core.types import Lifecycle, Truth, WorkerId, WorkerReport
from router.settings import EngineSpec
from tests.engines.fake_engine import Reply, as_json
from tests.engines.sidecar.kv.live_engine import EVENTS, LiveEngine, watched
from tests.engines.sidecar.kv.publisher import CLEARED, EnginePublisher

PROMPT = list(range(1000, 1000 + 16 * 10))


@pytest.mark.parametrize("size", [1, 16, 32, 64])
async def test_exact_from_the_start(size: int) -> None:
    """Found, followed and proved: what the engine caches is what the router holds, block by block."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher, size)
        async with watched(engine) as heard:
            report = await heard.exact()
            assert (report.truth_reason, report.block_tokens, report.generation) == ("", size, "100.0.0")
            assert len(engine.probes) == 1 and heard.held(engine.probes[0]) > 0
            engine.compute(PROMPT)
            await heard.until(lambda: heard.held(PROMPT) == len(PROMPT) // size * size // 16)
            engine.evict(PROMPT, 1)
            await heard.until(lambda: heard.held(PROMPT) == (len(PROMPT) // size - 1) * size // 16)
            snapshot = heard.source()
            assert snapshot is not None and snapshot.seq == heard.deltas[-1].seq
            assert {key for run in snapshot.runs for key in run.keys} == heard.router.keys.keys()
            await heard.until(lambda: heard.last.extra["kv_batches"] >= 3 and heard.last.extra["kv_keys"] > 0)


async def test_engine_that_worked_before() -> None:
    """What was cached before the sidecar came is replayed."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        engine.compute(PROMPT)
        async with watched(engine) as heard:
            await heard.exact()
            assert heard.held(PROMPT) == 10


async def test_restart_shows_in_reports_and_deltas() -> None:
    """A restarted engine has another generation, the same in both; nothing old is left, and it is proved again."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        engine.compute(PROMPT)
        async with watched(engine) as heard:
            before = (await heard.exact()).generation
            await engine.restart()
            await heard.until(lambda: heard.last.generation != before)
            await heard.exact()
            assert heard.generation == heard.last.generation != before
            assert heard.held(PROMPT) == 0 and len(engine.probes) == 2
            assert {key for key in heard.router.keys} and heard.held(engine.probes[1]) > 0


@pytest.mark.parametrize("replay", [True, False])
async def test_restart_that_only_events_show(replay: bool) -> None:
    """Where nothing else names the process, numbers that begin anew do; without a replay endpoint too."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        if not replay:
            engine.show_sources(replay_endpoint=None)
        async with watched(engine) as heard:
            before = (await heard.exact()).generation
            engine.compute(PROMPT)
            await heard.until(lambda: heard.held(PROMPT) == 10)
            await engine.restart(marker=False)
            await asyncio.sleep(0.5)
            engine.compute(PROMPT[:32])
            await heard.until(lambda: heard.generation == f"{before}+1" and heard.held(PROMPT) == 2)
            report = await heard.exact()
            assert report.generation == f"{before}+1" and heard.held(PROMPT) == 2


async def test_restart_that_events_show_first() -> None:
    """The scrape that shows the same restart later gives it its name; what was learnt since stays, without a replay too."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        engine.show_sources(replay_endpoint=None)
        async with watched(engine) as heard:
            before = (await heard.exact()).generation
            await engine.restart(marker=False)
            await asyncio.sleep(0.5)
            engine.compute(PROMPT)
            await heard.until(lambda: heard.held(PROMPT) == 10)
            engine.started_at += 1.0
            await heard.until(lambda: heard.last.generation == "101.0.1+1" != before)
            report = await heard.exact()
            assert heard.generation == report.generation and heard.held(PROMPT) == 10


async def test_cleared_cache() -> None:
    """A cleared cache is empty at once, in the same generation."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        engine.compute(PROMPT)
        async with watched(engine) as heard:
            generation = (await heard.exact()).generation
            publisher.publish(CLEARED)
            await heard.until(lambda: not heard.router.keys)
            assert (await heard.exact()).generation == heard.generation == generation


async def test_loss_and_what_mends_it() -> None:
    """Missed batches that cannot be replayed leave a part; the truth is restored when the cache is cleared."""
    with EnginePublisher(buffer_steps=1) as publisher:
        engine = LiveEngine(publisher)
        async with watched(engine, replace(EVENTS, event_check_s=30.0)) as heard:
            await heard.exact()
            engine.compute(PROMPT[:16])
            publisher.publish("?", lost=True)
            publisher.publish("?", lost=True)
            engine.compute(PROMPT[:32])
            report = await heard.untrusted("partial: batches 2 to 3 of its events")
            assert report.truth_reason.endswith("are no longer in its replay buffer")
            assert heard.held(PROMPT) == 0
            publisher.publish(CLEARED)
            engine.cached.clear()
            engine.compute(PROMPT)
            await heard.exact()
            await heard.until(lambda: heard.held(PROMPT) == 10)


async def test_late_without_replay() -> None:
    """Without replay the cache of an engine that worked before is known in part only."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        engine.show_sources(replay_endpoint=None)
        engine.compute(PROMPT[:16])
        async with watched(engine) as heard:
            await heard.untrusted("partial: batches 0 to 0 of its events were missed, and it has no replay endpoint")


async def test_connection_lost() -> None:
    """While there is no connection the truth is in doubt; afterwards what was missed is replayed."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        async with watched(engine) as heard:
            await heard.exact()
            number, buffer = publisher.number, publisher._buffer
            publisher._pub.unbind(publisher.events)
            publisher._pub.close()
            await heard.untrusted(f"no connection to {publisher.events}")
            publisher._pub = publisher._context.socket(1)
            publisher._pub.bind(publisher.events)
            publisher.number, publisher._buffer = number, buffer
            engine.compute(PROMPT)
            await heard.exact()
            await heard.until(lambda: heard.held(PROMPT) == 10)


async def test_unreadable_batches() -> None:
    """A batch that cannot be read makes the rest a part, and does not end the loop."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        async with watched(engine) as heard:
            await heard.exact()
            publisher.publish_bytes(b"\xc1")
            await heard.untrusted("partial: its KV events cannot be read: not msgpack")
            publisher.publish(CLEARED)
            await heard.exact()
            assert heard.last.extra["kv_malformed"] == 1.0


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        pytest.param(as_json({}), "KV events are off", id="off"),
        pytest.param(as_json({}, 404), "name their endpoint with events=", id="an older vLLM"),
    ],
)
async def test_without_events(reply: Reply, words: str) -> None:
    """An engine without events is modelled as before, and why is said."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        engine.routes["/kv_event_sources"] = reply
        async with watched(engine) as heard:
            await heard.until(lambda: words in heard.last.truth_reason)
            assert heard.last.truth is Truth.MODELLED and not engine.probes and not heard.deltas


async def test_kinds_without_events() -> None:
    """A kind that publishes none is left as it is; with events= it is followed like the others."""
    with EnginePublisher() as publisher:
        async with watched(LiveEngine(publisher), kind="openai") as heard:
            await heard.until(lambda: len(heard.reports) > 2)
            assert (heard.last.truth, heard.last.truth_reason) == (Truth.MODELLED, "")
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        async with watched(engine, kind="openai", events=publisher.events, replay=publisher.replay) as heard:
            await heard.exact()


async def test_events_that_are_switched_on_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine without events is asked again, so that a change is noticed without a restart of the sidecar."""
    monkeypatch.setattr("engines.sidecar.kv.follower.SOURCE_RETRY_S", 0.1)
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        engine.routes["/kv_event_sources"] = as_json({})
        async with watched(engine) as heard:
            await heard.until(lambda: "KV events are off" in heard.last.truth_reason)
            engine.show_sources()
            await heard.exact()


async def test_address_that_cannot_be_used() -> None:
    """That is said, and the worker is modelled."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        engine.show_sources(endpoint="tcp://nowhere")
        async with watched(engine) as heard:
            await heard.until(lambda: "tcp://nowhere: Invalid argument" in heard.last.truth_reason)
            assert heard.last.truth is Truth.MODELLED


async def test_other_model() -> None:
    """Another model under the same URL has other keys: everything is learnt again."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        engine.compute(PROMPT)
        async with watched(engine) as heard:
            await heard.exact()
            assert heard.held(PROMPT) == 10
            engine.routes["/v1/models"] = as_json({"data": [{"id": "other"}]})
            await heard.until(lambda: heard.last.models == ("other",) and heard.held(PROMPT) == 0)
            await heard.exact()
            assert len(heard.router.keys) > 10


async def test_busy_engine_is_tested_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test waits while requests wait in the engine; until then the truth is not claimed."""
    monkeypatch.setattr("engines.sidecar.kv.follower.POSTPONED_S", 0.1)
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        engine.waiting = 3
        async with watched(engine) as heard:
            await heard.untrusted("self-test: not done yet")
            await asyncio.sleep(0.3)
            assert not engine.probes
            engine.waiting = 0
            await heard.exact()


async def test_without_self_test() -> None:
    """Switched off, following without a gap is enough."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        async with watched(engine, replace(EVENTS, self_test=False)) as heard:
            await heard.exact()
            assert not engine.probes


async def test_ranks() -> None:
    """Of two ranks each worker follows its own, and sends its probe to it."""
    with EnginePublisher(rank=1) as publisher, EnginePublisher() as other:
        engine = LiveEngine(publisher)
        sources = {str(rank): {"endpoint": p.events, "replay_endpoint": p.replay} for rank, p in ((0, other), (1, publisher))}
        engine.routes["/kv_event_sources"] = as_json(sources)
        async with watched(engine, rank=1) as heard:
            await heard.exact()
            assert any(headers.get("X-Data-Parallel-Rank") == "1" for headers in engine.headers)
        async with watched(engine) as heard:
            await heard.until(lambda: "2 data-parallel ranks" in heard.last.truth_reason)
        engine.show_sources()
        async with watched(engine, rank=0) as heard:
            await heard.untrusted("data-parallel rank 1")


async def test_people_are_told_what_lasts(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """One line when the truth is settled, another when it changes."""
    monkeypatch.setattr("engines.sidecar.kv.follower.NARRATE_S", 0.15)
    caplog.set_level(logging.INFO, "warmline.fleet")
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        async with watched(engine) as heard:
            await heard.exact()
            await asyncio.sleep(0.4)
            publisher.publish_bytes(b"\xc1")
            await heard.untrusted("cannot be read")
            await asyncio.sleep(0.4)
    lines = [record.getMessage().partition(": ")[2] for record in caplog.records if "truth" in record.getMessage()]
    assert lines[-2] == "cache truth is exact"
    assert lines[-1].startswith("cache truth is untrusted: partial: its KV events cannot be read")


async def test_surprises_do_not_end_the_loop(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """What nobody thought of is logged, and everything begins anew."""
    monkeypatch.setattr("engines.sidecar.kv.follower.SURPRISE_PAUSE_S", 0.05)
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        async with watched(engine) as heard:
            await heard.exact()
            heard.breaks = True
            engine.compute(PROMPT)
            await heard.until(lambda: not heard.breaks)
            await heard.until(lambda: heard.last.truth is not Truth.EXACT)
            await heard.exact()
            await heard.until(lambda: heard.held(PROMPT) == 10)
    assert "surprise while following its KV events" in caplog.text


@pytest.mark.parametrize(
    ("given", "models", "adapters", "model"),
    [
        (None, None, None, None),
        (None, ("m", "n"), None, "m"),
        (None, ("lora", "m"), ("lora",), "m"),
        ("named", ("m",), None, "named"),
    ],
)
def test_base_model(
    given: str | None, models: tuple[str, ...] | None, adapters: tuple[str, ...] | None, model: str | None
) -> None:
    """Keys are made under the model that is given, else the first that is listed and no adapter."""
    report = WorkerReport(WorkerId("a"), "vllm", "http://a", "g", Lifecycle.READY, 0.0, models, adapters)
    assert base_model(EngineSpec("vllm", "http://a", model=given), report) == model
