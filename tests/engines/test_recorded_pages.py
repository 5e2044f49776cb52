"""The adapters' readers on what real engines answered."""

from engines.adapter import Look
from engines.deepspeed import read_page as read_deepspeed_page
from engines.fetch import Answer
from engines.openai import error_text, json_object, read_models
from engines.sglang import LOADS, add_info, read_loads
from engines.sglang import read_page as read_sglang_page
from engines.vllm import METRICS, read_page
from tests.golden.recorded import answer, lines

VLLM, SGLANG, DEEPSPEED = "vllm-0.32.0/http", "sglang-0.5.23/http", "deepspeed-0.19.8/http"


def page(step: str) -> Look:
    samples = METRICS.read(recorded(VLLM, step, "/metrics"))
    assert samples is not None
    return read_page(samples)


def recorded(recording: str, step: str, path: str) -> Answer:
    found = answer(recording, step, path)
    return Answer(path, found["status"], found["headers"], found["body"].encode())


def test_vllm_page_of_an_idle_engine() -> None:
    """Nothing runs; block size and capacity come from the cache's own labels."""
    look = page("idle")
    assert (look.running, look.waiting, look.block_tokens, look.capacity_tokens) == (0, 0, 32, 24 * 32)
    assert look.kv_used_ratio == 0 and look.extra["prefix_hits_tokens"] > 0 and look.markers


def test_vllm_page_under_load() -> None:
    """More requests than the small cache holds: some run, some wait, and counters have grown."""
    idle, busy = (page(step) for step in ("idle", "load"))
    assert busy.running and busy.waiting and busy.running + busy.waiting == 12
    assert busy.kv_used_ratio and busy.markers == idle.markers
    assert all(busy.counters[name] >= idle.counters[name] for name in idle.counters)


def test_deepspeed_page_under_load() -> None:
    """The page of the back end tells what runs and waits in its line; MII's own server has none."""
    look = read_deepspeed_page(recorded(DEEPSPEED, "load", "/metrics"))
    assert look.running == 1 and look.waiting and look.markers
    assert recorded(DEEPSPEED, "idle", "/metrics").unknown_route


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


def test_sglang_loads() -> None:
    """Counts and cache size come from /v1/loads, idle and with more requests than run at once."""
    idle, busy = (read_loads(recorded(SGLANG, step, LOADS)) for step in ("idle", "load"))
    assert (idle.running, idle.waiting, idle.capacity_tokens, idle.kv_used_ratio) == (0, 0, 768, 0.0)
    assert busy.running and busy.waiting and busy.waiting_tokens and busy.kv_used_ratio
    assert busy.extra["max_running_requests"] == 4


def test_sglang_page() -> None:
    """The metrics page says the same where /v1/loads is missing, and the page size with it."""
    loads, page = read_loads(recorded(SGLANG, "load", LOADS)), read_sglang_page(recorded(SGLANG, "load", "/metrics"))
    assert (page.capacity_tokens, page.block_tokens) == (loads.capacity_tokens, 16)
    assert page.running and page.waiting and page.counters["requests"] > 0


def test_sglang_info() -> None:
    """Page size, cache size and the seed that tells one start from another."""
    look = Look()
    add_info(look, json_object(recorded(SGLANG, "idle", "/server_info")))
    assert (look.block_tokens, look.capacity_tokens) == (16, 768) and look.hints["random_seed"]


def test_sglang_errors_are_read() -> None:
    """Its flat error bodies have a message that people are shown; an unknown model is no error to it."""
    refused = [line for line in lines(SGLANG, "errors") if line["status"] != 200]
    assert len(refused) == len(lines(SGLANG, "errors")) - 1
    for line in [*refused, answer(SGLANG, "overload", "/v1/completions")]:
        assert error_text(Answer("", line["status"], {}, line["body"].encode()))
