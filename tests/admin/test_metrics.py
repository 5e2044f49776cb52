"""router.admin.metrics: names, units and labels of every family."""

import re
from collections.abc import Sequence
from dataclasses import replace

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from router.admin.exposition import pieces
from router.admin.figures import Bound, IndexFigures, SharedFigures, WorkerFigures
from router.admin.metrics import HISTOGRAMS_PER_FAMILY, SHARED_COUNTERS, WORKER_GAUGES, RouterCollector, shared_families
from router.core.stats import Stats
from router.core.types import Lifecycle
from tests.admin.stage import figures

BOUNDS = [Bound("index_bytes", 5.0, 100.0)]
SOURCES = [("m", "chat", "engine"), ("m", "text", "tokenizer")]
SHARED = SharedFigures(True, 0.25, 2, {name: place for place, name in enumerate(SHARED_COUNTERS)}, {"timeout": 3})
LABELS = {
    "route",
    "worker",
    "status",
    "reason",
    "policy",
    "form",
    "knob",
    "state",
    "kind",
    "truth",
    "le",
    "result",
    "model",
    "prompts",
    "source",
}


def collector(stats: Stats, workers: Sequence[WorkerFigures]) -> RouterCollector:
    index = IndexFigures(7, 800, 9, 3, 2, 11, 12, 13, 14, 15)
    return RouterCollector(stats, lambda: workers, lambda: BOUNDS, lambda: index, lambda: SOURCES, lambda: SHARED)


def families(stats: Stats, workers: Sequence[WorkerFigures]) -> dict[str, Metric]:
    """Read back as Prometheus would."""
    page = b"".join(pieces(collector(stats, workers).collect())).decode()
    return {family.name: family for family in text_string_to_metric_families(page)}


def busy_stats() -> Stats:
    stats = Stats()
    stats.requests["chat", "w:1", 200] = 3
    stats.errors["no_worker"] = 1
    stats.decisions["warm", "warm_prefix"] = 2
    stats.unkeyed["too_large"] = 1
    stats.key_forms["tokens"] = 4
    stats.token_asks["told"] = 2
    stats.retries["upstream_refused"] = 1
    stats.upstream_failures["w:1", "upstream_refused"] = 1
    stats.upstream_connections["w:1"] = 5
    stats.upstream_reused["w:1"] = 6
    stats.connections_total = 8
    stats.prompt_tokens = 1000
    stats.ttft_of("w:1").observe(0.03)
    stats.duration_s.observe(1000.0)
    return stats


def value(found: dict[str, Metric], name: str, **labels: str) -> float | None:
    """The one sample of that name and those labels."""
    for family in found.values():
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
    return None


def test_names_and_labels() -> None:
    """Every name starts with warmline_, counters end in _total, no unit is abbreviated, labels come from bounded sets."""
    found = families(busy_stats(), [figures("w:1")])
    for family in found.values():
        assert re.fullmatch(r"warmline_[a-z_]+", family.name) and not re.search(r"_(s|ms|secs|pct|percent)$", family.name)
        assert family.documentation
        for sample in family.samples:
            assert set(sample.labels) <= LABELS
            assert sample.name.endswith("_total") is (family.type == "counter")


def test_counters() -> None:
    """Counters of the data plane appear with their labels and values."""
    found = families(busy_stats(), [figures("w:1")])
    assert value(found, "warmline_requests_total", route="chat", worker="w:1", status="200") == 3
    assert value(found, "warmline_errors_total", reason="no_worker") == 1
    assert value(found, "warmline_decisions_total", policy="warm", reason="warm_prefix") == 2
    assert value(found, "warmline_unkeyed_requests_total", reason="too_large") == 1
    assert value(found, "warmline_keyed_requests_total", form="tokens") == 4
    assert value(found, "warmline_token_asks_total", result="told") == 2
    assert value(found, "warmline_retries_total", reason="upstream_refused") == 1
    assert value(found, "warmline_upstream_failures_total", worker="w:1", reason="upstream_refused") == 1
    assert value(found, "warmline_upstream_connections_total", worker="w:1") == 5
    assert value(found, "warmline_upstream_reused_total", worker="w:1") == 6
    assert value(found, "warmline_connections_total") == 8
    assert value(found, "warmline_prompt_tokens_total") == 1000
    assert value(found, "warmline_client_gone_total") == 0


def test_every_number_of_stats_is_shown() -> None:
    """A counter added to Stats must not be forgotten here: each attribute is a family or a bound's size."""
    stats, shown_as_bounds = Stats(), {"connections_open", "requests_in_flight", "buffered_bytes"}
    names = " ".join(families(stats, []))
    spelled = {"unkeyed": "unkeyed_requests", "key_forms": "keyed_requests", "connections_total": "connections"}
    spelled |= {"duration_s": "request_duration_seconds"}
    for attribute in (name for name in dir(stats) if not name.startswith("_") and not callable(getattr(stats, name))):
        name = spelled.get(attribute, re.sub(r"_s$", "_seconds", attribute))
        assert f"warmline_{name}" in names or attribute in shown_as_bounds, attribute


def test_histograms() -> None:
    """Buckets are cumulative and end in +Inf; sum and count follow."""
    found = families(busy_stats(), [figures("w:1")])
    assert value(found, "warmline_ttft_seconds_bucket", worker="w:1", le="0.025") == 0
    assert value(found, "warmline_ttft_seconds_bucket", worker="w:1", le="0.05") == 1
    assert value(found, "warmline_ttft_seconds_bucket", worker="w:1", le="+Inf") == 1
    assert value(found, "warmline_ttft_seconds_sum", worker="w:1") == 0.03
    assert value(found, "warmline_request_duration_seconds_bucket", le="640.0") == 0
    assert value(found, "warmline_request_duration_seconds_count") == 1
    assert value(found, "warmline_decision_seconds_count") == 0


