"""engines.triton. Health, model index and core metrics in the shapes of Triton 2.51 and its KServe extensions. The pages of the
TensorRT-LLM back end are made from the tensorrtllm_backend README, those of trtllm-serve from TensorRT-LLM's metrics
collector, those of the OpenAI front end from server/python/openai; none of these three was run live.
"""

from typing import Any

import pytest

from engines.adapter import Look
from engines.fetch import BadAnswer
from engines.triton import MODEL_INDEX, Triton
from router.core.types import Lifecycle
from tests.engines.fake_engine import Connected, FakeEngine, Reply, as_json

CORE = b"""# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="llm",version="1"} 7
nv_inference_request_success{model="tok",version="1"} 3
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="llm",reason="REJECTED",version="1"} 1
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="llm",version="1"} 2
nv_inference_pending_request_count{model="tok",version="1"} 1
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.2
"""
TENSORRT = (
    CORE
    + b"""# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 6
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 10
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.4875
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 100
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm",version="1"} 300
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 400
"""
)
TRTLLM_SERVE = b"""process_start_time_seconds 1.78500000025e+09
# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{engine_type="pytorch",model_name="m"} 3.0
trtllm_num_requests_waiting{engine_type="pytorch",model_name="m"} 8.0
trtllm_kv_cache_utilization{engine_type="pytorch",model_name="m"} 0.25
trtllm_kv_cache_max_blocks{engine_type="pytorch",model_name="m"} 1000.0
trtllm_kv_cache_tokens_per_block{engine_type="pytorch",model_name="m"} 32.0
trtllm_request_success_total{engine_type="pytorch",finished_reason="stop",model_name="m"} 5.0
trtllm_prompt_tokens_total{engine_type="pytorch",model_name="m"} 900.0
trtllm_prompt_cached_tokens_total{engine_type="pytorch",model_name="m"} 640.0
"""
OLD_TRTLLM_SERVE = b'trtllm_kv_cache_utilization{model_name="m"} 0.5\ntrtllm_request_success_total{model_name="m"} 1.0\n'
VLLM_BACKEND = CORE + b'vllm:prompt_tokens_total{model="llm",version="1"} 50\n'
INDEX = [
    {"name": "llm", "version": "1", "state": "READY"},
    {"name": "llm", "version": "2", "state": "READY"},
    {"name": "tok", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
    {"name": "bare"},
    {"name": 5, "state": "READY"},
]


async def page(body: bytes) -> Look:
    async with (
        FakeEngine({}) as engine,
        FakeEngine({"/metrics": Reply(body)}) as metrics,
        Connected(engine, metrics=metrics.url + "/metrics") as http,
    ):
        look = await Triton(http).scrape()
        assert look is not None
        return look


async def test_core_page() -> None:
    """Any back end: what waits in Triton, over all models, and what was answered; what runs is not told."""
    look = await page(CORE)
    assert look == Look(waiting=3, counters={"finished requests": 10.0})


async def test_tensorrt_page() -> None:
    """TensorRT-LLM back end: scheduled requests run; waiting ones add to Triton's own; blocks make the cache's size."""
    look = await page(TENSORRT)
    assert (look.running, look.waiting, look.kv_used_ratio) == (6, 7, 0.25)
    assert (look.block_tokens, look.capacity_tokens) == (64, 25600)


async def test_tensorrt_pages_of_other_releases() -> None:
    """Before requests waiting were told apart only Triton's own are known; without block counts the fraction is."""
    lines = [line for line in TENSORRT.splitlines(True) if b'"waiting"' not in line and b'"max"' not in line]
    look = await page(b"".join(lines))
    assert (look.running, look.waiting, look.kv_used_ratio, look.capacity_tokens) == (6, 3, 0.4875, None)


async def test_vllm_page() -> None:
    """vLLM back end: tokens are told, its queue is not: the count of waiting requests is a lower bound."""
    look = await page(VLLM_BACKEND)
    assert (look.running, look.waiting, look.counters["prompt tokens"]) == (None, 3, 50.0)


async def test_trtllm_serve_page() -> None:
    """trtllm-serve: all at /prometheus/metrics, while /metrics is JSON that a reader uses up and is never asked."""
    async with (
        FakeEngine({"/health": Reply(), "/prometheus/metrics": Reply(TRTLLM_SERVE)}) as engine,
        Connected(engine) as http,
    ):
        adapter = Triton(http)
        assert (await adapter.health()).lifecycle is Lifecycle.READY
        look = await adapter.scrape()
        assert look is not None
        assert (look.running, look.waiting, look.kv_used_ratio) == (3, 8, 0.25)
        assert (look.block_tokens, look.capacity_tokens) == (32, 32000)
        assert look.counters == {"finished requests": 5.0, "prompt tokens": 900.0}
        assert look.extra == {"cached_tokens": 640.0}
        assert look.markers == {"process_start_time_seconds": "1785000000.25"}
        engine.routes["/prometheus/metrics"] = Reply(OLD_TRTLLM_SERVE)
        older = await adapter.scrape()
        assert older is not None and (older.running, older.waiting, older.kv_used_ratio) == (None, None, 0.5)
        assert "/metrics" not in engine.asked


async def test_kserve_door() -> None:
    """Not ready is 400 without a body; the index tells which models are ready, each once; the page needs `metrics=`."""
    routes = {"/v2/health/ready": Reply(status=400), MODEL_INDEX: as_json(INDEX)}
    async with FakeEngine(routes) as engine, Connected(engine) as http:
        adapter = Triton(http)
        health = await adapter.health()
        assert (health.lifecycle, health.detail) == (Lifecycle.LOADING, "/v2/health/ready answered 400")
        engine.routes["/v2/health/ready"] = Reply()
        assert (await adapter.health()).lifecycle is Lifecycle.READY
        assert (await adapter.describe(fresh=True)).models == ("llm",)
        assert await adapter.scrape() is None
        assert engine.asked == ["/v2/health/ready", "/v2/health/ready", MODEL_INDEX]


@pytest.mark.parametrize(
    ("reply", "look"),
    [
        (as_json([]), Look(models=(), detail="no model is ready")),
        (as_json({"error": "x"}), Look(models=(), detail="no model is ready")),
        (Reply(b"<html>"), Look(detail=f"models unknown: {MODEL_INDEX} answered 200 with a body that is not JSON")),
        (Reply(status=403), Look(detail=f"models unknown: {MODEL_INDEX} answered 403")),
        (Reply(status=404), Look(detail=f"models unknown: {MODEL_INDEX} answered 404", unlisted=True)),
    ],
)
async def test_index_of_wrong_shapes(reply: Reply, look: Look) -> None:
    """An index that is refused or none at all leaves the models unknown and says why."""
    async with FakeEngine({"/v2/health/ready": Reply(), MODEL_INDEX: reply}) as engine, Connected(engine) as http:
        adapter = Triton(http)
        await adapter.health()
        assert await adapter.describe(fresh=True) == look


@pytest.mark.parametrize(
    ("reply", "lifecycle"),
    [(Reply(), Lifecycle.READY), (as_json({"detail": "x"}, 400), Lifecycle.LOADING), (Reply(status=500), Lifecycle.DOWN)],
)
async def test_openai_door(reply: Reply, lifecycle: Lifecycle) -> None:
    """The front end: 400 while its models load, 500 without an engine; models and metrics at the usual places.

    Adapters are listed as `base` + its separator + name, and are models like others."""
    models: dict[str, Any] = {"object": "list", "data": [{"id": "llm"}, {"id": "llm_lora_legal"}]}
    routes = {"/health/ready": reply, "/v1/models": as_json(models), "/metrics": Reply(CORE)}
    async with FakeEngine(routes) as engine, Connected(engine) as http:
        adapter = Triton(http)
        assert (await adapter.health()).lifecycle is lifecycle
        assert (await adapter.describe(fresh=True)).models == ("llm", "llm_lora_legal")
        look = await adapter.scrape()
        assert look is not None and look.waiting == 3


async def test_another_door_behind_the_url() -> None:
    """When the route that was known is gone, the others are tried again."""
    async with FakeEngine({"/health/ready": Reply()}) as engine, Connected(engine) as http:
        adapter = Triton(http)
        await adapter.health()
        await adapter.health()
        assert engine.asked == ["/v2/health/ready", "/health/ready", "/health/ready"]
        engine.routes = {"/v2/health/ready": Reply()}
        assert (await adapter.health()).lifecycle is Lifecycle.READY
        assert engine.asked[3:] == ["/health/ready", "/v2/health/ready"]


async def test_page_that_fails() -> None:
    """A failing page is a failed scrape, a missing one tells nothing."""
    async with FakeEngine({"/health/ready": Reply()}) as engine, Connected(engine) as http:
        adapter = Triton(http)
        await adapter.health()
        assert await adapter.scrape() == Look()
        engine.routes["/metrics"] = Reply(status=500)
        with pytest.raises(BadAnswer):
            await adapter.scrape()
