"""engines.vllm: its health, model list and Prometheus page, in the shapes seen on the wire."""

import pytest

from engines.adapter import Look
from engines.fetch import BadAnswer
from engines.vllm import Vllm
from router.core.types import Lifecycle
from tests.engines.fake_engine import Connected, FakeEngine, Reply, as_json

PAGE = b"""# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.78500000025e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 9000.0
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.785e+09
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 6000.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 4000.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"} 77.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 5.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 6.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="tiny"} 0.0
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="1000",prefix_caching_hash_algo="sha256"} 1.0
vllm:cache_config_info{block_size="32",engine="1",num_gpu_blocks="500",prefix_caching_hash_algo="sha256"} 1.0
"""
OLD_PAGE = b"""vllm:num_requests_running{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.125
vllm:gpu_prefix_cache_queries_total{model_name="m"} 10.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0
"""
RELABELLED_PAGE = PAGE.replace(b"vllm:", b"vllm_")


async def scrape(reply: Reply) -> Look:
    async with FakeEngine({"/metrics": reply}) as engine, Connected(engine) as http:
        return await Vllm(http).scrape()


async def test_page_of_two_ranks() -> None:
    """Counts and cache sizes of all data-parallel engines add up, cache use is their mean, the process start is a marker."""
    look = await scrape(Reply(PAGE))
    assert (look.running, look.waiting, look.waiting_tokens, look.kv_used_ratio) == (4, 2, None, 0.375)
    assert (look.block_tokens, look.capacity_tokens) == (32, 48_000)
    assert look.markers == {"process_start_time_seconds": "1785000000.25"}
    assert look.counters == {"prompt tokens": 4000.0, "finished requests": 11.0}
    assert look.extra == {"prefix_queries_tokens": 9000.0, "prefix_hits_tokens": 6000.0}


@pytest.mark.parametrize(("rank", "expected"), [(0, (3, 2, 0.5, 32_000)), (1, (1, 0, 0.25, 16_000)), (2, (None,) * 4)])
async def test_page_of_one_rank(rank: int, expected: tuple[float | None, ...]) -> None:
    """A worker that is one data-parallel rank has the series of that engine, and the marks of the process they share."""
    async with FakeEngine({"/metrics": Reply(PAGE)}) as engine, Connected(engine, rank=rank) as http:
        look = await Vllm(http).scrape()
    assert (look.running, look.waiting, look.kv_used_ratio, look.capacity_tokens) == expected
    assert look.markers == {"process_start_time_seconds": "1785000000.25"}


async def test_page_through_an_exporter() -> None:
    """Names whose colons became underscores on the way say the same."""
    assert await scrape(Reply(RELABELLED_PAGE)) == await scrape(Reply(PAGE))


async def test_page_of_an_older_release() -> None:
    """Older names are read; a cache size of "None" and a gauge that is not there are unknown, not 0."""
    look = await scrape(Reply(OLD_PAGE))
    assert (look.running, look.waiting, look.kv_used_ratio) == (1, None, 0.125)
    assert (look.block_tokens, look.capacity_tokens) == (16, None)
    assert look.markers == {} and look.extra == {"prefix_queries_tokens": 10.0}


@pytest.mark.parametrize("status", [404, 401])
async def test_page_switched_off(status: int) -> None:
    """Without metrics everything is unknown, and nothing failed."""
    assert await scrape(Reply(status=status)) == Look()


async def test_page_that_fails() -> None:
    """An error page or HTML gives no numbers."""
    with pytest.raises(BadAnswer, match=r"^/metrics answered 500$"):
        await scrape(Reply(b"vllm:num_requests_running 1", 500))
    assert await scrape(Reply(b"<html>vllm:num_requests_running 1</html>")) == Look()


async def test_health() -> None:
    """200 is ready; 503 means that the engine core died, not that it loads."""
    async with FakeEngine({"/health": Reply()}) as engine, Connected(engine) as http:
        adapter = Vllm(http)
        assert (await adapter.health()).lifecycle is Lifecycle.READY
        engine.routes["/health"] = Reply(status=503)
        health = await adapter.health()
        assert (health.lifecycle, health.detail) == (Lifecycle.DOWN, "/health answered 503")


LORA = b"""vllm:lora_requests_info{max_lora="2",running_lora_adapters="legal, tax",waiting_lora_adapters=""} 1785000001.0
vllm:lora_requests_info{max_lora="2",running_lora_adapters="%s",waiting_lora_adapters="new"} 1785000002.0
"""


async def test_adapters_in_memory() -> None:
    """As many as fit of those that were last seen at work; combinations of before stay on the page and are older."""
    async with FakeEngine({"/metrics": Reply(LORA % b"legal")}) as engine, Connected(engine) as http:
        adapter = Vllm(http)
        assert (await adapter.scrape()).loaded_adapters == ("legal",)
        engine.routes["/metrics"] = Reply(LORA % b"tax")
        assert (await adapter.scrape()).loaded_adapters == ("tax", "legal")
        engine.routes["/metrics"] = Reply(LORA % b"new")
        assert (await adapter.scrape()).loaded_adapters == ("new", "tax")
        engine.routes["/metrics"] = Reply(LORA % b"")
        assert (await adapter.scrape()).loaded_adapters == ("new", "tax")
        engine.routes["/metrics"] = Reply(OLD_PAGE)
        assert (await adapter.scrape()).loaded_adapters is None
        await adapter.describe(fresh=True)
        engine.routes["/metrics"] = Reply(b'vllm:lora_requests_info{running_lora_adapters="a"} 1')
        assert (await adapter.scrape()).loaded_adapters == ("a",)


async def test_models_include_adapters() -> None:
    """LoRA adapters stand in the list beside their base model and may be asked for like it."""
    models = as_json({"object": "list", "data": [{"id": "base", "parent": None}, {"id": "legal", "parent": "base"}]})
    async with FakeEngine({"/v1/models": models}) as engine, Connected(engine) as http:
        look = await Vllm(http).describe(fresh=False)
        assert (look.models, look.adapters) == (("base", "legal"), {"legal": ""})
