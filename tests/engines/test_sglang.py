"""engines.sglang: /v1/loads first, the Prometheus page where that is missing, /server_info once."""

from typing import Any

import pytest

from engines.adapter import Look
from engines.fetch import BadAnswer
from engines.sglang import LOADS, Sglang
from router.core.types import Lifecycle
from tests.engines.fake_engine import Connected, FakeEngine, Reply, as_json

RANK = {
    "dp_rank": 0,
    "num_running_reqs": 7,
    "num_waiting_reqs": 2,
    "num_waiting_uncached_tokens": 5100,
    "num_used_tokens": 90210,
    "max_total_num_tokens": 240000,
    "max_running_requests": 256,
    "token_usage": 0.5,
    "cache_hit_rate": 0.61,
    "gen_throughput": 812.0,
    "utilization": 0.4,
}
PAGE = b"""sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0",pp_rank="0",priority=""} 5.0
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0",pp_rank="0",priority="1"} 3.0
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="1",pp_rank="0",priority=""} 5.0
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0",pp_rank="1"} 5.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.75
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 16384.0
sglang:page_size{model_name="m",tp_rank="0"} 16.0
sglang:prompt_tokens_total{model_name="m"} 1000.0
process_start_time_seconds 17.5
"""
MODELS = as_json({"object": "list", "data": [{"id": "m"}]})


async def scrape(routes: dict[str, Reply]) -> Look:
    async with FakeEngine(routes) as engine, Connected(engine) as http:
        return await Sglang(http).scrape()


async def test_loads_of_two_ranks() -> None:
    """Counts, waiting tokens and cache sizes of the ranks add up; cache use is their mean."""
    second = {**RANK, "dp_rank": 1, "num_running_reqs": 1, "token_usage": 0.25}
    look = await scrape({LOADS: as_json({"timestamp": "…", "version": "0.5.23", "loads": [RANK, second]})})
    assert (look.running, look.waiting, look.waiting_tokens) == (8, 4, 10200)
    assert (look.capacity_tokens, look.kv_used_ratio) == (480000, 0.375)
    assert look.extra == {"max_running_requests": 512.0}


async def test_load_of_one_rank() -> None:
    """A worker that is one data-parallel rank has that row or, of older releases, the series with its label."""
    second = {**RANK, "dp_rank": 1, "num_running_reqs": 1, "token_usage": 0.25}
    page = PAGE.replace(b'tp_rank="0"', b'tp_rank="0",dp_rank="0"') + b'sglang:num_running_reqs{tp_rank="0",dp_rank="1"} 2.0\n'
    routes = {LOADS: as_json({"loads": [RANK, second]}), "/metrics": Reply(page)}
    async with FakeEngine(routes) as engine, Connected(engine, rank=1) as http:
        adapter = Sglang(http)
        look = await adapter.scrape()
        assert (look.running, look.capacity_tokens, look.kv_used_ratio) == (1, 240000, 0.25)
        del engine.routes[LOADS]
        look = await adapter.scrape()
        assert (look.running, look.waiting, look.markers) == (2, None, {"process_start_time_seconds": "17.5"})


@pytest.mark.parametrize("loads", [[], None, {"0": RANK}, [1, "x"], [{**RANK, "num_running_reqs": "7"}], [{}]])
async def test_loads_of_wrong_shapes(loads: Any) -> None:
    """What is not there or not a number is unknown, not 0."""
    assert (await scrape({LOADS: as_json({"loads": loads})})).running is None


async def test_loads_that_fail() -> None:
    """A refused key tells nothing; an error or HTML is a failed scrape."""
    assert await scrape({LOADS: Reply(status=401)}) == Look()
    with pytest.raises(BadAnswer, match="answered 500"):
        await scrape({LOADS: Reply(status=500)})
    with pytest.raises(BadAnswer, match="not JSON"):
        await scrape({LOADS: Reply(b"<html>")})


