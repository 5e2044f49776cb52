"""engines.deepspeed: health that is no proof, and the page of the back end where there is one."""

import pytest

from engines.adapter import Look
from engines.deepspeed import TRIAL_EVERY_S, DeepSpeed
from engines.fetch import Refused
from router.core.types import Lifecycle
from tests.engines.fake_engine import HANGS, Connected, FakeEngine, Reply, as_json

OK = as_json({"status": "ok"})
MODELS = as_json({"object": "list", "data": [{"id": "m", "object": "model", "root": "m"}]})
PAGE = b"""process_start_time_seconds 17.5
deepspeed_backend_requests_running 1
deepspeed_backend_requests_waiting 6
deepspeed_backend_queue_limit 32
deepspeed_backend_requests_total 9
deepspeed_backend_requests_refused_total 2
deepspeed_backend_prompt_tokens_total 100
deepspeed_backend_generated_tokens_total 40
"""


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_page_of_the_back_end() -> None:
    """Its queue depth is the worker's load, its start names the process."""
    async with (
        FakeEngine({"/health": OK}) as engine,
        FakeEngine({"/metrics": Reply(PAGE)}) as backend,
        Connected(engine, metrics=backend.url + "/metrics") as http,
    ):
        look = await DeepSpeed(http).scrape()
        assert look is not None
        assert (look.running, look.waiting, look.capacity_tokens) == (1, 6, None)
        assert look.markers == {"process_start_time_seconds": "17.5"}
        assert look.counters == {"requests": 9.0, "prompt tokens": 100.0, "generated tokens": 40.0}
        assert look.extra == {"queue_limit": 32.0, "refused_requests": 2.0}


async def test_no_page() -> None:
    """MII itself shows no load: nothing is asked."""
    async with FakeEngine({"/metrics": Reply(PAGE)}) as engine, Connected(engine) as http:
        assert await DeepSpeed(http).scrape() is None
        assert engine.asked == []


async def test_health_needs_the_back_end() -> None:
    """/health says ok whatever happened behind it: with `metrics=` the back end's page must answer too."""
    async with (
        FakeEngine({"/health": OK}) as engine,
        FakeEngine({"/metrics": Reply(PAGE)}) as backend,
        Connected(engine, metrics=backend.url + "/metrics") as http,
    ):
        assert (await DeepSpeed(http).health()).lifecycle is Lifecycle.READY
        await backend.stop()
        with pytest.raises(Refused):
            await DeepSpeed(http).health()


async def test_one_token_tells_more_than_health() -> None:
    """Without that page one token is asked for now and then; an error means down until one is generated again."""
    clock = Clock()
    routes = {"/health": OK, "/v1/models": MODELS, "/v1/completions": Reply(b"Internal Server Error", 500)}
    async with FakeEngine(routes) as engine, Connected(engine) as http:
        adapter = DeepSpeed(http, clock)
        health = await adapter.health()
        assert (health.lifecycle, health.detail) == (Lifecycle.DOWN, "a request for one token was answered 500")
        engine.routes["/v1/completions"] = as_json({"choices": [{"text": "a"}]})
        assert (await adapter.health()).lifecycle is Lifecycle.READY
        asked = len(engine.asked)
        assert (await adapter.health()).lifecycle is Lifecycle.READY
        assert engine.asked[asked:] == ["/health"]
        clock.now_s += TRIAL_EVERY_S
        await adapter.health()
        assert engine.asked[-1] == "/v1/completions"


async def test_a_slow_token_proves_nothing() -> None:
    """A busy engine does not answer in time; that must not take it out."""
    async with (
        FakeEngine({"/health": OK, "/v1/models": MODELS, "/v1/completions": HANGS}) as engine,
        Connected(engine, timeout_s=0.2) as http,
    ):
        assert (await DeepSpeed(http).health()).lifecycle is Lifecycle.READY


async def test_plain_server_and_gateway() -> None:
    """The plain server generates at /generate; the REST gateway has /healthz only, and its model must be named."""
    async with FakeEngine({"/health": OK, "/generate": as_json({"text": ["a"]})}) as engine, Connected(engine) as http:
        adapter = DeepSpeed(http)
        assert (await adapter.health()).lifecycle is Lifecycle.READY
        assert engine.asked == ["/health", "/v1/models", "/generate"]
        assert (await adapter.describe(fresh=True)).unlisted
    async with FakeEngine({"/healthz": Reply(b"ok")}) as engine, Connected(engine) as http:
        assert (await DeepSpeed(http).health()).lifecycle is Lifecycle.READY
    async with FakeEngine({}) as engine, Connected(engine) as http:
        assert (await DeepSpeed(http).health()).lifecycle is Lifecycle.DOWN


async def test_page_switched_off() -> None:
    """A page that is not there tells nothing."""
    async with FakeEngine({"/health": OK}) as engine, Connected(engine, metrics=engine.url + "/metrics") as http:
        assert await DeepSpeed(http).scrape() == Look()
