"""engines.sidecar.portrait: what a report says of an engine."""

from engines.adapter import Look
from engines.sidecar.portrait import Portrait
from router.core.types import Lifecycle, Truth
from router.settings import EngineSpec

SPEC = EngineSpec("vllm", "http://10.0.0.1:8000", api_key="s3cret")


def portrait() -> Portrait:
    made = Portrait(SPEC)
    made.lifecycle, made.detail = Lifecycle.READY, ""
    return made


def test_unseen_engine() -> None:
    """Before the first look everything is unknown, and the worker is loading."""
    report = Portrait(SPEC).report(1.5, {})
    assert (report.worker, report.kind, report.url) == ("10.0.0.1:8000", "vllm", "http://10.0.0.1:8000")
    assert (report.lifecycle, report.detail, report.generation, report.reported_at_s) == (
        Lifecycle.LOADING,
        "not seen yet",
        "",
        1.5,
    )
    assert (report.models, report.capacity_tokens, report.running, report.truth) == (None, None, None, Truth.MODELLED)
    assert "s3cret" not in repr(report)


def test_engine_without_prefix_reuse() -> None:
    """Where the kind reuses no prefixes nothing is ever taken to be cached, and the report says why."""
    report = Portrait(EngineSpec("deepspeed", "http://a")).report(0.0, {})
    assert (report.truth, report.truth_reason) == (Truth.NONE, "engines of its kind reuse no prefixes")


def test_facts_last_and_load_does_not() -> None:
    """Size and block are kept when a look does not repeat them; load numbers are those of the last scrape only."""
    seen = portrait()
    seen.describe(Look(models=("m",), extra={"slots": 4.0}, detail="odd"), fresh=True)
    seen.measure(Look(running=3, waiting=1, capacity_tokens=100, block_tokens=16, kv_used_ratio=0.5, extra={"hits": 2.0}))
    report = seen.report(1.0, {"probe_failures": 1.0})
    assert (report.models, report.capacity_tokens, report.block_tokens, report.running) == (("m",), 100, 16, 3)
    assert (report.detail, report.extra) == ("odd", {"slots": 4.0, "hits": 2.0, "probe_failures": 1.0})
    seen.measure(Look(waiting=2))
    later = seen.report(2.0, {})
    assert (later.capacity_tokens, later.running, later.waiting) == (100, None, 2)
    seen.forget_load()
    assert seen.report(3.0, {}).waiting is None


def test_load_belongs_to_a_ready_engine() -> None:
    """An engine that is down has no load, whatever it showed before."""
    seen = portrait()
    seen.measure(Look(running=3))
    seen.lifecycle, seen.detail = Lifecycle.DOWN, "gone"
    report = seen.report(1.0, {})
    assert (report.running, report.detail) == (None, "gone")


def test_facts_end_with_the_process() -> None:
    """A restart, or a fresh look after an absence, drops what the former process told."""
    seen = portrait()
    seen.describe(Look(models=("m",), capacity_tokens=100, markers={"start": "1"}, extra={"slots": 4.0}), fresh=True)
    assert seen.measure(Look(block_tokens=32, markers={"start": "2"}))
    report = seen.report(1.0, {})
    assert (report.capacity_tokens, report.block_tokens, report.extra) == (None, 32, {})
    seen.describe(Look(models=("m",)), fresh=True)
    assert seen.report(1.0, {}).block_tokens is None
