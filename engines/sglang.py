"""SGLang: /health, /v1/models, /v1/loads (works without its metrics flag), /server_info for the page size."""

from typing import Any

from engines.adapter import Health, Look, mapping, ratio, rows, sum_known, whole
from engines.fetch import Answer, BadAnswer, EngineHttp
from engines.metric_page import START, STARTED, MetricPage, counters, label_count, start_marker
from engines.openai import health_by_route, json_object, list_models
from router.wire.metrics_text import Sample, Samples, mean, total

LOADS = "/v1/loads?include=core,queues&format=json"
METRICS = MetricPage(
    {
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "KV use": ("sglang:token_usage",),
        "KV tokens": ("sglang:max_total_num_tokens",),
        "page size": ("sglang:page_size",),
        "cache shape": ("sglang:cache_config_info",),
        STARTED: (START,),
        "prompt tokens": ("sglang:prompt_tokens_total",),
        "requests": ("sglang:num_requests_total",),
    }
)


class Sglang:
    """The port opens when the scheduler runs; /health is 503 until the warm-up request has passed, and at shutdown."""

    def __init__(self, http: EngineHttp) -> None:
        self._http = http
        self._has_loads = True  # until it says that it has no such route (older releases)

    async def health(self) -> Health:
        return await health_by_route(self._http)

    async def describe(self, *, fresh: bool) -> Look:
        look = await list_models(self._http)
        name_adapters(look)
        if fresh:
            self._has_loads = True
            await self._add_server_info(look)
        return look

    async def scrape(self) -> Look:
        if self._has_loads:
            answer = await self._http.get(LOADS)
            if not answer.unknown_route:
                return read_loads(answer, self._http.rank)
            self._has_loads = False
        return read_page(await self._http.page(), self._http.rank)

    async def _add_server_info(self, look: Look) -> None:
        """Page size, cache size, and the seed, drawn at each start unless given. Costs a scheduler turn: asked once."""
        for path in ("/server_info", "/get_server_info"):
            answer = await self._http.get(path)
            if answer.ok:
                add_info(look, json_object(answer))
            if not answer.unknown_route:
                return


def name_adapters(look: Look) -> None:
    """Adapters are asked for as `base:adapter`; any other unknown name, the adapter's own too, is answered by the base model.

    The first of the models that is no adapter is the base.
    """
    if not look.adapters or look.models is None:
        return
    bases = [name for name in look.models if name not in look.adapters]
    base = bases[0] if bases else ""
    look.adapters = {f"{base}:{name}": path for name, path in look.adapters.items()}
    look.models = (*bases, *look.adapters)


def add_info(look: Look, info: dict[str, Any]) -> None:
    """Only the named fields are read: the answer repeats every launch argument, keys of the server among them."""
    look.block_tokens = whole(info.get("page_size")) or None
    look.capacity_tokens = whole(info.get("max_total_num_tokens")) or None
    seed = whole(info.get("random_seed"))
    if seed is not None:
        look.hints["random_seed"] = str(seed)


def read_loads(answer: Answer, rank: int | None = None) -> Look:
    """The row of one data-parallel rank, or of all: counts and cache sizes add up, cache use is averaged.

    BadAnswer when it is none.
    """
    if answer.refuses_key:
        return Look()
    if not answer.ok:
        raise BadAnswer(f"{answer.path} answered {answer.status}")
    ranks = [row for row in rows(mapping(answer.json()).get("loads")) if rank is None or row.get("dp_rank") == rank]
    used = [ratio(rank.get("token_usage")) for rank in ranks]
    known = [share for share in used if share is not None]
    look = Look(
        running=_over_ranks(ranks, "num_running_reqs"),
        waiting=_over_ranks(ranks, "num_waiting_reqs"),
        waiting_tokens=_over_ranks(ranks, "num_waiting_uncached_tokens"),
        capacity_tokens=_over_ranks(ranks, "max_total_num_tokens") or None,
        kv_used_ratio=sum(known) / len(known) if known else None,
    )
    slots = _over_ranks(ranks, "max_running_requests")
    if slots is not None:
        look.extra["max_running_requests"] = float(slots)
    return look


def _over_ranks(ranks: list[dict[str, Any]], key: str) -> int | None:
    return sum_known([whole(rank.get(key)) for rank in ranks])


def read_page(answer: Answer, rank: int | None = None) -> Look:
    """Of one data-parallel rank, or of all. All unknown where metrics are off (the default)."""
    page = METRICS.read(answer)
    if page is None:
        return Look()
    samples = whole_engine(page, rank)
    block_tokens, capacity_tokens = cache_shape(samples)
    return Look(
        running=whole(total(samples, "running")),
        waiting=whole(total(samples, "waiting")),
        kv_used_ratio=ratio(mean(samples, "KV use")),
        capacity_tokens=capacity_tokens,
        block_tokens=block_tokens,
        markers=start_marker(samples),
        counters=counters(samples, "prompt tokens", "requests"),
    )


def cache_shape(samples: Samples) -> tuple[int | None, int | None]:
    """(tokens of a page, tokens of the cache): gauges in 0.5.23, labels of an info series in the releases before."""
    labels = [sample.labels for sample in samples.get("cache shape", ())]
    sizes = [size for shape in labels if (size := label_count(shape.get("page_size"))) is not None]
    page = whole(mean(samples, "page size")) or max(sizes, default=None)
    pages = sum_known([label_count(shape.get("num_pages")) for shape in labels])
    capacity = whole(total(samples, "KV tokens")) or (pages * page if pages and page else None)
    return page, capacity


def whole_engine(samples: Samples, rank: int | None) -> Samples:
    """Without series of other data-parallel ranks, unless all are asked for, and without those that repeat a count.

    Those are the shares of each priority (their total has an empty one) and of further model shards.
    """
    return {name: [sample for sample in series if _counts_once(sample, rank)] for name, series in samples.items()}


def _counts_once(sample: Sample, rank: int | None) -> bool:
    labels = sample.labels
    if rank is not None and labels.get("dp_rank", str(rank)) != str(rank):
        return False
    return labels.get("priority", "") == "" and labels.get("tp_rank", "0") == "0" and labels.get("pp_rank", "0") == "0"
