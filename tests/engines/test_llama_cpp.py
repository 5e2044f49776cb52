"""engines.llama_cpp: /props for the slots, /metrics or /slots for the load. The real engine is in test_llama_cpp_real.py."""

from typing import Any

import pytest

from engines.adapter import Look
from engines.fetch import BadAnswer
from engines.llama_cpp import LlamaCpp
from router.core.types import Lifecycle
from tests.engines.fake_engine import Connected, FakeEngine, Reply, as_json

MODELS = as_json({"object": "list", "data": [{"id": "smol", "aliases": ["smol"], "meta": {"n_ctx": 4096}}]})
LOADING = as_json({"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}, 503)
NO_METRICS = as_json({"error": {"code": 501, "message": "Start it with `--metrics`", "type": "not_supported_error"}}, 501)
PAGE = Reply(
    b"# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 2\nllamacpp:requests_deferred 5\n"
    b"llamacpp:prompt_tokens_total 12\nllamacpp:n_decode_total 3\n",
    headers={"Process-Start-Time-Unix": "780600079"},
)


def props(**more: Any) -> Reply:
    known = {"total_slots": 4, "default_generation_settings": {"n_ctx": 4096, "params": {}}, "is_sleeping": False}
    return as_json({**known, "media_marker": "<__media_pRNAGixedpsY48ae9UxJGPoQGg1hoPgz__>", **more})


async def describe(reply: Reply) -> Look:
    async with FakeEngine({"/v1/models": MODELS, "/props": reply}) as engine, Connected(engine) as http:
        return await LlamaCpp(http).describe(fresh=True)


async def test_health() -> None:
    """503 "Loading model" is loading, in the engine's own words; 200 is ready."""
    async with FakeEngine({"/health": LOADING}) as engine, Connected(engine) as http:
        adapter = LlamaCpp(http)
        health = await adapter.health()
        assert (health.lifecycle, health.detail) == (Lifecycle.LOADING, "/health answered 503: Loading model")
        engine.routes["/health"] = as_json({"status": "ok"})
        assert (await adapter.health()).lifecycle is Lifecycle.READY


async def test_capacity_is_slots_times_context() -> None:
    """The slots' contexts add up; reuse is token by token; the random media marker names the process."""
    look = await describe(props())
    assert (look.models, look.capacity_tokens, look.block_tokens) == (("smol",), 16384, 1)
    assert look.markers == {"media_marker": "pRNAGixedpsY48ae9UxJGPoQGg1hoPgz"}
    assert look.extra == {"slots": 4.0}


async def test_fixed_media_marker_is_only_a_hint() -> None:
    """A marker given by the environment is the same after a restart: it may prove one by changing, never disprove one."""
    look = await describe(props(media_marker="<__media__>"))
    assert (look.markers, look.hints) == ({}, {"media_marker": "<__media__>", "sleeps": "0"})


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=404),
        Reply(status=401),
        Reply(b"<html>"),
        as_json([]),
        props(total_slots=0, media_marker=None),
        props(total_slots="4", media_marker=1),
    ],
)
async def test_props_without_use(reply: Reply) -> None:
    """No or nonsensical /props leaves the models known and the capacity unknown."""
    look = await describe(reply)
    assert (look.models, look.capacity_tokens, look.markers) == (("smol",), None, {})


USED = {"n_ctx": 4096, "is_processing": False}
FIRST, SECOND = {**USED, "id": 0, "id_task": 3, "n_prompt_tokens": 0}, {**USED, "id": 1, "id_task": 9, "n_prompt_tokens": 300}


@pytest.mark.parametrize(
    ("slots", "unified"),
    [
        ([FIRST, SECOND], 1.0),
        ([{**FIRST, "n_prompt_tokens": 200}, SECOND], 0.0),
        ([FIRST, {**FIRST, "id": 2, "n_prompt_tokens": 5}, SECOND], 0.0),
        ([{**FIRST, "is_processing": True}, SECOND], None),
        ([SECOND, {**USED, "id": 2}], None),
        ([{**FIRST, "id_task": "3"}, SECOND], None),
        ({"error": "x"}, None),
    ],
)
async def test_slots_that_share_a_cache(slots: Any, unified: float | None) -> None:
    """With one cache for all, a request that starts clears the idle slots: seen where metrics are on and where they are off.

    Its capacity is one context then. Shapes as seen on the wire with and without `--kv-unified`."""
    for metrics in (PAGE, NO_METRICS):
        routes = {"/v1/models": MODELS, "/props": props(), "/metrics": metrics, "/slots": as_json(slots)}
        async with FakeEngine(routes) as engine, Connected(engine) as http:
            adapter = LlamaCpp(http)
            await adapter.describe(fresh=True)
            if metrics is NO_METRICS and isinstance(slots, dict):
                continue
            look = await adapter.scrape()
            assert look is not None and look.extra.get("unified_kv") == unified
            capacity = (await adapter.describe(fresh=False)).capacity_tokens
            assert capacity == (4096 if unified else 16384)