def test_bounds_and_index() -> None:
    """Each bound shows how full it is beside its limit, under the name of its knob."""
    found = families(Stats(), [])
    assert value(found, "warmline_bound_size", knob="index_bytes") == 5
    assert value(found, "warmline_bound_limit", knob="index_bytes") == 100
    assert value(found, "warmline_index_blocks") == 7
    assert value(found, "warmline_index_bytes") == 800
    assert value(found, "warmline_index_evicted_blocks_total") == 9
    assert value(found, "warmline_index_event_blocks") == 3
    assert value(found, "warmline_exact_workers") == 2
    counters = ("index_refused_blocks", "index_orphan_blocks", "cache_feed_gaps", "cache_feed_stale", "cache_feed_strangers")
    assert [value(found, f"warmline_{name}_total") for name in counters] == [11, 12, 13, 14, 15]


def test_shared_state() -> None:
    """What goes through Redis, where one is used; how old it is has no sample before the first read."""
    found = families(Stats(), [])
    assert value(found, "warmline_redis_up") == 1
    assert value(found, "warmline_state_read_age_seconds") == 0.25
    assert value(found, "warmline_other_routers") == 2
    assert value(found, "warmline_redis_errors_total", reason="timeout") == 3
    assert [value(found, f"warmline_state_{name}_total") for name in SHARED_COUNTERS] == list(range(len(SHARED_COUNTERS)))
    lost = {metric.name: metric for metric in shared_families(replace(SHARED, is_up=False, read_age_s=None))}
    assert lost["warmline_redis_up"].samples[0].value == 0
    assert lost["warmline_state_read_age_seconds"].samples == []


def test_what_prompts_are_keyed_from() -> None:
    """One series per model and shape of prompt says what such prompts are keyed from."""
    found = families(Stats(), [])
    assert value(found, "warmline_model_keys", model="m", prompts="chat", source="engine") == 1
    assert value(found, "warmline_model_keys", model="m", prompts="text", source="tokenizer") == 1
    assert value(found, "warmline_model_keys", model="m", prompts="chat", source="tokenizer") is None


def test_workers() -> None:
    """All numbers of a worker, its state in words, and the fleet by state with zeros."""
    found = families(Stats(), [figures("w:1"), figures("w:2", lifecycle=Lifecycle.DOWN)])
    assert value(found, "warmline_workers", state="ready") == value(found, "warmline_workers", state="down") == 1
    assert value(found, "warmline_workers", state="draining") == 0
    assert value(found, "warmline_worker_info", worker="w:2", kind="vllm", state="down", truth="modelled") == 1
    expected = {
        "up": 1, "weight": 1, "in_flight_requests": 2, "pending_prefill_tokens": 900, "running_requests": 3,
        "waiting_requests": 1, "waiting_tokens": 500, "kv_used_ratio": 0.25, "report_age_seconds": 0.125,
        "capacity_tokens": 16000, "block_tokens": 16, "blocks_held": 40, "prefill_tokens_per_second": 2500,
        "predicted_cached_tokens": 64, "actual_cached_tokens": 60, "cached_tokens_error": 4, "tokens_match": 1,
        "demotions_total": 3, "other_routers_requests": 8, "other_routers_prefill_tokens": 70,
        "probe_failures_total": 5, "scrape_failures_total": 6,
    }  # fmt: skip
    assert {name: value(found, f"warmline_worker_{name}", worker="w:1") for name in expected} == expected
    assert value(found, "warmline_worker_up", worker="w:2") == 0


def test_unknown_has_no_sample() -> None:
    """What an engine does not tell is absent, never 0."""
    unknown = replace(figures("w:1"), running=None, kv_used_ratio=None, report_age_s=None, prefill_tokens_per_s=None, engine={})
    unknown = replace(unknown, tokens_match=None)
    found = families(Stats(), [unknown])
    for name in ("running_requests", "kv_used_ratio", "report_age_seconds", "prefill_tokens_per_second", "tokens_match"):
        assert found[f"warmline_worker_{name}"].samples == []
    assert found["warmline_worker_probe_failures"].samples == []
    assert len(WORKER_GAUGES) == 19


def test_large_fleet() -> None:
    """Histograms of many workers come as several families of one name, and read as one."""
    stats = Stats()
    count = HISTOGRAMS_PER_FAMILY * 2 + 1
    for number in range(count):
        stats.ttft_of(f"w:{number}").observe(0.1)
    fleet = [figures(f"w:{number}") for number in range(count)]
    assert sum(family.name == "warmline_ttft_seconds" for family in collector(stats, fleet).collect()) == 3
    counts = [s for s in families(stats, fleet)["warmline_ttft_seconds"].samples if s.name.endswith("_count")]
    assert len(counts) == count


def test_series_end_with_their_worker() -> None:
    """What a request of a removed worker counts when it ends later makes no series that stays for ever."""
    stats = busy_stats()
    stats.requests["chat", "", 404] = 1
    found = families(stats, [figures("w:2")])
    labels = {sample.labels.get("worker") for family in found.values() for sample in family.samples}
    assert labels == {None, "", "w:2"}
    assert "w:1" not in stats.ttft_s


def test_nothing_is_described_in_advance() -> None:
    """Registering the collector does not read the fleet."""
    assert list(collector(Stats(), []).describe()) == []
