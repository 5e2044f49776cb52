"""Errors and model lists as the bytes that OpenAI (and Anthropic) clients expect: values in, bytes out."""

from collections.abc import Iterable
from typing import Any

import orjson

from router.errors import RouterError

MAX_MESSAGE_CHARACTERS = 2000  # a client's own text comes back in messages: bound what is echoed
OWNER = "warmline"
ANTHROPIC_PATHS = ("/v1/messages",)
RESPONSES_PATHS = ("/v1/responses",)
TGI_PATHS = ("/generate",)  # SGLang's too: its clients look at the status
TRITON_PATHS = ("/v2/models/", "/v2/health/")
NATIVE_PATHS = (*TGI_PATHS, *TRITON_PATHS)
TGI_TYPES = {400: "validation", 422: "validation", 429: "overloaded", 503: "unhealthy"}

ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: RouterError, request_id: str | None = None, path: str = "") -> bytes:
    """The JSON answer of an error in the form of the path's API family, with the id of the request beside it.

    Anthropic paths: `{"type": "error", "error": {type, message}}`; all others the OpenAI description's
    `{"error": {message, type, param, code}}`, but for engines' own generate routes: there `error` is the text, as those
    engines have it.
    """
    if path.startswith(ANTHROPIC_PATHS):
        return _dump(_with_id({"type": "error", "error": _anthropic_error(error)}, request_id))
    if path.startswith(NATIVE_PATHS):
        return _dump(_with_id(_native_error(error, path), request_id))
    return _dump(_with_id({"error": _openai_error(error)}, request_id))


def error_event(error: RouterError, path: str = "") -> bytes:
    """The server-sent event that ends a stream that failed after its first byte, in the form of the path's API family.

    Chat and text completions and the engines' own routes have unnamed events; Anthropic messages and OpenAI responses
    name theirs `error`.
    """
    if path.startswith(ANTHROPIC_PATHS):
        return b"event: error\ndata: " + _dump({"type": "error", "error": _anthropic_error(error)}) + b"\n\n"
    if path.startswith(RESPONSES_PATHS):
        fields = {"type": "error", "code": error.reason, "message": _bounded(error.message), "param": error.param}
        return b"event: error\ndata: " + _dump(fields) + b"\n\n"
    if path.startswith(NATIVE_PATHS):
        return b"data: " + _dump(_native_error(error, path)) + b"\n\n"
    return b"data: " + _dump({"error": _openai_error(error)}) + b"\n\n"


def models_list(ids: Iterable[str], created_s: int = 0) -> bytes:
    """The answer to GET /v1/models, in the order given. `created_s` is in seconds since the epoch."""
    return _dump({"object": "list", "data": [_model(name, created_s) for name in ids]})


def model_body(name: str, created_s: int = 0) -> bytes:
    """The answer to GET /v1/models/{name}."""
    return _dump(_model(name, created_s))


def _model(name: str, created_s: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created_s, "owned_by": OWNER}


def _openai_error(error: RouterError) -> dict[str, Any]:
    return {"message": _bounded(error.message), "type": error.type, "param": error.param, "code": error.reason}


def _anthropic_error(error: RouterError) -> dict[str, Any]:
    return {"type": ANTHROPIC_TYPES.get(error.status, "api_error"), "message": _bounded(error.message)}


def _native_error(error: RouterError, path: str) -> dict[str, Any]:
    """Triton's `{"error": text}`; TGI's has a type beside it."""
    body: dict[str, Any] = {"error": _bounded(error.message)}
    if path.startswith(TGI_PATHS):
        body["error_type"] = TGI_TYPES.get(error.status, "generation")
    return body


def _with_id(body: dict[str, Any], request_id: str | None) -> dict[str, Any]:
    return body if request_id is None else {**body, "request_id": request_id}


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else text[:MAX_MESSAGE_CHARACTERS] + "…"


def _dump(value: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # a lone surrogate, e.g. from "\ud800" in a client's JSON: it has no UTF-8
        return orjson.dumps(_encodable(value))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {key: _encodable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_encodable(inner) for inner in value]
    return value
