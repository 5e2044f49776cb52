"""vLLM: /health, /v1/models and the Prometheus page (names of 0.33 and their older forms)."""

from engines.adapter import MAX_MODELS, Health, Look, ratio, sum_known, whole
from engines.fetch import EngineHttp
from engines.metric_page import START, STARTED, MetricPage, counters, label_count, start_marker
from engines.openai import health_by_route, list_models
from router.core.types import Lifecycle
from router.wire.metrics_text import Sample, Samples, mean, total

METRICS = MetricPage(
    {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "KV use": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "cache shape": ("vllm:cache_config_info",),
        "adapters at work": ("vllm:lora_requests_info",),
        STARTED: (START,),
        "prompt tokens": ("vllm:prompt_tokens_total",),
        "generated tokens": ("vllm:generation_tokens_total",),
        "finished requests": ("vllm:request_success_total",),
        "prefix queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        "prefix hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    }
)
EXTRA = {"prefix_queries_tokens": "prefix queries", "prefix_hits_tokens": "prefix hits"}


class Vllm:
    """While vLLM loads, its port refuses or hangs; 503 means that the engine core died."""

    def __init__(self, http: EngineHttp) -> None:
        self._http = http
        self._resident: tuple[str, ...] = ()  # adapters, the latest used first

    async def health(self) -> Health:
        return await health_by_route(self._http, busy=Lifecycle.DOWN)

    async def describe(self, *, fresh: bool) -> Look:
        if fresh:
            self._resident = ()
        return await list_models(self._http)

    async def scrape(self) -> Look:
        """One series per data-parallel engine behind the port: counts add up, cache use is averaged."""
        samples = METRICS.read(await self._http.page())
        look = Look() if samples is None else read_page(of_rank(samples, self._http.rank))
        if samples is not None and "adapters at work" in samples:
            self._resident = look.loaded_adapters = resident(samples["adapters at work"], self._resident)
        return look


def of_rank(samples: Samples, rank: int | None) -> Samples:
    """Without the series of other data-parallel engines behind the port; None: all of them."""
    if rank is None:
        return samples
    return {
        meaning: [s for s in series if s.labels.get("engine", str(rank)) == str(rank)] for meaning, series in samples.items()
    }


def read_page(samples: Samples) -> Look:
    block_tokens, capacity_tokens = cache_shape(samples)
    return Look(
        running=whole(total(samples, "running")),
        waiting=whole(total(samples, "waiting")),
        kv_used_ratio=ratio(mean(samples, "KV use")),
        block_tokens=block_tokens,
        capacity_tokens=capacity_tokens,
        markers=start_marker(samples),
        counters=counters(samples, "prompt tokens", "generated tokens", "finished requests"),
        extra={key: value for key, meaning in EXTRA.items() if (value := total(samples, meaning)) is not None},
    )


def resident(series: list[Sample], before: tuple[str, ...]) -> tuple[str, ...]:
    """The adapters in the engine's memory: the `max_lora` that were last seen at work, for it drops the one unused longest.

    A combination that was is not taken off the page; the newest has the latest time as its value.
    """
    newest = max(series, key=lambda sample: sample.value)
    running = [name for text in newest.labels.get("running_lora_adapters", "").split(",") if (name := text.strip())]
    places = label_count(newest.labels.get("max_lora")) or len(running)
    return tuple(dict.fromkeys((*running, *before)))[: min(places, MAX_MODELS)]


def cache_shape(samples: Samples) -> tuple[int | None, int | None]:
    """(tokens of a block, tokens of all blocks) from the labels of cache_config_info, one series per engine.

    Labels are text and may be "None" while the engine starts; 0 blocks is as unknown."""
    series = samples.get("cache shape", ())
    shapes = [(label_count(s.labels.get("block_size")), label_count(s.labels.get("num_gpu_blocks"))) for s in series]
    sizes = [size for size, _ in shapes if size is not None]
    capacity = sum_known([None if size is None or blocks is None else size * blocks for size, blocks in shapes])
    return max(sizes, default=None), capacity
