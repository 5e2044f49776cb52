"""Heads are rebuilt by the rules of RFC 9110 §7.6: what belongs to one hop stays there, all else passes untouched."""

import pytest

from router.wire.http_head import (
    AnswerFacts,
    chunk,
    clean_request_id,
    is_event_chunk,
    local_answer,
    named_by_connection,
    origin_path,
    request_head,
    response_head,
)


def lowered(*headers: tuple[bytes, bytes]) -> list[tuple[bytes, bytes, bytes]]:
    return [(name.lower(), name, value) for name, value in headers]


def test_request_head_keeps_names_values_and_order() -> None:
    """End-to-end headers reach the worker byte for byte; hop-by-hop ones, Host and Content-Length are re-made."""
    head = request_head(
        b"POST",
        b"/v1/x?a=1",
        lowered(
            (b"Host", b"router"),
            (b"x-Odd-CASE", b" v "),
            (b"Connection", b"keep-alive"),
            (b"Content-Length", b"9"),
            (b"Expect", b"100-continue"),
            (b"Authorization", b"Bearer k"),
        ),
        host=b"worker:1",
        body_bytes=9,
        added=[(b"X-Request-Id", b"r")],
    )
    assert head == (
        b"POST /v1/x?a=1 HTTP/1.1\r\nHost: worker:1\r\nx-Odd-CASE:  v \r\nAuthorization: Bearer k\r\n"
        b"X-Request-Id: r\r\nContent-Length: 9\r\n\r\n"
    )


def test_request_without_body_gets_no_length() -> None:
    """No framing is invented for a request that had none."""
    assert b"Content-Length" not in request_head(b"GET", b"/", [], host=b"w", body_bytes=None)


def test_connection_names_are_lower_case_and_stripped() -> None:
    """Connection options name further hop-by-hop headers (RFC 9110 §7.6.1)."""
    assert named_by_connection(b"close, X-Private ,,") == {b"close", b"x-private"}


def test_response_head_drops_hop_by_hop() -> None:
    """An interim answer passes with its own headers only."""
    head = response_head(103, b"Early Hints", [(b"Link", b"</a>"), (b"Keep-Alive", b"timeout=5")], added=[(b"X", b"1")])
    assert head == b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nX: 1\r\n\r\n"


@pytest.mark.parametrize(
    ("headers", "length", "chunked", "events", "encoded", "request_id", "lines"),
    [
        ([(b"Content-Length", b"5")], 5, False, False, False, False, []),
        ([(b"Content-Length", b"x")], None, False, False, False, False, []),
        ([(b"Transfer-Encoding", b"Chunked")], None, True, False, False, False, []),
        ([(b"Transfer-Encoding", b"gzip")], None, False, False, False, False, []),
        ([(b"Content-Type", b"text/event-stream;x")], None, False, True, False, False, [b"Content-Type: text/event-stream;x"]),
        ([(b"content-type", b"application/json")], None, False, False, False, False, [b"content-type: application/json"]),
        ([(b"Content-Encoding", b"gzip")], None, False, False, True, False, [b"Content-Encoding: gzip"]),
        ([(b"Content-Encoding", b"identity")], None, False, False, False, False, [b"Content-Encoding: identity"]),
        ([(b"X-Request-ID", b"q")], None, False, False, False, True, [b"X-Request-ID: q"]),
        ([(b"Connection", b"X-Hop, close"), (b"X-Hop", b"1"), (b"X", b"2")], None, False, False, False, False, [b"X: 2"]),
        ([(b"Connection", b"keep-alive"), (b"Keep-Alive", b"timeout=5")], None, False, False, False, False, []),
    ],
)  # fmt: skip
def test_answer_facts(
    headers: list[tuple[bytes, bytes]],
    length: int | None,
    chunked: bool,
    events: bool,
    encoded: bool,
    request_id: bool,
    lines: list[bytes],
) -> None:
    """Framing and content facts come from the worker's head; the other lines pass as they are."""
    facts = AnswerFacts(headers)
    assert (
        facts.content_length,
        facts.chunked,
        facts.event_stream,
        facts.encoded,
        facts.request_id,
        b"".join(facts.lines),
    ) == (
        length,
        chunked,
        events,
        encoded,
        request_id,
        b"".join(line + b"\r\n" for line in lines),
    )


