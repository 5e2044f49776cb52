"""Relayed bytes: payload unchanged, framing per client, whole events only, usage read in passing."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.types import Usage
from router.proxy.relay import KEPT_BYTES, MAX_HELD_BYTES, Relay
from router.wire.http_head import AnswerFacts, Header

EVENTS: list[Header] = [(b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")]


def relay(
    headers: list[Header], status: int = 200, *, head_only: bool = False, accepts_chunks: bool = True, keep_alive: bool = True
) -> Relay:
    return Relay(
        AnswerFacts(headers), status, b"OK", b"rid", head_only=head_only, accepts_chunks=accepts_chunks, keep_alive=keep_alive
    )


def unchunked(data: bytes) -> tuple[bytes, bool]:
    """(payload, whether the last chunk came)."""
    payload = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            return payload, True
        payload, data = payload + rest[:length], rest[length + 2 :]
    return payload, False


@pytest.mark.parametrize(
    ("headers", "options", "expected", "keeps"),
    [
        ([(b"Content-Length", b"2")], {}, b"Content-Length: 2\r\n\r\nok", True),
        ([(b"Transfer-Encoding", b"chunked")], {}, b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", True),
        ([], {}, b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", True),
        ([(b"Transfer-Encoding", b"chunked")], {"accepts_chunks": False}, b"Connection: close\r\n\r\nok", False),
        ([(b"Content-Length", b"2")], {"accepts_chunks": False}, b"Length: 2\r\nConnection: keep-alive\r\n\r\nok", True),
        ([(b"Content-Length", b"2")], {"keep_alive": False}, b"Content-Length: 2\r\nConnection: close\r\n\r\nok", False),
        ([(b"Content-Length", b"2")], {"head_only": True}, b"Content-Length: 2\r\n\r\n", True),
        ([], {"status": 204}, b"X-Request-Id: rid\r\n\r\n", True),
    ],
)  # fmt: skip
def test_framing_for_the_client(headers: list[Header], options: dict[str, int], expected: bytes, keeps: bool) -> None:
    """Sized stays sized, the rest is chunked for HTTP/1.1 and ended by closing for HTTP/1.0 (RFC 9112 §6)."""
    made = relay(headers, **options)  # type: ignore[arg-type]
    output = made.pass_on([b"ok"], True)
    assert output.endswith(expected) and made.keep_alive is keeps
    assert made.bytes_out == len(output)


def test_a_workers_own_request_id_is_kept() -> None:
    """The engine's id wins over the router's in the answer: nothing of the engine's is overwritten."""
    head = relay([(b"x-request-id", b"theirs"), (b"Content-Length", b"0")]).pass_on([], True)
    assert b"theirs" in head and b"rid" not in head


