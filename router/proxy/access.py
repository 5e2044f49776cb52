"""The access-log line of a request."""

from router.core.types import Decision
from router.log import AccessEntry
from router.proxy.request import IncomingRequest


def access_entry(
    at_s: float,
    request: IncomingRequest,
    request_id: str,
    path: str,
    client: str,
    status: int | None,
    outcome: str,
    model: str | None,
    decision: Decision | None,
    duration_s: float,
    bytes_in: int,
    bytes_out: int,
    retries: int,
) -> AccessEntry:
    """What is known of an ended request; `decision` None when no worker was chosen for it."""
    method = request.method.decode("ascii")
    if decision is None:
        return AccessEntry(
            at_s, request_id, method, path, client, status, outcome, model,
            duration_s=duration_s, request_bytes=bytes_in, response_bytes=bytes_out, retries=retries,
        )  # fmt: skip
    return AccessEntry(
        at_s,
        request_id,
        method,
        path,
        client,
        status,
        outcome,
        model,
        decision.worker,
        decision.policy,
        decision.reason,
        decision.key_form,
        decision.prompt_tokens,
        decision.predicted_cached_tokens,
        decision.actual_cached_tokens,
        decision.ttft_s,
        duration_s,
        bytes_in,
        bytes_out,
        retries,
    )
