"""Every failure a client can see has its own reason, a fitting status and type, and a clear rule about retries."""

from collections.abc import Iterator

import pytest

from router.errors import BadRequest, RouterError

OPENAI_TYPES = {"invalid_request_error", "rate_limit_error", "api_error", "service_unavailable_error"}


def family(kind: type[RouterError]) -> Iterator[type[RouterError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from family(child)


ERRORS = list(family(RouterError))


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_each_error_maps_to_one_answer(kind: type[RouterError]) -> None:
    """Status and type agree: 4xx is the client's fault or its rate, 5xx is ours or the worker's."""
    assert 400 <= kind.status <= 599
    assert kind.type in OPENAI_TYPES
    if kind.status < 500:
        assert kind.type in ("invalid_request_error", "rate_limit_error")
    if kind.type == "rate_limit_error":
        assert kind.status == 429


def test_reasons_are_unique() -> None:
    """`reason` is a metric label and the code of the answer: it names one failure only, in snake case."""
    reasons = [kind.reason for kind in ERRORS]
    assert len(reasons) == len(set(reasons))
    assert all(reason.replace("_", "").isalpha() and reason.islower() for reason in reasons)


def test_only_failures_of_a_worker_are_retried() -> None:
    """A client's fault is never tried on another worker, and what is tried again answers 502 when all tries failed."""
    retryable = {kind.reason for kind in ERRORS if kind.retryable}
    assert retryable == {"upstream_refused", "upstream_closed", "upstream_garbage"}
    assert not any(kind.retryable for kind in family(BadRequest))
    assert all(kind.status == 502 for kind in ERRORS if kind.retryable)


def test_busy_answers_say_when_to_come_back() -> None:
    """429 and 503 carry Retry-After, others do not."""
    for kind in ERRORS:
        assert (kind.retry_after_s is not None) == (kind.status in (429, 503)), kind.__name__


def test_message_and_param_are_kept() -> None:
    """The message is what the client reads, `param` the field at fault."""
    error = BadRequest("no", param="messages")
    assert (str(error), error.message, error.param) == ("no", "no", "messages")
    assert RouterError("x").param is None
