"""Triton Inference Server behind any of its doors: KServe v2 with generate endpoints, the OpenAI front end, trtllm-serve."""

from engines.adapter import MAX_MODELS, MAX_NAME_CHARACTERS, Health, Look, ratio, rows, sum_known, whole
from engines.fetch import Answer, BadAnswer, EngineHttp
from engines.metric_page import START, STARTED, MetricPage, counters, start_marker
from engines.openai import error_text, health_by_route, judge, list_models
from router.core.types import Lifecycle
from router.wire.metrics_text import Samples, mean, total

METRICS = MetricPage(
    {
        "running": ("trtllm_num_requests_running",),
        "waiting": ("trtllm_num_requests_waiting",),
        "waiting in Triton": ("nv_inference_pending_request_count",),
        "requests by state": ("nv_trt_llm_request_metrics",),
        "KV use": ("trtllm_kv_cache_utilization",),
        "KV blocks": ("trtllm_kv_cache_max_blocks",),
        "block tokens": ("trtllm_kv_cache_tokens_per_block",),
        "KV blocks by kind": ("nv_trt_llm_kv_cache_block_metrics",),
        STARTED: (START,),
        "finished requests": ("trtllm_request_success_total", "nv_inference_request_success"),
        "prompt tokens": ("trtllm_prompt_tokens_total", "vllm:prompt_tokens_total"),
        "cached tokens": ("trtllm_prompt_cached_tokens_total",),
    }
)
KSERVE_READY, OPENAI_READY = "/v2/health/ready", "/health/ready"
MODEL_INDEX = "/v2/repository/index"


class Triton:
    """Which door it is shows in the health route that exists, and is found out anew when that one is gone."""

    def __init__(self, http: EngineHttp) -> None:
        self._http = http
        self._ready_route: str | None = None  # None: neither, as of trtllm-serve

    async def health(self) -> Health:
        for route in dict.fromkeys((self._ready_route or KSERVE_READY, KSERVE_READY, OPENAI_READY)):
            answer = await self._http.get(route)
            if not answer.unknown_route:
                self._ready_route = route
                return judge_ready(answer)
        self._ready_route = None
        return await health_by_route(self._http)

    async def describe(self, *, fresh: bool) -> Look:
        if self._ready_route != KSERVE_READY:
            return await list_models(self._http)
        return read_index(await self._http.post(MODEL_INDEX, b"{}"))

    async def scrape(self) -> Look | None:
        """The KServe door has no page of its own. That of trtllm-serve at /metrics is JSON which reading uses up: not asked."""
        if self._http.metrics_url is None and self._ready_route == KSERVE_READY:
            return None
        return read_page(await self._http.page("/metrics" if self._ready_route else "/prometheus/metrics"))


def judge_ready(answer: Answer) -> Health:
    """Not ready is 400 here, with an empty body; the OpenAI front end says 500 when it has no engine."""
    if answer.status == 400:
        words = error_text(answer)
        return Health(Lifecycle.LOADING, f"{answer.path} answered 400" + (f": {words}" if words else ""))
    return judge(answer)


def read_index(answer: Answer) -> Look:
    """Names of the repository's models that are ready, in any version."""
    if not answer.ok:
        return Look(detail=f"models unknown: {answer.path} answered {answer.status}", unlisted=answer.unknown_route)
    try:
        index = answer.json()
    except BadAnswer as error:
        return Look(detail=f"models unknown: {error}")
    ready = [entry.get("name") for entry in rows(index)[:MAX_MODELS] if entry.get("state") == "READY"]
    names = [name for name in ready if isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARACTERS]
    return Look(models=tuple(dict.fromkeys(names)), detail="" if names else "no model is ready")


def read_page(answer: Answer) -> Look:
    """Counts of all models add up. What waits in the queue of a vLLM back end shows nowhere: that count is a lower bound."""
    samples = METRICS.read(answer)
    if samples is None:
        return Look()
    block_tokens = whole(mean(samples, "block tokens")) or by_label(samples, "tokens_per")
    blocks = whole(total(samples, "KV blocks")) or by_label(samples, "max")
    return Look(
        running=whole(total(samples, "running")) if "running" in samples else by_label(samples, "scheduled"),
        waiting=waiting(samples),
        kv_used_ratio=ratio(mean(samples, "KV use")) if "KV use" in samples else used_share(samples),
        block_tokens=block_tokens or None,
        capacity_tokens=blocks * block_tokens if blocks and block_tokens else None,
        markers=start_marker(samples),
        counters=counters(samples, "finished requests", "prompt tokens"),
        extra={"cached_tokens": cached} if (cached := total(samples, "cached tokens")) is not None else {},
    )


def waiting(samples: Samples) -> int | None:
    """In trtllm-serve; else in the TensorRT-LLM back end (since 2024-10) and in Triton before it."""
    if "waiting" in samples:
        return whole(total(samples, "waiting"))
    counts = [by_label(samples, "waiting"), whole(total(samples, "waiting in Triton"))]
    return sum_known([count for count in counts if count is not None])


def used_share(samples: Samples) -> float | None:
    """Used blocks of all models over all blocks; `fraction` where those are not told."""
    used, most = by_label(samples, "used"), by_label(samples, "max")
    if used is not None and most:
        return ratio(used / most)
    shares = [s.value for s in samples.get("KV blocks by kind", ()) if s.labels.get("kv_cache_block_type") == "fraction"]
    return ratio(sum(shares) / len(shares)) if shares else None


def by_label(samples: Samples, value: str) -> int | None:
    """A number of the TensorRT-LLM back end, which tells states and kinds by label: summed, block sizes the largest."""
    if value in ("scheduled", "waiting"):
        found = [s.value for s in samples.get("requests by state", ()) if s.labels.get("request_type") == value]
    else:
        found = [s.value for s in samples.get("KV blocks by kind", ()) if s.labels.get("kv_cache_block_type") == value]
    if not found:
        return None
    return whole(max(found) if value == "tokens_per" else sum(found))