def test_local_answer_forms() -> None:
    """The router's own answers carry length, type and request id; a HEAD answer has the head of the GET answer."""
    whole = local_answer(503, b"{}", request_id=b"r1", close=True, retry_after_s=2)
    assert whole == (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
        b"X-Request-Id: r1\r\nRetry-After: 2\r\nConnection: close\r\n\r\n{}"
    )
    assert local_answer(200, b"{}", request_id=b"r", head_only=True).endswith(b"Content-Length: 2\r\nX-Request-Id: r\r\n\r\n")
    assert local_answer(299, b"", request_id=b"r").startswith(b"HTTP/1.1 299 Unknown\r\n")


def test_chunk_never_ends_a_body_by_accident() -> None:
    """An empty chunk would be the last one, so empty pieces make none."""
    assert chunk([b"abc"]) == b"3\r\nabc\r\n"
    assert chunk([b"a" * 10, b"b" * 10]) == b"14\r\n" + b"a" * 10 + b"b" * 10 + b"\r\n"
    assert chunk([b""]) == b""


@pytest.mark.parametrize(
    ("target", "path", "origin"),
    [
        (b"/v1/models?x=1", b"/v1/models", b"/v1/models?x=1"),
        (b"http://h:1/a/b?c", b"/a/b", b"/a/b?c"),
        (b"HTTPS://h", b"/", b"/"),
        (b"*", b"*", b"*"),
        (b"ftp://h/a", b"ftp://h/a", b"ftp://h/a"),
    ],
)
def test_origin_path(target: bytes, path: bytes, origin: bytes) -> None:
    """An absolute-form target is routed by its path and passed on in origin form (RFC 9112 §3.2.2)."""
    assert origin_path(target) == (path, origin)


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        (b"a-1_B.c:2", True),
        (b"", False),
        (b"x" * 128, True),
        (b"x" * 129, False),
        (b"a b", False),
        (b'a"b', False),
        (b"a=b", False),
        (b"\xff", False),
        (b"a\tb", False),
    ],
)
def test_request_ids_that_could_forge_a_log_line_are_replaced(value: bytes, accepted: bool) -> None:
    """A client's id is echoed and logged, so only visible ASCII without quotes is taken."""
    assert (clean_request_id(value) == value) is accepted


@pytest.mark.parametrize(
    ("data", "is_one"),
    [
        (b"9\r\ndata: x\n\n\r\n", True),
        (b"09\r\ndata: x\n\n\r\n", True),
        (b"1A\r\ndata: " + b"x" * 18 + b"\n\n\r\n", True),
        (b"1a\r\ndata: " + b"x" * 18 + b"\n\n\r\n", True),
        (b"8\r\ndata: x\n\n\r\n", False),
        (b"a\r\ndata: x\n\n\r\n", False),
        (b"9;q=1\r\ndata: x\n\n\r\n", False),
        (b"9 \r\ndata: x\n\n\r\n", False),
        (b"\r\ndata: x\n\n\r\n", False),
        (b"9\r\ndata: xy\n\r\n", False),
        (b"9\r\ndata: x\n\n\r\n0\r\n\r\n", False),
        (b"123456789\n\n\r\n", False),
        (b"0\r\n\r\n", False),
        (b"", False),
    ],
)
def test_is_event_chunk(data: bytes, is_one: bool) -> None:
    """Only exactly one plain chunk of whole events may pass unparsed: a wrong size or trailing bytes never do."""
    assert is_event_chunk(data) is is_one
