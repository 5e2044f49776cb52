"""The adapters' readers on what real engines answered."""

from engines.fetch import Answer
from engines.openai import error_text, read_models
from engines.vllm import read_page
from tests.golden.recorded import answer, lines

VLLM = "vllm-0.32.0/http"


def recorded(recording: str, step: str, path: str) -> Answer:
    found = answer(recording, step, path)
    return Answer(path, found["status"], found["headers"], found["body"].encode())


def test_vllm_page_of_an_idle_engine() -> None:
    """Nothing runs; block size and capacity come from the cache's own labels."""
    look = read_page(recorded(VLLM, "idle", "/metrics"))
    assert (look.running, look.waiting, look.block_tokens, look.capacity_tokens) == (0, 0, 32, 24 * 32)
    assert look.kv_used_ratio == 0 and look.extra["prefix_hits_tokens"] > 0 and look.markers


def test_vllm_page_under_load() -> None:
    """More requests than the small cache holds: some run, some wait, and counters have grown."""
    idle, busy = (read_page(recorded(VLLM, step, "/metrics")) for step in ("idle", "load"))
    assert busy.running and busy.waiting and busy.running + busy.waiting == 12
    assert busy.kv_used_ratio and busy.markers == idle.markers
    assert all(busy.counters[name] >= idle.counters[name] for name in idle.counters)


def test_vllm_models_and_adapters() -> None:
    """Adapters stand beside the model in the list; one loaded at run time joins it."""
    assert read_models(recorded(VLLM, "idle", "/v1/models")).models == ("tiny",)
    events = "vllm-0.32.0/events"
    assert read_models(recorded(events, "adapters", "/v1/models")).models == ("tiny", "red")
    assert read_models(recorded(events, "adapter at run time", "/v1/models")).models == ("tiny", "red", "blue")


def test_vllm_errors_are_read() -> None:
    """Every error body has a message that people are shown."""
    for line in [*lines(VLLM, "errors"), *lines(VLLM, "overload", "answer")]:
        assert line["status"] >= 400 and error_text(Answer("", line["status"], {}, line["body"].encode()))