@given(st.data())
def test_event_streams_pass_whole_events_and_every_byte(data: st.DataObject) -> None:
    """However reads cut the stream, each write ends on an event boundary and all bytes arrive in order."""
    endings = st.sampled_from([b"\n\n", b"\r\n\r\n"])
    events = [b"data: x%d" % i + data.draw(endings) for i in range(data.draw(st.integers(1, 6)))]
    stream = b"".join(events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reads = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    made = relay(EVENTS)
    assert made.pass_on([], False) == b"", "the head waits for the first event"
    received = b""
    for read in reads:
        received += made.pass_on([read], False)
        payload, _ = unchunked(received.partition(b"\r\n\r\n")[2])
        assert payload == b"" or payload.endswith((b"\n\n", b"\r\n\r\n"))
    received += made.pass_on([], True)
    assert unchunked(received.partition(b"\r\n\r\n")[2]) == (stream, True)


def test_a_stream_that_ends_without_a_blank_line_is_passed_whole() -> None:
    """What was held back is given out at the end: no byte of an engine is lost."""
    made = relay(EVENTS)
    made.pass_on([b"data: a\n\ndata: ra"], False)
    assert unchunked(made.pass_on([b"w"], True)) == (b"data: raw", True)
    made = relay(EVENTS)
    assert made.pass_on([b"data: raw"], False) == b""
    assert unchunked(made.pass_on([], True).partition(b"\r\n\r\n")[2]) == (b"data: raw", True)


def test_a_huge_event_is_not_held_for_ever() -> None:
    """Holding back is bounded: beyond the bound an event goes out in parts."""
    made = relay(EVENTS)
    made.pass_on([b"data: first\n\n"], False)
    assert made.pass_on([b"d" * MAX_HELD_BYTES], False) == b""
    assert unchunked(made.pass_on([b"d"], False))[0] == b"d" * (MAX_HELD_BYTES + 1)


def test_first_token_is_found_once_and_only_in_content() -> None:
    """The role chunk is not a token; after the first token nothing more is searched."""
    made = relay(EVENTS)
    made.pass_on([b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'], False)
    assert not made.found_first_token
    made.pass_on([b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'], False)
    assert made.found_first_token
    made.found_first_token = False
    made.pass_on([b'data: {"choices":[{"delta":{"content":"b"}}]}\n\n'], False)
    assert not made.found_first_token


USAGE = b'"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}'


def test_usage_is_read_from_the_end_of_any_answer_in_bounded_memory() -> None:
    """Usage is found behind a body of many pieces and megabytes; only its last bytes are kept."""
    made = relay([(b"Content-Type", b"application/json"), (b"Transfer-Encoding", b"chunked")])
    for _ in range(100):
        made.pass_on([b"x" * 10_000], False)
    made.pass_on([USAGE], True)
    assert made.usage() == Usage(9, 8, 2)
    assert made._tail_bytes <= KEPT_BYTES


def test_no_usage_from_errors_or_compressed_answers() -> None:
    """Only plain 200 answers tell of tokens."""
    failed = relay([(b"Content-Length", b"%d" % len(USAGE))], 500)
    failed.pass_on([USAGE], True)
    assert failed.usage() is None
    packed = zlib.compress(USAGE)
    encoded = relay([(b"Content-Encoding", b"deflate"), (b"Content-Length", b"%d" % len(packed))])
    assert encoded.pass_on([packed], True).endswith(packed)
    assert encoded.usage() is None


def test_a_broken_stream_ends_in_an_error_event() -> None:
    """A half event is dropped, the error event follows a whole one, and the framing is complete (user-pain P25)."""
    made = relay(EVENTS)
    made.pass_on([b"data: a\n\ndata: hal"], False)
    ending = made.broken(b'data: {"error":{}}\n\n')
    assert ending is not None and unchunked(ending) == (b'data: {"error":{}}\n\n', True)
    assert not made.keep_alive
    old = relay(EVENTS, accepts_chunks=False)
    old.pass_on([b"data: a\n\n"], False)
    assert old.broken(b"E") == b"E"


@pytest.mark.parametrize(
    "headers",
    [
        [(b"Content-Length", b"100")],
        [(b"Transfer-Encoding", b"chunked")],
        [(b"Content-Type", b"text/event-stream"), (b"Content-Length", b"100")],
        [(b"Content-Type", b"text/event-stream"), (b"Content-Encoding", b"gzip")],
    ],
)
def test_other_broken_answers_can_only_be_cut(headers: list[Header]) -> None:
    """Where no error event can be put in, the connection must be cut so that the client sees it (never a fake end)."""
    made = relay(headers)
    made.pass_on([b"half"], False)
    assert made.broken(b"event") is None


def test_whole_chunks_pass_as_they_are() -> None:
    """A chunk of whole events needs no work once the head is out and nothing is held, for clients that take chunks."""
    made = relay(EVENTS)
    token = b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN)
    made.pass_on([], False)
    assert not made.takes_chunk(token)
    before = len(made.pass_on([b"data: {}\n\n"], False))
    assert made.takes_chunk(token) and made.found_first_token
    assert made.bytes_out == before + len(token)
    made.pass_on([b"data: ha"], False)
    assert not made.takes_chunk(token)
    old = relay(EVENTS, accepts_chunks=False)
    old.pass_on([b"data: {}\n\n"], False)
    assert not old.takes_chunk(token)
    plain = relay([(b"Transfer-Encoding", b"chunked")])
    plain.pass_on([], False)
    assert not plain.takes_chunk(token)


TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