async def test_hidden_slots_tell_nothing() -> None:
    """--no-slots, or a batch that takes long: then it stays unknown, and the load is told all the same."""
    async with FakeEngine({"/metrics": PAGE, "/slots": NO_METRICS}) as engine, Connected(engine, timeout_s=0.2) as http:
        assert (await LlamaCpp(http).scrape()).running == 2
        engine.routes["/slots"] = Reply(hangs=True)
        assert (await LlamaCpp(http).scrape()).running == 2


@pytest.mark.parametrize("reply", [Reply(status=500), Reply(status=404), as_json([{"path": 7, "scale": "1"}, 5])])
async def test_adapters_without_use(reply: Reply) -> None:
    """No or nonsensical adapters leave all else known; a missing route is not asked for again."""
    routes = {"/v1/models": MODELS, "/props": props(), "/lora-adapters": reply}
    async with FakeEngine(routes) as engine, Connected(engine) as http:
        adapter = LlamaCpp(http)
        look = await adapter.describe(fresh=True)
        assert (look.models, look.adapters, look.capacity_tokens) == (("smol",), {}, 16384)
        await adapter.describe(fresh=False)
        assert engine.asked.count("/lora-adapters") == (1 if reply.status == 404 else 2)


async def test_older_page() -> None:
    """Builds before the slots had caches of their own told the share in use."""
    async with FakeEngine({"/metrics": Reply(b"llamacpp:kv_cache_usage_ratio 0.5\n")}) as engine, Connected(engine) as http:
        assert (await LlamaCpp(http).scrape()).kv_used_ratio == 0.5


async def test_load_from_metrics() -> None:
    """Processing and deferred requests, and the header that names the process."""
    async with FakeEngine({"/metrics": PAGE}) as engine, Connected(engine) as http:
        look = await LlamaCpp(http).scrape()
    assert (look.running, look.waiting, look.kv_used_ratio) == (2, 5, None)
    assert look.markers == {"Process-Start-Time-Unix": "780600079"}
    assert look.counters == {"prompt tokens": 12.0, "decode calls": 3.0}


async def test_load_from_slots_where_metrics_are_off() -> None:
    """501 turns to /slots until the engine comes up anew: running is known, what is deferred shows nowhere."""
    slots = as_json([{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}])
    routes = {"/metrics": NO_METRICS, "/slots": slots, "/v1/models": MODELS, "/props": props()}
    async with FakeEngine(routes) as engine, Connected(engine) as http:
        adapter = LlamaCpp(http)
        assert await adapter.scrape() == Look(running=1)
        await adapter.scrape()
        assert engine.asked == ["/metrics", "/slots", "/slots"]
        engine.routes["/metrics"] = PAGE
        await adapter.describe(fresh=True)
        assert (await adapter.scrape()).waiting == 5


@pytest.mark.parametrize("reply", [Reply(status=404), Reply(status=501), Reply(status=401)])
async def test_load_hidden(reply: Reply) -> None:
    """Metrics off and slots hidden: the load is unknown."""
    async with FakeEngine({"/slots": reply}) as engine, Connected(engine) as http:
        assert await LlamaCpp(http).scrape() == Look()


@pytest.mark.parametrize("reply", [as_json({}), as_json([{}]), as_json([{"is_processing": 1}]), Reply(b"<html>"), LOADING])
async def test_slots_of_wrong_shapes(reply: Reply) -> None:
    """What does not list slots is a failed scrape, not an idle engine."""
    async with FakeEngine({"/slots": reply}) as engine, Connected(engine) as http:
        with pytest.raises(BadAnswer):
            await LlamaCpp(http).scrape()


async def test_metrics_that_fail() -> None:
    """A refused key tells nothing; an error is a failed scrape, and /slots is not asked instead."""
    async with FakeEngine({"/metrics": Reply(status=401)}) as engine, Connected(engine) as http:
        adapter = LlamaCpp(http)
        assert await adapter.scrape() == Look()
        engine.routes["/metrics"] = LOADING
        with pytest.raises(BadAnswer, match=r"^/metrics answered 503$"):
            await adapter.scrape()
        assert engine.asked == ["/metrics", "/metrics"]


async def test_sleeping_engine_is_left_asleep() -> None:
    """An engine that unloaded its model runs nothing; asking for its load would wake it. Each sleep costs it its caches."""
    routes = {"/v1/models": MODELS, "/props": props(is_sleeping=True), "/metrics": PAGE}
    async with FakeEngine(routes) as engine, Connected(engine) as http:
        adapter = LlamaCpp(http)
        assert (await adapter.describe(fresh=True)).hints == {"sleeps": "1"}
        assert await adapter.scrape() == Look(running=0, waiting=0)
        assert "/metrics" not in engine.asked
        engine.routes["/props"] = props()
        assert (await adapter.scrape()).running == 2
        engine.routes["/props"] = props(is_sleeping=True)
        assert (await adapter.describe(fresh=False)).hints == {"sleeps": "2"}