async def test_older_release_has_only_the_page() -> None:
    """Without /v1/loads the page is read, and the missing route is not asked for again until the engine restarts.

    Shares of a priority and repeats by other model shards do not count twice."""
    async with FakeEngine({"/metrics": Reply(PAGE), "/v1/models": MODELS}) as engine, Connected(engine) as http:
        adapter = Sglang(http)
        look = await adapter.scrape()
        assert (look.running, look.waiting, look.kv_used_ratio) == (5, 1, 0.75)
        assert (look.capacity_tokens, look.block_tokens) == (16384, 16)
        assert look.markers == {"process_start_time_seconds": "17.5"}
        assert look.counters == {"prompt tokens": 1000.0}
        await adapter.scrape()
        assert engine.asked == [LOADS, "/metrics", "/metrics"]
        await adapter.describe(fresh=True)
        await adapter.scrape()
        assert engine.asked[-2:] == [LOADS, "/metrics"]


@pytest.mark.parametrize("body", [PAGE.replace(b"sglang:", b"sglang_"), PAGE])
async def test_colons_may_be_underscores(body: bytes) -> None:
    """Names whose colons became underscores on the way say the same."""
    assert (await scrape({"/metrics": Reply(body)})).capacity_tokens == 16384


async def test_cache_shape_in_labels() -> None:
    """Some releases tell page size and pages in the labels of an info series instead of gauges."""
    page = b'sglang:num_running_reqs 1.0\nsglang:cache_config_info{page_size="64",num_pages="100",tp_rank="0"} 1.0\n'
    look = await scrape({"/metrics": Reply(page)})
    assert (look.running, look.block_tokens, look.capacity_tokens) == (1, 64, 6400)


async def test_no_loads_and_no_page() -> None:
    """Metrics are off by default: then the load is unknown; a failing page is a failed scrape."""
    assert await scrape({}) == Look()
    with pytest.raises(BadAnswer):
        await scrape({"/metrics": Reply(status=500)})


async def test_server_info_is_asked_once() -> None:
    """Page size, cache size and the drawn seed come from /server_info at the first look only: it costs a scheduler turn."""
    info = as_json({"page_size": 64, "max_total_num_tokens": 9000, "random_seed": 42, "api_key": "s3cret"})
    async with FakeEngine({"/v1/models": MODELS, "/server_info": info}) as engine, Connected(engine) as http:
        adapter = Sglang(http)
        look = await adapter.describe(fresh=True)
        assert (look.models, look.block_tokens, look.capacity_tokens, look.hints) == (("m",), 64, 9000, {"random_seed": "42"})
        assert "s3cret" not in repr(look)
        assert (await adapter.describe(fresh=False)).block_tokens is None
        assert engine.asked == ["/v1/models", "/server_info", "/v1/models"]


@pytest.mark.parametrize("reply", [Reply(b"<html>"), Reply(status=500), as_json([]), as_json({"page_size": "64"})])
async def test_server_info_without_use(reply: Reply) -> None:
    """Nonsense there leaves the models known and the rest unknown; the older name is not tried then."""
    async with FakeEngine({"/v1/models": MODELS, "/server_info": reply}) as engine, Connected(engine) as http:
        look = await Sglang(http).describe(fresh=True)
        assert (look.models, look.block_tokens, look.hints) == (("m",), None, {})
        assert engine.asked == ["/v1/models", "/server_info"]


async def test_older_name_of_server_info() -> None:
    """/get_server_info is asked where /server_info does not exist."""
    routes = {"/v1/models": MODELS, "/get_server_info": as_json({"page_size": 1})}
    async with FakeEngine(routes) as engine, Connected(engine) as http:
        assert (await Sglang(http).describe(fresh=True)).block_tokens == 1


async def test_warming_up_is_loading() -> None:
    """/health is 503 until the warm-up request has passed, and again when it shuts down: no new requests in both cases."""
    async with FakeEngine({"/health": Reply(status=503)}) as engine, Connected(engine) as http:
        assert (await Sglang(http).health()).lifecycle is Lifecycle.LOADING
