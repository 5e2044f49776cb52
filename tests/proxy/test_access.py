"""What a log line is made of."""

from router.core.types import Decision, KeyForm, WorkerId
from router.proxy.access import access_entry
from router.proxy.request import IncomingRequest


def test_a_request_without_a_worker() -> None:
    """A request that failed before a choice has no worker, and its sizes and times all the same."""
    request = IncomingRequest(0.0)
    request.method = b"POST"
    entry = access_entry(1.0, request, "id", "/p", "ip", 400, "malformed_json", None, None, 0.5, 7, 9, 0)
    assert (entry.method, entry.worker, entry.status, entry.outcome) == ("POST", None, 400, "malformed_json")
    assert (entry.duration_s, entry.request_bytes, entry.response_bytes) == (0.5, 7, 9)


def test_a_request_with_a_worker() -> None:
    """What was predicted and what came of it stand beside each other."""
    request = IncomingRequest(0.0)
    request.method = b"POST"
    decision = Decision("id", 1.0, "warm", "warm_prefix", WorkerId("w:1"), "m", 480, KeyForm.TEXT, None, 400)
    decision.actual_cached_tokens, decision.ttft_s = 384, 0.1
    entry = access_entry(1.0, request, "id", "/p", "ip", 200, "ok", "m", decision, 0.5, 7, 9, 1)
    assert (entry.worker, entry.policy, entry.choice, entry.keys) == ("w:1", "warm", "warm_prefix", "text")
    assert (entry.prompt_tokens, entry.predicted_cached_tokens, entry.actual_cached_tokens) == (480, 400, 384)
    assert (entry.ttft_s, entry.retries, entry.model) == (0.1, 1, "m")
