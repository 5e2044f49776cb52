"""router.admin.replies: ids, JSON errors of every kind, and pages of other sites."""

import logging

import pytest
from aiohttp import web

from router.admin.replies import as_router_error, error_reply
from router.errors import NoWorker
from tests.admin.stage import Stage, admin_port


async def test_request_ids() -> None:
    """A plain id of the client's comes back; any other, or none, is replaced by a new one."""
    async with admin_port(Stage()) as client:
        kept = await client.ask("GET", "/healthz", headers={"X-Request-Id": "abc-1.2:3_4"})
        assert kept.headers["X-Request-Id"] == "abc-1.2:3_4"
        for odd in ("", "a b", "<script>", "x" * 129):
            answer = await client.ask("GET", "/healthz", headers={"X-Request-Id": odd})
            assert len(answer.headers["X-Request-Id"]) == 32 and answer.headers["X-Request-Id"] != odd


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "path_not_found"),
        ("GET", "/v1/models", 404, "path_not_found"),
        ("GET", "/workers/", 404, "path_not_found"),
        ("POST", "/metrics", 405, "method_not_allowed"),
        ("DELETE", "/workers", 405, "method_not_allowed"),
    ],
)
async def test_unknown_routes(method: str, path: str, status: int, code: str) -> None:
    """What the port does not have is a JSON error in the OpenAI envelope, with the methods it does take."""
    async with admin_port(Stage()) as client:
        answer = await client.ask(method, path)
        assert (answer.status, answer.body["error"]["code"]) == (status, code)
        assert ("Allow" in answer.headers) is (status == 405)


async def test_large_body() -> None:
    """A body beyond the port's limit is 413."""
    async with admin_port(Stage()) as client:
        answer = await client.post("/workers", b"x" * 100_000)
        assert (answer.status, answer.body["error"]["code"]) == (413, "body_too_large")


class Defective(Stage):
    def closing(self) -> bool:
        raise ZeroDivisionError("s3cret detail")


async def test_defect_is_a_plain_500(caplog: pytest.LogCaptureFixture) -> None:
    """A failure nobody thought of is 500 JSON without its details; the log has the trace and the request's id."""
    async with admin_port(Defective()) as client:
        with caplog.at_level(logging.ERROR, "warmline.admin"):
            answer = await client.get("/readyz")
        assert (answer.status, answer.body["error"]["code"]) == (500, "internal_error")
        assert "s3cret" not in answer.text
        assert answer.headers["X-Request-Id"] in caplog.text and "ZeroDivisionError" in caplog.text
        assert (await client.get("/healthz")).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_pages_of_other_sites_change_nothing(headers: dict[str, str]) -> None:
    """A browser sends another page's POST to loopback without asking anybody: it is refused. Reading is not."""
    stage = Stage()
    worker = stage.ready()
    async with admin_port(stage) as client:
        for method, path in (("POST", f"/workers/{worker}/drain"), ("DELETE", f"/workers/{worker}"), ("POST", "/workers")):
            answer = await client.ask(method, path, headers=headers)
            assert (answer.status, answer.body["error"]["code"]) == (403, "foreign_page")
        assert stage.workers()[0].lifecycle == "ready"
        assert (await client.ask("GET", "/workers", headers=headers)).status == 200


async def test_own_page_may_change() -> None:
    """A page that the port itself serves may send changes."""
    stage = Stage()
    worker = stage.ready()
    async with admin_port(stage) as client:
        headers = {"Origin": "http://router.local:1", "Host": "router.local:1", "Sec-Fetch-Site": "same-origin"}
        answer = await client.ask("POST", f"/workers/{worker}/drain", headers=headers)
        assert (answer.status, answer.body["lifecycle"]) == (200, "draining")


def test_errors_keep_retry_after() -> None:
    """An error that says when to come again says so in the header too."""
    assert error_reply(NoWorker("none"), "r").headers["Retry-After"] == "2"


def test_other_refusals_of_the_server() -> None:
    """Any further refusal by aiohttp stays a refusal of the client; a failure of the server is a 500."""
    assert as_router_error(web.HTTPUpgradeRequired(), "GET", "/x").status == 400
    assert as_router_error(web.HTTPInsufficientStorage(), "GET", "/x").status == 500
