"""engines.tgi. Wire data made from the sources of text-generation-inference v3 (router/src/server.rs, backends/v3/src); no
server of it can be had here, so none of this was run live.
"""

from typing import Any

import pytest

from engines.adapter import Look
from engines.fetch import BadAnswer
from engines.tgi import Tgi
from router.core.types import Lifecycle
from tests.engines.fake_engine import Connected, FakeEngine, Reply, as_json

INFO: dict[str, Any] = {
    "model_id": "org/m",
    "model_sha": "abc",
    "model_pipeline_tag": "text-generation",
    "max_concurrent_requests": 128,
    "max_best_of": 2,
    "max_stop_sequences": 4,
    "max_input_tokens": 4095,
    "max_total_tokens": 4096,
    "validation_workers": 2,
    "max_client_batch_size": 4,
    "router": "text-generation-router",
    "version": "3.3.6",
    "sha": "def",
    "docker_label": "sha-def",
}
PAGE = b"""# TYPE tgi_request_count counter
tgi_request_count 12
# TYPE tgi_request_success counter
tgi_request_success 9
# TYPE tgi_request_failure counter
tgi_request_failure{err="overloaded"} 2
# TYPE tgi_batch_max_total_tokens gauge
tgi_batch_max_total_tokens 80000
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 3
# TYPE tgi_batch_current_max_tokens gauge
tgi_batch_current_max_tokens 20000
# TYPE tgi_queue_size gauge
tgi_queue_size 5
# TYPE tgi_request_queue_duration histogram
tgi_request_queue_duration_bucket{le="0.0001"} 1
"""
MODELS = as_json({"object": "list", "data": [{"id": "org/m", "object": "model", "created": 0, "owned_by": "org/m"}]})
UNHEALTHY = as_json({"error": "unhealthy", "error_type": "healthcheck"}, 503)


async def test_page() -> None:
    """Batch, queue, the token budget found at start as the cache's size, and what the batch may grow to as its use."""
    async with FakeEngine({"/metrics": Reply(PAGE)}) as engine, Connected(engine) as http:
        look = await Tgi(http).scrape()
    assert (look.running, look.waiting, look.capacity_tokens, look.kv_used_ratio) == (3, 5, 80000, 0.25)
    assert look.counters == {"requests": 12.0, "finished requests": 9.0}
    assert (look.block_tokens, look.waiting_tokens) == (None, None)


@pytest.mark.parametrize(
    ("body", "look"),
    [
        (b"", Look()),
        (b"tgi_queue_size 0\n", Look(waiting=0)),
        (b"tgi_batch_current_max_tokens 5\ntgi_batch_max_total_tokens 0\n", Look()),
        (b"tgi_batch_current_size NaN\n", Look()),
        (b"tgi_request_count_total 4\n", Look(counters={"requests": 4.0})),
    ],
)
async def test_page_of_a_server_that_has_done_nothing(body: bytes, look: Look) -> None:
    """Gauges appear with the first batch; until then they are unknown, not 0. Counters may carry `_total`."""
    async with FakeEngine({"/metrics": Reply(body)}) as engine, Connected(engine) as http:
        assert await Tgi(http).scrape() == look


async def test_page_elsewhere() -> None:
    """The launcher's `--prometheus-port` is named by `metrics=`; a missing page tells nothing, a failing one fails."""
    async with FakeEngine({}) as engine, FakeEngine({"/metrics": Reply(PAGE)}) as launcher:
        async with Connected(engine, metrics=launcher.url + "/metrics") as http:
            assert (await Tgi(http).scrape()).waiting == 5
        async with Connected(engine) as http:
            assert await Tgi(http).scrape() == Look()
            engine.routes["/metrics"] = Reply(status=500)
            with pytest.raises(BadAnswer):
                await Tgi(http).scrape()


async def test_health() -> None:
    """503 comes after a generation failed, never while it loads: that is a refused connection."""
    async with FakeEngine({"/health": UNHEALTHY}) as engine, Connected(engine) as http:
        health = await Tgi(http).health()
        assert (health.lifecycle, health.detail) == (Lifecycle.DOWN, "/health answered 503: unhealthy")
        engine.routes["/health"] = Reply()
        assert (await Tgi(http).health()).lifecycle is Lifecycle.READY


async def test_info_is_asked_when_it_came_up() -> None:
    """The limit of concurrent requests is told on; another build behind the same URL is a restart."""
    async with FakeEngine({"/v1/models": MODELS, "/info": as_json(INFO)}) as engine, Connected(engine) as http:
        look = await Tgi(http).describe(fresh=True)
        assert (look.models, look.extra) == (("org/m",), {"max_concurrent_requests": 128.0})
        assert look.hints == {"build": "3.3.6 def abc"}
        assert (await Tgi(http).describe(fresh=False)).hints == {}
        assert engine.asked == ["/v1/models", "/info", "/v1/models"]


async def test_release_without_a_model_list() -> None:
    """/info names the model then, at every look."""
    async with FakeEngine({"/info": as_json(INFO)}) as engine, Connected(engine) as http:
        look = await Tgi(http).describe(fresh=False)
        assert (look.models, look.unlisted, look.detail) == (("org/m",), False, "")


@pytest.mark.parametrize("info", [Reply(b"<html>"), as_json([]), as_json({"model_id": 5, "version": None}), Reply(status=500)])
async def test_info_without_use(info: Reply) -> None:
    """Nonsense there leaves the list as it is, and what it would tell unknown."""
    async with FakeEngine({"/v1/models": MODELS, "/info": info}) as engine, Connected(engine) as http:
        assert await Tgi(http).describe(fresh=True) == Look(models=("org/m",), adapters={})
        del engine.routes["/v1/models"]
        assert (await Tgi(http).describe(fresh=True)).unlisted
