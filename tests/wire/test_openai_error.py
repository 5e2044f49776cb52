"""router.wire.openai_error: what clients' SDKs parse."""

import json

import pytest

from router.errors import BadRequest, InvalidField, ModelNotFound, NoWorker, Overloaded, RouterError, UpstreamBroken
from router.wire.openai_error import (
    MAX_MESSAGE_CHARACTERS,
    error_body,
    error_event,
    model_body,
    models_list,
)


def test_error_body() -> None:
    """The OpenAI envelope: message, type, param and a string code, with the request id beside it when there is one."""
    error = InvalidField("temperature is not a number", param="temperature")
    envelope = {
        "message": "temperature is not a number",
        "type": "invalid_request_error",
        "param": "temperature",
        "code": "invalid_field",
    }
    assert json.loads(error_body(error)) == {"error": envelope}
    assert json.loads(error_body(error, "req-1")) == {"error": envelope, "request_id": "req-1"}


def test_error_event_is_one_event() -> None:
    """A failure in mid-stream is one `data:` event closed by a blank line, whatever the message holds."""
    event = error_event(UpstreamBroken("worker a:1 closed\nin mid-answer"))
    assert event.startswith(b"data: {") and event.endswith(b"}\n\n") and event.count(b"\n") == 2
    assert json.loads(event[6:])["error"]["code"] == "upstream_broken"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BadRequest("x"), "invalid_request_error"),
        (ModelNotFound("x"), "not_found_error"),
        (Overloaded("x"), "rate_limit_error"),
        (NoWorker("x"), "overloaded_error"),
        (UpstreamBroken("x"), "api_error"),
    ],
)
def test_anthropic_shape(error: RouterError, kind: str) -> None:
    """/v1/messages has its own envelope and error names, and a named event in streams."""
    expected = {"type": "error", "error": {"type": kind, "message": "x"}}
    assert json.loads(error_body(error, None, "/v1/messages")) == expected
    assert json.loads(error_body(error, "r", "/v1/messages/count_tokens")) == {**expected, "request_id": "r"}
    name, data, *rest = error_event(error, "/v1/messages").split(b"\n")
    assert name == b"event: error" and json.loads(data.removeprefix(b"data: ")) == expected and rest == [b"", b""]


@pytest.mark.parametrize(
    ("path", "error", "expected"),
    [
        ("/generate", Overloaded("x"), {"error": "x", "error_type": "overloaded"}),
        ("/generate_stream", BadRequest("x"), {"error": "x", "error_type": "validation"}),
        ("/generate_stream", UpstreamBroken("x"), {"error": "x", "error_type": "generation"}),
        ("/v2/models/m/generate", NoWorker("x"), {"error": "x"}),
        ("/v2/health/ready", NoWorker("x"), {"error": "x"}),
    ],
)
def test_shapes_of_engines_own_routes(path: str, error: RouterError, expected: dict[str, str]) -> None:
    """TGI's clients and Triton's find the text where their engines put it, in bodies and in streams.

    Made from TGI's router/src/server.rs and Triton's src/http_server.cc; not run live against TGI."""
    assert json.loads(error_body(error, None, path)) == expected
    assert json.loads(error_body(error, "r", path)) == {**expected, "request_id": "r"}
    assert error_event(error, path) == b"data: " + error_body(error, None, path) + b"\n\n"


def test_rerank_keeps_its_envelope() -> None:
    """/v2/rerank is vLLM's, not Triton's."""
    assert "message" in json.loads(error_body(NoWorker("x"), None, "/v2/rerank"))["error"]


def test_responses_event() -> None:
    """A stream of /v1/responses ends in its own named error event."""
    name, data, *_ = error_event(UpstreamBroken("x"), "/v1/responses").split(b"\n")
    expected = {"type": "error", "code": "upstream_broken", "message": "x", "param": None}
    assert name == b"event: error" and json.loads(data.removeprefix(b"data: ")) == expected


def test_client_text_in_messages() -> None:
    """What a client sent comes back bounded and as valid UTF-8, also when it holds half a surrogate pair."""
    error = ModelNotFound("no worker serves '" + "\ud800" + "m" * 10_000)
    message = json.loads(error_body(error, "id-\udfff"))["error"]["message"]
    assert message.startswith("no worker serves '?mmm") and message.endswith("…")
    assert len(message) == MAX_MESSAGE_CHARACTERS + 1
    listed = json.loads(models_list(["\ud800", "b"]))
    assert [model["id"] for model in listed["data"]] == ["?", "b"]


def test_models_list() -> None:
    """GET /v1/models: object list, the order kept, each entry as the SDK's Model wants it."""
    assert json.loads(models_list([])) == {"object": "list", "data": []}
    model = {"id": "a/b", "object": "model", "created": 7, "owned_by": "warmline"}
    assert json.loads(models_list(iter(["a/b"]), 7)) == {"object": "list", "data": [model]}
    assert json.loads(model_body("a/b", 7)) == model
