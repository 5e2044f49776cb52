"""Requests from bytes: cut anywhere, hostile, and nothing counted that is not given back."""

import random
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.stats import Stats
from router.proxy.reader import InputEnded, RequestReader
from router.settings import LimitSettings
from tests.proxy.rig import chat, chunks, post

LIMITS = LimitSettings(max_header_bytes=2000, max_body_bytes=5000)
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = (
    post(chat("one"))
    + CHUNKED + chunks(b"abc", b"d" * 300) + b"0\r\nX-Trailer: t\r\n\r\n"
    + b"GET /v1/models HTTP/1.1\r\nHost: r\r\n\r\n"
    + post(b"", "/tokenize")
    + post(chat("last"))
)  # fmt: skip


def reader() -> tuple[RequestReader, Stats]:
    stats = Stats()
    return RequestReader(LIMITS, stats, time.monotonic), stats


def summary(made: RequestReader) -> list[tuple[bytes, bytes, bytes]]:
    return [(r.method, r.target, b"".join(r.body)) for r in made.waiting]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_bytes_cut_anywhere_give_the_same_requests(cuts: list[int]) -> None:
    """However reads fall, the same requests come out in the same order, and nothing is wrong behind them."""
    whole, _ = reader()
    whole.feed(STREAM)
    made, stats = reader()
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, end in pairwise(edges):
        made.feed(STREAM[start:end])
    assert made.fatal is None and made.incoming is None
    assert summary(made) == summary(whole) and len(made.waiting) == 5
    assert stats.buffered_bytes == sum(r.body_bytes for r in made.waiting)
    made.close()
    assert stats.buffered_bytes == 0


@given(st.data())
def test_mutated_bytes_never_escape_and_always_settle(data: st.DataObject) -> None:
    """Changed, dropped and doubled bytes end in requests or an error, never in an exception or a leaked count."""
    seed = data.draw(st.integers(0, 2**32))
    rng = random.Random(seed)
    stream = bytearray(STREAM * 2)
    for _ in range(rng.randrange(1, 8)):
        at = rng.randrange(len(stream))
        stream[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
    made, stats = reader()
    while stream:
        size = rng.randrange(1, 400)
        made.feed(bytes(stream[:size]))
        del stream[:size]
    held = sum(r.body_bytes for r in made.waiting) + (made.incoming.body_bytes if made.incoming else 0)
    assert stats.buffered_bytes == held
    made.close()
    assert stats.buffered_bytes == 0


def test_nothing_is_read_behind_an_error() -> None:
    """A request that begins in the read in which another failed does not take its place, and its bytes are given back."""
    made, stats = reader()
    made.feed(CHUNKED + chunks(b"x" * 4000, b"y" * 2000) + b"0\r\n\r\n" + post(chat()))
    assert made.fatal is not None and made.fatal.reason == "body_too_large"
    assert not made.waiting
    made.feed(post(chat()))
    assert not made.waiting
    made.close()
    assert stats.buffered_bytes == 0


@pytest.mark.parametrize(
    ("part", "count", "reason"),
    [
        (b"X: " + b"a" * 1000, 1, None),
        (b"X: " + b"a" * 3000, 1, "head_too_large"),
        (b"X: y\r\n", 600, "head_too_large"),
    ],
)
def test_heads_are_bounded_in_one_read_or_many(part: bytes, count: int, reason: str | None) -> None:
    """One endless header and endless headers are refused at max_header_bytes, whether they come at once or byte by byte."""
    for step in (1, 10_000):
        made, _ = reader()
        data = b"GET / HTTP/1.1\r\nHost: r\r\n" + part * count
        for start in range(0, len(data), step):
            made.feed(data[start : start + step])
        assert (made.fatal.reason if made.fatal else None) == reason


@pytest.mark.parametrize("extra", [b"0\r\nX: " + b"t" * 100_000, b"3;" + b"e" * 100_000])
def test_trailers_and_chunk_extensions_are_bounded(extra: bytes) -> None:
    """Bytes that are no body cannot pile up behind a small one."""
    made, _ = reader()
    data = CHUNKED + chunks(b"abc") + extra
    for start in range(0, len(data), 1000):
        made.feed(data[start : start + 1000])
    assert made.fatal is not None and made.fatal.status == 400


def test_a_body_byte_by_byte_is_no_overhead() -> None:
    """The smallest chunks HTTP allows are fine."""
    made, _ = reader()
    for byte in CHUNKED + chunks(*[b"x"] * 4000) + b"0\r\n\r\n":
        made.feed(bytes([byte]))
    assert made.fatal is None and len(made.waiting) == 1


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_an_offer_to_upgrade_does_not_lose_the_body(chunked: bool, step: int) -> None:
    """A client that offers h2c with a body (RFC 9110 §7.8) has its request read whole, and the connection ends behind it."""
    body = chat("hello")
    head = b"POST /tokenize HTTP/1.1\r\nHost: r\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    if chunked:
        data = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks(body) + b"0\r\n\r\n"
    else:
        data = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    made, stats = reader()
    for start in range(0, len(data), step):
        made.feed(data[start : start + step])
    assert made.fatal is None
    assert summary(made) == [(b"POST", b"/tokenize", body)]
    assert stats.buffered_bytes == len(body)


def test_an_offer_to_upgrade_without_a_body() -> None:
    """The request is whole; what follows is not read as HTTP."""
    made, _ = reader()
    made.feed(b"GET /v1/models HTTP/1.1\r\nHost: r\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nPRI * HTTP/2.0")
    assert len(made.waiting) == 1 and not made.waiting[0].keep_alive
    assert isinstance(made.fatal, InputEnded)
