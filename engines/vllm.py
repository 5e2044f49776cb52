"""vLLM: /health, /v1/models and the Prometheus page (names of 0.33 and their older forms)."""

from engines.adapter import Health, Look, ratio, sum_known, whole
from engines.fetch import METRICS_LIMIT_BYTES, Answer, BadAnswer, EngineHttp
from engines.openai import health_by_route, list_models
from router.core.types import Lifecycle
from router.wire.metrics_text import MetricReader, Samples, mean, total

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
CACHE = "vllm:cache_config_info"
START = "process_start_time_seconds"
COUNTERS = ("vllm:prompt_tokens_total", "vllm:request_success_total", "vllm:generation_tokens_total")
PREFIX = {
    "prefix_queries_tokens": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits_tokens": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
}
READER = MetricReader(
    [RUNNING, WAITING, *KV_USED, CACHE, START, *COUNTERS, *(name for names in PREFIX.values() for name in names)]
)


class Vllm:
    """While vLLM loads, its port refuses or hangs; 503 means that the engine core died."""

    def __init__(self, http: EngineHttp) -> None:
        self._http = http

    async def health(self) -> Health:
        return await health_by_route(self._http, busy=Lifecycle.DOWN)

    async def describe(self, *, fresh: bool) -> Look:
        return await list_models(self._http)

    async def scrape(self) -> Look:
        """One series per data-parallel engine behind the port: counts add up, cache use is averaged."""
        return read_page(await self._http.get("/metrics", METRICS_LIMIT_BYTES))


def read_page(answer: Answer) -> Look:
    """All unknown when the page is switched off; BadAnswer when it fails."""
    if answer.unknown_route or answer.refuses_key:
        return Look()
    if not answer.ok:
        raise BadAnswer(f"{answer.path} answered {answer.status}")
    samples = READER.read(answer.body)
    block_tokens, capacity_tokens = cache_shape(samples)
    start = total(samples, START)
    return Look(
        running=whole(total(samples, RUNNING)),
        waiting=whole(total(samples, WAITING)),
        kv_used_ratio=ratio(mean(samples, *KV_USED)),
        block_tokens=block_tokens,
        capacity_tokens=capacity_tokens,
        markers={} if start is None else {START: repr(start)},
        counters={name: value for name in COUNTERS if (value := total(samples, name)) is not None},
        extra={key: value for key, names in PREFIX.items() if (value := total(samples, *names)) is not None},
    )


def cache_shape(samples: Samples) -> tuple[int | None, int | None]:
    """(tokens of a block, tokens of all blocks) from the labels of cache_config_info, one series per engine.

    Labels are text and may be "None" while the engine starts; 0 blocks is as unknown."""
    shapes = [
        (label_count(s.labels.get("block_size")), label_count(s.labels.get("num_gpu_blocks"))) for s in samples.get(CACHE, ())
    ]
    sizes = [size for size, _ in shapes if size is not None]
    capacity = sum_known([None if size is None or blocks is None else size * blocks for size, blocks in shapes])
    return max(sizes, default=None), capacity


def label_count(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 15:
        return None
    return int(text) or None
