"""Text Generation Inference: /health, /v1/models, /info and the Prometheus page (its v3 line; names are the same since v1).

Its prefix cache keeps prompts only, never what was generated, and is off with LoRA adapters or paged attention; nothing
of it is shown, and no answer tells cached tokens.
"""

from engines.adapter import Health, Look, printable, ratio, whole
from engines.fetch import Answer, EngineHttp
from engines.metric_page import MetricPage, counters
from engines.openai import health_by_route, json_object, list_models
from router.core.types import Lifecycle
from router.wire.metrics_text import total

METRICS = MetricPage(
    {
        "running": ("tgi_batch_current_size",),
        "waiting": ("tgi_queue_size",),
        "KV tokens": ("tgi_batch_max_total_tokens",),
        "KV tokens in use": ("tgi_batch_current_max_tokens",),
        "requests": ("tgi_request_count", "tgi_request_count_total"),
        "finished requests": ("tgi_request_success", "tgi_request_success_total"),
    }
)


class Tgi:
    """Its port refuses until the shards are loaded; after that 503 means that generating failed."""

    def __init__(self, http: EngineHttp) -> None:
        self._http = http

    async def health(self) -> Health:
        return await health_by_route(self._http, busy=Lifecycle.DOWN)

    async def describe(self, *, fresh: bool) -> Look:
        """/info names the model where an older release has no list."""
        look = await list_models(self._http)
        if fresh or look.unlisted:
            answer = await self._http.get("/info")
            if answer.ok:
                add_info(look, answer)
        return look

    async def scrape(self) -> Look:
        return read_page(await self._http.page())


def add_info(look: Look, answer: Answer) -> None:
    info = json_object(answer)
    model = info.get("model_id")
    if look.unlisted and isinstance(model, str) and model:
        look.models, look.unlisted, look.detail = (model,), False, ""
    limit = whole(info.get("max_concurrent_requests"))
    if limit:
        look.extra["max_concurrent_requests"] = float(limit)
    build = [value for name in ("version", "sha", "model_sha") if isinstance(value := info.get(name), str)]
    if build:
        look.hints["build"] = printable(" ".join(build))


def read_page(answer: Answer) -> Look:
    """The cache is as large as the token budget of a batch, found out at start; its use is what the batch may grow to."""
    samples = METRICS.read(answer)
    if samples is None:
        return Look()
    capacity, used = total(samples, "KV tokens"), total(samples, "KV tokens in use")
    return Look(
        running=whole(total(samples, "running")),
        waiting=whole(total(samples, "waiting")),
        capacity_tokens=whole(capacity) or None,
        kv_used_ratio=ratio(used / capacity) if used is not None and capacity else None,
        counters=counters(samples, "requests", "finished requests"),
    )
