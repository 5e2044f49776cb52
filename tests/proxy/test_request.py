"""Rules of a request's head that llhttp leaves to its user."""

import pytest

from router.errors import RouterError
from router.proxy.request import IncomingRequest, check_head
from tests.proxy.rig import lowered

HOST = (b"Host", b"a")


@pytest.mark.parametrize(
    ("headers", "version", "reason"),
    [
        ([HOST], "1.1", None),
        ([], "1.0", None),
        ([], "1.1", "bad_framing"),
        ([HOST, HOST], "1.1", "bad_framing"),
        ([HOST, HOST], "1.0", "bad_framing"),
        ([HOST], "2.0", "http_version_not_supported"),
        ([HOST], "0.9", "http_version_not_supported"),
        ([HOST, (b"Content-Length", b"10")], "1.1", None),
        ([HOST, (b"Content-Length", b"11")], "1.1", "body_too_large"),
        ([HOST, (b"Transfer-Encoding", b"Chunked ")], "1.1", None),
        ([HOST, (b"Transfer-Encoding", b"gzip, chunked")], "1.1", "bad_framing"),
        ([HOST, (b"Transfer-Encoding", b"chunked")], "1.0", "bad_framing"),
    ],
)
def test_check_head(headers: list[tuple[bytes, bytes]], version: str, reason: str | None) -> None:
    """One Host, a spoken version, no coding but chunked, no body above the bound."""
    request = IncomingRequest(0.0)
    request.headers = lowered(*headers)
    error: RouterError | None = check_head(request, version, 1000, 10)
    assert (error.reason if error else None) == reason


def test_head_size_counts_all_headers() -> None:
    """The sum of the headers is bounded, however many there are."""
    request = IncomingRequest(0.0)
    request.headers = lowered(HOST)
    request.header_bytes = 1001
    error = check_head(request, "1.1", 1000, 10)
    assert error is not None and error.status == 431


@pytest.mark.parametrize(
    ("value", "version", "expected"),
    [(b"100-continue", "1.1", True), (b"100-Continue", "1.1", True), (b"100-continue", "1.0", False), (b"x", "1.1", False)],
)
def test_expect_continue(value: bytes, version: str, expected: bool) -> None:
    """Only HTTP/1.1 clients may be told to continue (RFC 9110 §10.1.1)."""
    request = IncomingRequest(0.0)
    request.headers = lowered(HOST, (b"Expect", value))
    assert check_head(request, version, 1000, 10) is None
    assert request.expects_continue is expected
    assert request.header(b"expect") == value and request.header(b"none") is None


def test_leading_body() -> None:
    """Small bodies are joined whole, of large ones the first bytes above the limit and the last ones are."""
    request = IncomingRequest(0.0)
    assert request.leading_body(10) == b""
    for piece in (b"abc", b"defg", b"hij", b"klm"):
        request.body.append(piece)
        request.body_bytes += len(piece)
    assert request.leading_body(100) == b"abcdefghijklm"
    assert request.leading_body(6) == b"abcdefgklm"
    request.body = [b"x" * 50]
    assert request.leading_body(6) == b"x" * 50
