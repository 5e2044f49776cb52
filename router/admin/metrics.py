"""Every number of the router as Prometheus families, read when asked. Names: warmline_*, unit last, counters _total.

Label values come from bounded sets (routes, policies, reasons, knobs, kinds) and from the live fleet, so a removed
worker's series are gone with it. What is unknown has no sample: never 0.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from router.admin.figures import Bound, IndexFigures, SharedFigures, WorkerFigures
from router.core.stats import Histogram, Stats
from router.core.types import Lifecycle

HISTOGRAMS_PER_FAMILY = 16  # about 350 samples, see exposition.py


class RouterCollector(Collector):
    """Read family by family by exposition.py; the histograms of a large fleet come as several families of one name."""

    def __init__(
        self,
        stats: Stats,
        workers: Callable[[], Sequence[WorkerFigures]],
        bounds: Callable[[], Iterable[Bound]],
        index: Callable[[], IndexFigures],
        key_sources: Callable[[], Iterable[tuple[str, str, str]]],
        shared: Callable[[], SharedFigures | None],
    ) -> None:
        self._stats = stats
        self._workers = workers
        self._bounds = bounds
        self._index = index
        self._key_sources = key_sources
        self._shared = shared

    def collect(self) -> Iterator[Metric]:
        workers = self._workers()
        forget_gone(self._stats, {worker.id for worker in workers})
        yield from labelled_counters(self._stats)
        yield from plain_counters(self._stats)
        yield from histograms(self._stats)
        yield from bound_gauges(self._bounds())
        yield from index_families(self._index())
        yield model_keys(self._key_sources())
        shared = self._shared()
        if shared is not None:
            yield from shared_families(shared)
        yield from worker_families(workers)

    def describe(self) -> Iterator[Metric]:
        """Nothing in advance: which families exist is known only when they are read."""
        return iter(())


def forget_gone(stats: Stats, live: set[str]) -> None:
    """A request that outlives its removed worker counts for it once more when it ends: such series go here."""
    counted = {worker for worker, _ in stats.upstream_failures} | {worker for _, worker, _ in stats.requests if worker}
    for worker in counted.union(stats.ttft_s, stats.upstream_connections, stats.upstream_reused) - live:
        stats.forget_worker(worker)


def labelled_counters(stats: Stats) -> Iterator[Metric]:
    rows: list[tuple[str, str, tuple[str, ...], dict[tuple[object, ...], int]]] = [
        ("requests", "Requests answered", ("route", "worker", "status"), many_labels(stats.requests)),
        ("errors", "Errors answered by the router itself", ("reason",), one_label(stats.errors)),
        ("decisions", "Choices of a worker", ("policy", "reason"), many_labels(stats.decisions)),
        ("unkeyed_requests", "Requests not keyed by their tokens, by the reason", ("reason",), one_label(stats.unkeyed)),
        ("token_asks", "Prompts whose tokens an engine was to tell", ("result",), one_label(stats.token_asks)),
        ("keyed_requests", "Requests by the form of their keys", ("form",), one_label(stats.key_forms)),
        ("retries", "Requests sent to another worker, by the failure before", ("reason",), one_label(stats.retries)),
        ("upstream_failures", "Failures of a worker", ("worker", "reason"), many_labels(stats.upstream_failures)),
        ("upstream_connections", "Connections opened to a worker", ("worker",), one_label(stats.upstream_connections)),
        ("upstream_reused", "Requests sent on a reused connection", ("worker",), one_label(stats.upstream_reused)),
    ]
    for name, text, labels, values in rows:
        family = CounterMetricFamily(f"warmline_{name}", text, labels=labels)
        for key, value in values.items():
            family.add_metric([str(part) for part in key], value)
        yield family


def many_labels(counter: Mapping[Any, int]) -> dict[tuple[object, ...], int]:
    return dict(counter)


def one_label(counter: Mapping[str, int]) -> dict[tuple[object, ...], int]:
    return {(key,): value for key, value in counter.items()}


PLAIN_COUNTERS = (  # field of Stats, name without warmline_ and _total, help
    ("client_gone", "client_gone", "Requests whose client left before the end of the answer"),
    ("prompt_tokens", "prompt_tokens", "Prompt tokens of finished requests"),
    ("predicted_cached_tokens", "predicted_cached_tokens", "Prompt tokens expected in the chosen worker's cache"),
    ("actual_cached_tokens", "actual_cached_tokens", "Prompt tokens that engines reported as served from their cache"),
    ("actual_known_prompt_tokens", "actual_known_prompt_tokens", "Prompt tokens of requests whose engine told cached tokens"),
    ("completion_tokens", "completion_tokens", "Generated tokens that engines reported"),
    ("usage_unknown", "usage_unknown", "Finished requests whose engine told no usage"),
    ("key_deadline_missed", "key_deadline_missed", "Requests sent with only the keys known at the deadline"),
    ("tails_dropped", "tails_dropped", "Prompts not tokenised to their end after dispatch because too many waited"),
    ("connections_total", "connections", "Client connections accepted"),
    ("connections_refused", "connections_refused", "Client connections closed at the limit"),
    ("stale_connection_retries", "stale_connection_retries", "Requests sent again because a reused connection was dead"),
    ("log_lines_dropped", "log_lines_dropped", "Access-log lines dropped because their reader is too slow"),
    ("recording_dropped", "recording_dropped", "Finished requests missing in a recording because its reader is too slow"),
)  # fmt: skip


def plain_counters(stats: Stats) -> Iterator[Metric]:
    for attribute, name, text in PLAIN_COUNTERS:
        yield CounterMetricFamily(f"warmline_{name}", text, value=getattr(stats, attribute))
    yield GaugeMetricFamily("warmline_recordings", "Recordings of the traffic going on", value=stats.recordings)


def histograms(stats: Stats) -> Iterator[Metric]:
    by_worker = list(stats.ttft_s.items())
    for start in range(0, len(by_worker) or 1, HISTOGRAMS_PER_FAMILY):
        ttft = HistogramMetricFamily("warmline_ttft_seconds", "Request sent to first token, by worker", labels=("worker",))
        for worker, histogram in by_worker[start : start + HISTOGRAMS_PER_FAMILY]:
            ttft.add_metric([worker], buckets_of(histogram), histogram.sum)
        yield ttft
    for name, text, histogram in (
        ("request_duration_seconds", "Whole requests", stats.duration_s),
        ("decision_seconds", "Choosing a worker", stats.decision_s),
        ("key_wait_seconds", "Waiting for a prompt's keys", stats.key_wait_s),
        ("loop_lag_seconds", "Lateness of the event loop", stats.loop_lag_s),
    ):
        yield HistogramMetricFamily(f"warmline_{name}", text, buckets=buckets_of(histogram), sum_value=histogram.sum)


def buckets_of(histogram: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if math.isinf(bound) else repr(bound), count) for bound, count in histogram.cumulative()]


def bound_gauges(bounds: Iterable[Bound]) -> Iterator[Metric]:
    size = GaugeMetricFamily("warmline_bound_size", "How full what a knob bounds is, in the knob's unit", labels=("knob",))
    limit = GaugeMetricFamily("warmline_bound_limit", "The knob's value", labels=("knob",))
    for bound in bounds:
        size.add_metric([bound.knob], bound.size)
        limit.add_metric([bound.knob], bound.limit)
    yield size
    yield limit


def index_families(index: IndexFigures) -> Iterator[Metric]:
    yield GaugeMetricFamily("warmline_index_blocks", "Blocks held over all workers, as the router believes", value=index.blocks)
    yield GaugeMetricFamily("warmline_index_bytes", "Memory of the prefix index", value=index.bytes)
    yield GaugeMetricFamily("warmline_index_event_blocks", "Those told by cache events", value=index.event_blocks)
    yield GaugeMetricFamily("warmline_exact_workers", "Workers matched by their cache events", value=index.exact_workers)
    for name, text, value in (
        ("index_evicted_blocks", "Blocks that left the index for want of room", index.evicted_blocks),
        ("index_refused_blocks", "Blocks told by cache events that found no room", index.refused_blocks),
        ("index_orphan_blocks", "Blocks told by cache events behind a block that is not held", index.orphan_blocks),
        ("cache_feed_gaps", "Workers whose cache events fell out of sequence", index.feed_gaps),
        ("cache_feed_stale", "Messages of a worker's cache that came too late to count", index.feed_stale),
        ("cache_feed_strangers", "Messages of a cache whose worker is not known", index.feed_strangers),
    ):
        yield CounterMetricFamily(f"warmline_{name}", text, value=value)


SHARED_COUNTERS = {  # name without warmline_state_ and _total → help
    "reports": "Reports of workers read from Redis",
    "deltas": "Changes of workers' caches read from Redis",
    "blocks": "Cached blocks told in those changes",
    "gaps": "Workers whose changes did not follow on each other",
    "snapshots": "Whole caches read from Redis",
    "bad_messages": "Values in Redis that are no message of this version",
    "surprises": "Messages whose taking in failed",
    "refused_workers": "Reports of workers that cannot join the fleet",
    "told_loads": "Messages of own load to other routers",
    "heard_loads": "Messages of other routers' load",
    "lost_loads": "Messages of other routers' load that did not arrive",
    "refused_loads": "Messages of more routers than are listened to",
    "told_marks": "Marks of prompts just sent, told to other routers",
    "dropped_marks": "Marks of prompts that found no room, here or on the way to others",
}


def shared_families(shared: SharedFigures) -> Iterator[Metric]:
    """Only where Redis is used."""
    yield GaugeMetricFamily(
        "warmline_redis_up", "0 until Redis answers and while exchanges with it fail", value=float(shared.is_up)
    )
    age = GaugeMetricFamily("warmline_state_read_age_seconds", "Since the last good read of shared state")
    if shared.read_age_s is not None:
        age.add_metric([], shared.read_age_s)
    yield age
    yield GaugeMetricFamily("warmline_other_routers", "Routers of the pool that are heard", value=shared.routers)
    for name, text in SHARED_COUNTERS.items():
        yield CounterMetricFamily(f"warmline_state_{name}", text, value=shared.counts[name])
    errors = CounterMetricFamily("warmline_redis_errors", "Failed exchanges with Redis", labels=("reason",))
    for reason, count in shared.errors.items():
        errors.add_metric([reason], count)
    yield errors


def model_keys(key_sources: Iterable[tuple[str, str, str]]) -> Metric:
    labels = ("model", "prompts", "source")
    family = GaugeMetricFamily("warmline_model_keys", "Always 1; what prompts are keyed from", labels=labels)
    for row in key_sources:
        family.add_metric(row, 1)
    return family


WORKER_GAUGES: tuple[tuple[str, str, Callable[[WorkerFigures], float | None]], ...] = (
    ("up", "1 when ready for requests", lambda w: float(w.lifecycle is Lifecycle.READY)),
    ("weight", "Its share as configured", lambda w: w.weight),
    ("in_flight_requests", "This router's requests on it", lambda w: w.in_flight),
    ("pending_prefill_tokens", "Uncached tokens of those before their first token", lambda w: w.pending_prefill_tokens),
    ("running_requests", "Running, as the engine reported", lambda w: w.running),
    ("waiting_requests", "Waiting, as the engine reported", lambda w: w.waiting),
    ("waiting_tokens", "Uncached tokens waiting, as the engine reported", lambda w: w.waiting_tokens),
    ("kv_used_ratio", "KV cache in use, 0 to 1, as the engine reported", lambda w: w.kv_used_ratio),
    ("report_age_seconds", "Age of its last report", lambda w: w.report_age_s),
    ("capacity_tokens", "Size of its KV cache, told or assumed", lambda w: w.capacity_tokens),
    ("block_tokens", "Size of its cache blocks", lambda w: w.block_tokens),
    ("blocks_held", "Blocks of 16 tokens that the router believes it holds", lambda w: w.blocks_held),
    ("prefill_tokens_per_second", "Prefill speed learned from first tokens", lambda w: w.prefill_tokens_per_s),
    ("predicted_cached_tokens", "Moving average per request", lambda w: w.predicted_cached_tokens),
    ("actual_cached_tokens", "Moving average per request", lambda w: w.actual_cached_tokens),
    ("cached_tokens_error", "Moving average of |predicted - actual|", lambda w: w.cached_tokens_error),
    ("tokens_match", "1 when its tokens are those of the tokenizer here, 0 when not", lambda w: w.tokens_match),
    ("other_routers_requests", "Requests of other routers on it, as they tell", lambda w: w.other_requests),
    ("other_routers_prefill_tokens", "Uncached tokens of those before their first token", lambda w: w.other_prefill_tokens),
    ("kv_blocks", "Engine blocks followed through KV events: max_event_blocks", lambda w: w.engine.get("kv_blocks")),
    ("kv_orphan_blocks", "Those whose start is not known: max_orphan_blocks", lambda w: w.engine.get("kv_orphan_blocks")),
)  # fmt: skip
WORKER_COUNTERS = (
    ("probe_failures", "Probes that failed"),
    ("scrape_failures", "Load scrapes that failed"),
    ("kv_batches", "Messages of KV events taken in"),
    ("kv_losses", "Times that KV events were missed for good, so that what is cached had to be forgotten"),
    ("kv_malformed", "Messages of KV events that could not be read"),
    ("kv_lost_blocks", "Blocks of KV events that were not taken in: no room, or they do not fit"),
)


def worker_families(workers: Sequence[WorkerFigures]) -> Iterator[Metric]:
    states = GaugeMetricFamily("warmline_workers", "Workers by state", labels=("state",))
    for state in Lifecycle:
        states.add_metric([state], sum(worker.lifecycle is state for worker in workers))
    yield states
    info = GaugeMetricFamily("warmline_worker_info", "Always 1", labels=("worker", "kind", "state", "truth"))
    for worker in workers:
        info.add_metric([worker.id, worker.kind, worker.lifecycle, worker.truth], 1)
    yield info
    for name, text, read in WORKER_GAUGES:
        gauge = GaugeMetricFamily(f"warmline_worker_{name}", text, labels=("worker",))
        for worker in workers:
            if (value := read(worker)) is not None:
                gauge.add_metric([worker.id], value)
        yield gauge
    demotions = CounterMetricFamily(
        "warmline_worker_demotions", "Times that events or history were dropped for their misses", labels=("worker",)
    )
    for worker in workers:
        demotions.add_metric([worker.id], worker.demotions)
    yield demotions
    for name, text in WORKER_COUNTERS:
        counter = CounterMetricFamily(f"warmline_worker_{name}", text, labels=("worker",))
        for worker in workers:
            if name in worker.engine:
                counter.add_metric([worker.id], worker.engine[name])
        yield counter
