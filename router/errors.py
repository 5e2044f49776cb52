"""Every failure a client can see: status, reason and whether another worker may be tried.

`reason` is the log field, the metric label and the `code` of the JSON answer.
"""


class RouterError(Exception):
    """Base of all errors that become an HTTP answer. `message` is shown to the client."""

    status = 500
    reason = "internal_error"
    type = "api_error"
    retryable = False
    retry_after_s: int | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class BadRequest(RouterError):
    """The client's fault; never counted against a worker."""

    status, reason, type = 400, "bad_request", "invalid_request_error"


class MalformedJson(BadRequest):
    reason = "malformed_json"


class InvalidField(BadRequest):
    """A field of the wrong type or value; `param` names it."""

    reason = "invalid_field"


class BadFraming(BadRequest):
    """HTTP that cannot be read in one way only; the connection is closed."""

    reason = "bad_framing"


class ModelNotFound(RouterError):
    status, reason, type = 404, "model_not_found", "invalid_request_error"


class PathNotFound(RouterError):
    status, reason, type = 404, "path_not_found", "invalid_request_error"


class MethodNotAllowed(RouterError):
    status, reason, type = 405, "method_not_allowed", "invalid_request_error"


class RequestTimeout(RouterError):
    """The client took too long to send its head or body; the connection is closed."""

    status, reason, type = 408, "request_timeout", "invalid_request_error"


class BodyTooLarge(RouterError):
    status, reason, type = 413, "body_too_large", "invalid_request_error"


class VersionNotSupported(BadFraming):
    status, reason = 505, "http_version_not_supported"


class HeadTooLarge(RouterError):
    status, reason, type = 431, "head_too_large", "invalid_request_error"


class Overloaded(RouterError):
    """Every worker that could serve the request is at its bound."""

    status, reason, type = 429, "overloaded", "rate_limit_error"
    retry_after_s = 1


class RouterFull(RouterError):
    """A bound of the router itself is reached: requests in flight or bytes of bodies."""

    status, reason, type = 503, "router_full", "service_unavailable_error"
    retry_after_s = 1


class NoWorker(RouterError):
    """No worker for this model is ready."""

    status, reason, type = 503, "no_worker", "service_unavailable_error"
    retry_after_s = 2


class ShuttingDown(RouterError):
    status, reason, type = 503, "shutting_down", "service_unavailable_error"
    retry_after_s = 2


class UpstreamRefused(RouterError):
    """No connection to the worker; nothing was sent."""

    status, reason, retryable = 502, "upstream_refused", True


class UpstreamClosed(RouterError):
    """The worker closed before the first byte of its answer."""

    status, reason, retryable = 502, "upstream_closed", True


class UpstreamGarbage(RouterError):
    """The worker's answer is not HTTP."""

    status, reason, retryable = 502, "upstream_garbage", True


class UpstreamTimeout(RouterError):
    """No first byte, or silence in mid-answer, for longer than the limit."""

    status, reason = 504, "upstream_timeout"


class UpstreamBroken(RouterError):
    """The worker failed after the first byte went to the client; only an error event or a close can tell."""

    status, reason = 502, "upstream_broken"


class SettingsError(Exception):
    """A knob that does not parse or is out of range; the text names knob, value and what is allowed."""
