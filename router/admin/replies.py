"""Answers of the admin port: JSON, errors in the OpenAI envelope, an id on each, and no requests from foreign web pages."""

import logging
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import web

from router.errors import BadRequest, BodyTooLarge, MethodNotAllowed, PathNotFound, RouterError
from router.wire.openai_error import error_body

LOG = logging.getLogger("warmline.admin")
REQUEST_ID = web.RequestKey("request_id", str)
SAFE_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WorkerNotFound(RouterError):
    status, reason, type = 404, "worker_not_found", "invalid_request_error"


class DecisionNotFound(RouterError):
    status, reason, type = 404, "decision_not_found", "invalid_request_error"


class WorkerExists(RouterError):
    status, reason, type = 409, "worker_exists", "invalid_request_error"


class ForeignPage(RouterError):
    """A browser sent this on behalf of another site; the operator did not."""

    status, reason, type = 403, "foreign_page", "invalid_request_error"


def json_reply(value: Any, status: int = 200) -> web.Response:
    """Dataclasses are taken apart here: orjson reads their memory as CPython lays it out, and compiled ones differ."""
    body = orjson.dumps(value, fields_of, orjson.OPT_PASSTHROUGH_DATACLASS)
    return web.Response(body=body, status=status, content_type="application/json")


def fields_of(value: Any) -> dict[str, Any]:
    """A dataclass as a JSON object. Raises TypeError for anything else."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


@web.middleware
async def with_request_id(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Each answer carries X-Request-Id: the client's own when it is plain, otherwise a new one. Failures become JSON."""
    given = request.headers.get("X-Request-Id", "")
    request_id = given if SAFE_ID.fullmatch(given) else uuid.uuid4().hex
    request[REQUEST_ID] = request_id
    response = await guarded(request, handler, request_id)
    response.headers["X-Request-Id"] = request_id
    return response


async def guarded(request: web.Request, handler: Handler, request_id: str) -> web.StreamResponse:
    try:
        refuse_foreign_page(request)
        return await handler(request)
    except RouterError as error:
        return error_reply(error, request_id)
    except web.HTTPException as error:
        return error_reply(as_router_error(error, request.method, request.path), request_id, error.headers.get("Allow"))
    except Exception:
        LOG.exception("request %s: %s %s failed", request_id, request.method, request.path)
        return error_reply(RouterError("The router failed to answer; its log says more."), request_id)


def error_reply(error: RouterError, request_id: str, allow: str | None = None) -> web.Response:
    headers = {} if allow is None else {"Allow": allow}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    body = error_body(error, request_id)
    return web.Response(body=body, status=error.status, headers=headers, content_type="application/json")


def as_router_error(error: web.HTTPException, method: str, path: str) -> RouterError:
    """aiohttp's own refusals (no such route, body too large, …) in our envelope."""
    match error.status:
        case 404:
            return PathNotFound(f"The admin port has no {path}")
        case 405:
            return MethodNotAllowed(f"{path} does not take {method}")
        case 413:
            return BodyTooLarge("The body is larger than the admin port takes")
        case status if 400 <= status < 500:
            return BadRequest(error.reason)
    return RouterError(error.reason)


def refuse_foreign_page(request: web.Request) -> None:
    """A page open in the operator's browser can POST to a loopback port unasked: refuse what names another origin."""
    if request.method not in ("GET", "HEAD"):
        refuse_other_sites(request)


def refuse_other_sites(request: web.Request) -> None:
    """Raises ForeignPage for what a browser sent on behalf of another site, whatever the method."""
    origin = request.headers.get("Origin")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
    if foreign or request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise ForeignPage("The admin port takes no such request from pages of other sites")
