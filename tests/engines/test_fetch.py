"""engines.fetch: one bounded GET, whatever stands on the other side."""

import asyncio
import socket

import pytest

from engines.fetch import Answer, BadAnswer, EngineHttp, NoAnswer, Refused, reason_of
from router.settings import EngineSpec
from tests.engines.fake_engine import HANGS, Connected, FakeEngine, Reply, as_json


async def get_from_raw(answer: bytes, *, close: bool = True, timeout_s: float = 0.3) -> Answer:
    """GET from a server that sends the given bytes and then closes, or says no more."""
    silent = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        if not close:
            await silent.wait()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        return await EngineHttp(EngineSpec("openai", f"http://127.0.0.1:{port}"), timeout_s).get("/x", 1000)
    finally:
        silent.set()
        server.close()
        await server.wait_closed()


async def test_any_status_is_an_answer() -> None:
    """Status, headers and body come back as they are; redirects are not followed."""
    routes = {"/a": Reply(b"no", 503, {"Retry-After": "1"}), "/b": Reply(status=302, headers={"Location": "/a"})}
    async with FakeEngine(routes) as engine, Connected(engine) as http:
        refused = await http.get("/a")
        assert (refused.status, refused.body, refused.headers["retry-after"], refused.ok) == (503, b"no", "1", False)
        assert (await http.get("/b")).status == 302
        assert (await http.get("/c")).unknown_route
        assert engine.asked == ["/a", "/b", "/c"]


async def test_key_is_sent_only_when_there_is_one() -> None:
    """The engine's own key goes to it as a bearer token, and without one no Authorization header is made up."""
    async with FakeEngine({}) as engine:
        async with Connected(engine, api_key="s3cret") as http:
            await http.get("/x")
        async with Connected(engine) as http:
            await http.get("/x")
        assert [headers.get("Authorization") for headers in engine.headers] == ["Bearer s3cret", None]


async def test_page_of_metrics() -> None:
    """The page is at /metrics of the engine, or where `metrics=` says: then the engine's key stays at home."""
    async with FakeEngine({"/metrics": Reply(b"a 1")}) as engine, FakeEngine({"/m?x=1": Reply(b"b 1")}) as other:
        async with Connected(engine, api_key="s3cret") as http:
            assert (await http.page()).body == b"a 1"
            assert (await http.page("/p")).unknown_route
        async with Connected(engine, api_key="s3cret", metrics=other.url + "/m?x=1") as http:
            assert (await http.page("/p")).body == b"b 1"
        assert "Authorization" in engine.headers[0] and "Authorization" not in other.headers[0]


async def test_path_prefix_of_the_url_is_kept() -> None:
    """An engine behind a prefix is asked under that prefix."""
    async with FakeEngine({"/llm/a/x": as_json(1)}) as engine:
        http = EngineHttp(EngineSpec("openai", engine.url + "/llm/a"), 2.0)
        assert (await http.get("/x")).json() == 1
        http.close()


async def test_nothing_listening_is_refused() -> None:
    """A closed port is Refused, with the system's words."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        http = EngineHttp(EngineSpec("openai", f"http://127.0.0.1:{taken.getsockname()[1]}"), 2.0)
        with pytest.raises(Refused, match=r"^no connection: connection refused$"):
            await http.get("/x")


async def test_silence_ends_at_the_deadline() -> None:
    """No answer within the deadline is NoAnswer, whether nothing came or half of it."""
    async with FakeEngine({"/x": HANGS}) as engine, Connected(engine, timeout_s=0.1) as http:
        with pytest.raises(NoAnswer, match=r"^/x: no answer within 0\.1 s$"):
            await http.get("/x")
    with pytest.raises(NoAnswer, match="no answer within"):
        await get_from_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", close=False, timeout_s=0.1)


BROKEN = [
    (b"", NoAnswer),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", NoAnswer),
    (b"SSH-2.0-OpenSSH_9.2\r\n", BadAnswer),
    (b"\x00\xff\x00\xff\r\n\r\n", BadAnswer),
    (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", BadAnswer),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", (BadAnswer, NoAnswer)),
    (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope", (BadAnswer, NoAnswer)),
]


@pytest.mark.parametrize(("answer", "error"), BROKEN)
async def test_broken_answers(answer: bytes, error: type[Exception] | tuple[type[Exception], ...]) -> None:
    """Whatever is not a whole HTTP answer is one of our errors, never a library's."""
    with pytest.raises(error):
        await get_from_raw(answer)


async def test_large_body_is_cut_off() -> None:
    """Reading stops at the limit, announced or not: memory is bounded whatever the engine sends."""
    for framing in (b"Content-Length: 100000000\r\n", b"Connection: close\r\n"):
        with pytest.raises(BadAnswer, match=r"^/x answered more than 1000 bytes$"):
            await get_from_raw(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n" + b"x" * 5000, close=False)


@pytest.mark.parametrize("body", [b"<html>", b"", b'{"a":', b"\xff\xfe", b"[" * 5000])
def test_body_that_is_not_json(body: bytes) -> None:
    """HTML, nothing, cut, not UTF-8 or endlessly nested: BadAnswer that names route and status."""
    with pytest.raises(BadAnswer, match=r"^/p answered 200 with a body that is not JSON$"):
        Answer("/p", 200, {}, body).json()


def test_reasons_of_refusal() -> None:
    """A number has the system's words; a name that does not resolve says so."""
    assert reason_of(ConnectionRefusedError(111, "Connect call failed ('10.0.0.1', 1)")) == "connection refused"
    assert reason_of(socket.gaierror(-2, "Name or service not known")) == "no such host"
    assert reason_of(UnicodeError("label too long")) == "no such host"
    assert reason_of(OSError("odd")) == "refused"


async def test_a_body_is_sent_as_json() -> None:
    """A question with a body carries its type, the engine's key and further headers, and its answer is bounded like any
    other."""
    async with FakeEngine({"/ask": as_json([1, 2])}) as engine, Connected(engine, api_key="s3cret") as http:
        assert (await http.post("/ask", b'{"a": 1}', {"X-Rank": "1"})).json() == [1, 2]
        assert engine.bodies == [b'{"a": 1}']
        sent = engine.headers[0]
        assert (sent["Content-Type"], sent["Authorization"]) == ("application/json", "Bearer s3cret")
        assert sent["X-Rank"] == "1"
        with pytest.raises(BadAnswer):
            await http.post("/ask", b"{}", limit_bytes=3)
