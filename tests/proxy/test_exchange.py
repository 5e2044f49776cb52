"""The life of a request on real sockets: bytes, retries, failures in every phase, and nothing left behind."""

import asyncio
import gzip
import hashlib
import os
import random

import orjson
import pytest

from router.core.types import Lifecycle
from tests.proxy.rig import (
    STREAM_HEAD,
    EngineRequest,
    answer_ok,
    chat,
    chunks,
    error_of,
    event,
    joined_chunks,
    post,
    rig,
    sized,
    split_answer,
)


async def echo(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(sized(request.body))


@pytest.mark.parametrize("size", [0, 1, 70_000, 20_000_000])
@pytest.mark.parametrize("chunked", [False, True])
async def test_request_and_answer_bodies_are_byte_identical(size: int, chunked: bool) -> None:
    """The engine reads what the client wrote and the client what the engine wrote, sized or chunked (hash compared)."""
    content = random.Random(size).randbytes(size)
    digest = hashlib.sha256(content).hexdigest()
    seen: list[str] = []

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(hashlib.sha256(request.body).hexdigest())
        if chunked:
            pieces = [content[i : i + 65_536] for i in range(0, size, 65_536)]
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks(*pieces) + b"0\r\n\r\n")
        else:
            writer.write(sized(content))

    async with rig(script, max_body_bytes=32_000_000) as made:
        path = b"POST /tokenize HTTP/1.1\r\nHost: r\r\nConnection: close\r\n"
        if chunked:
            pieces = [content[i : i + 50_000] for i in range(0, size, 50_000)]
            data = path + b"Transfer-Encoding: chunked\r\n\r\n" + chunks(*pieces) + b"0\r\n\r\n"
        else:
            data = path + b"Content-Length: %d\r\n\r\n" % size + content
        _, _, body = split_answer(await made.send(data))
        assert seen == [digest]
        assert hashlib.sha256(body).hexdigest() == digest
        assert made.nothing_left()


async def test_unknown_json_fields_and_odd_formatting_reach_the_engine() -> None:
    """The body is forwarded, not re-made: spacing, key order, escapes, big numbers and unknown fields survive (P23)."""
    body = (
        b'{ "model":"m",\n "x_unknown": {"a":[1e400, 123456789012345678901234567890]},'
        b' "messages":[{"role":"user","content":"\\u00e9"}]}'
    )
    async with rig(echo) as made:
        assert split_answer(await made.post(body))[2] == body
        assert made.engines[0].requests[0].body == body


async def test_gzip_answers_pass_untouched() -> None:
    """An encoded body keeps its encoding header and its bytes (P27)."""
    packed = gzip.compress(os.urandom(1000) * 20)

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sized(packed, "Content-Encoding: gzip", "Content-Type: application/json"))

    async with rig(script) as made:
        _, headers, body = split_answer(await made.post(chat(), "/v1/chat/completions", "Accept-Encoding: gzip"))
        assert body == packed and headers["content-encoding"] == "gzip"
        assert made.engines[0].requests[0].header("accept-encoding") == "gzip"


async def test_headers_reach_the_engine_and_come_back() -> None:
    """Only hop-by-hop headers are dropped; Host names the engine; the request id is the same everywhere."""

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sized(b"{}", "X-Engine: 1", "X-engine: 2", "Keep-Alive: timeout=5", "Server: uvicorn"))

    async with rig(script) as made:
        sent = ("Authorization: Bearer k", "X-Custom: a, b", "X-Request-Id: my-id", "Keep-Alive: 3", "TE: trailers", "X-Hop: 1")
        answer = await made.send(post(chat(), "/v1/chat/completions?q=1", *sent, "Connection: close, X-Hop"))
        request = made.engines[0].requests[0]
        assert request.target == "/v1/chat/completions?q=1"
        assert request.names == ["Host", "Authorization", "X-Custom", "X-Request-Id", "Content-Length"]
        assert request.header("host") == made.engines[0].worker_id and request.header("x-request-id") == "my-id"
        assert b"X-Engine: 1\r\nX-engine: 2\r\n" in answer and b"Server: uvicorn" in answer
        assert b"X-Request-Id: my-id" in answer and b"timeout=5" not in answer


async def test_an_unsafe_request_id_is_replaced() -> None:
    """An id that could break a log line is not passed on."""
    async with rig() as made:
        answer = await made.post(chat(), "/v1/chat/completions", 'X-Request-Id: a"b c')
        given = split_answer(answer)[1]["x-request-id"]
        assert given.startswith("wl-") and made.engines[0].requests[0].header("x-request-id") == given


async def test_head_requests() -> None:
    """HEAD: the head of the answer, no body, and the connection goes on."""

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if request.method == "HEAD":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
        else:
            await answer_ok(request, reader, writer)

    async with rig(script) as made:
        head = b"HEAD /v1/completions HTTP/1.1\r\nHost: r\r\n\r\n"
        answer = await made.send(head + post(chat(), "/v1/chat/completions", "Connection: close"))
        first, _, rest = answer.partition(b"\r\n\r\n")
        assert b"Content-Length: 500" in first and rest.startswith(b"HTTP/1.1 200 OK")
        assert made.nothing_left()


async def test_interim_answers_pass() -> None:
    """103 reaches an HTTP/1.1 client before the final answer; 100 does not."""

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + sized(b"ok"))

    async with rig(script) as made:
        answer = await made.post(chat())
        assert answer.startswith(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK")


async def test_bodyless_statuses_and_closing_engines() -> None:
    """204 has no body; a body ended by closing is passed whole and its connection is not used again."""

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"none" in request.body:
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\npart one, ")
        await writer.drain()
        writer.write(b"part two")
        await writer.drain()
        writer.close()

    async with rig(script) as made:
        assert (await made.post(chat("none"))).startswith(b"HTTP/1.1 204 No Content\r\n")
        assert split_answer(await made.post(chat()))[2] == b"part one, part two"
        assert made.engines[0].connections == 1 and made.nothing_left()


async def test_streams_pass_event_by_event() -> None:
    """Each event reaches the client when the engine sends it, not at the end."""
    gate = asyncio.Event()

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + chunks(event("one")))
        await writer.drain()
        await gate.wait()
        usage = {
            "choices": [],
            "usage": {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}},
        }
        writer.write(chunks(event("two"), b"data: " + orjson.dumps(usage) + b"\n\n", b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with rig(script) as made:
        reader, writer = await made.connect()
        writer.write(post(chat(stream=True), "/v1/chat/completions", "Connection: close"))
        first = await asyncio.wait_for(reader.readuntil(event("one")), 5)
        assert b"text/event-stream" in first
        gate.set()
        rest = await asyncio.wait_for(reader.read(), 5)
        assert joined_chunks(rest[2:]).endswith(b"data: [DONE]\n\n")
        entry = made.log.entries[-1]
        assert (entry.actual_cached_tokens, entry.outcome, entry.worker) == (3, "ok", made.engines[0].worker_id)
        assert entry.ttft_s is not None and entry.ttft_s <= entry.duration_s
        measured = made.plane.stats.ttft_s[made.engines[0].worker_id]
        assert sum(measured.counts) == 1 and measured.sum == entry.ttft_s
        assert made.nothing_left()


@pytest.mark.parametrize("cut", [1, 3, 7, 40, 61, 62, 63, 64, 65, 10_000])
async def test_streams_are_whole_however_they_are_cut(cut: int) -> None:
    """Chunks and reads that fall apart anywhere give the same events; parsed and unparsed chunks mix freely."""
    events = [event(f"token {i} ") for i in range(12)]
    stream = STREAM_HEAD + chunks(*events) + chunks(b"".join(events[:3]), b"data: [DO", b"NE]\n\n") + b"0\r\n\r\n"

    async def script(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for start in range(0, len(stream), cut):
            writer.write(stream[start : start + cut])
            await writer.drain()
            await asyncio.sleep(0)

    async with rig(script) as made:
        for _ in range(2):
            body = split_answer(await made.post(chat(stream=True)))[2]
            assert body == b"".join(events) + b"".join(events[:3]) + b"data: [DONE]\n\n"
        assert made.nothing_left()


@pytest.mark.parametrize(
    ("body", "path", "status", "code"),
    [
        (b"{", "/v1/chat/completions", 400, "malformed_json"),
        (b"", "/v1/chat/completions", 400, "malformed_json"),
        (b"[1]", "/v1/chat/completions", 400, "invalid_field"),
        (b"\xff\xfe", "/v1/chat/completions", 400, "malformed_json"),
        (b"[" * 100_000, "/v1/chat/completions", 400, "malformed_json"),
        (b'{"model":"m"}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"model":"m","messages":[]}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"model":"m","messages":"hi"}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"model":"m","messages":[{"content":"x"}]}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"model":"m","messages":[{"role":"user","content":5}]}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"model":7,"messages":[{"role":"user","content":"x"}]}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"stream":"yes","messages":[{"role":"user","content":"x"}]}', "/v1/chat/completions", 400, "invalid_field"),
        (b'{"model":"nope","messages":[{"role":"user","content":"x"}]}', "/v1/chat/completions", 404, "model_not_found"),
        (b'{"model":"m","prompt":[1,"a"]}', "/v1/completions", 400, "invalid_field"),
        (b'{"model":"m","prompt":[-1]}', "/v1/completions", 400, "invalid_field"),
        (b'{"model":"m","prompt":[true]}', "/v1/completions", 400, "invalid_field"),
        (b'{"model":"m","prompt":{}}', "/v1/completions", 400, "invalid_field"),
        (b'{"model":"m"}', "/v1/load_lora_adapter", 404, "path_not_found"),
        (b"{}", "/slots/0?action=erase", 404, "path_not_found"),
    ],
)  # fmt: skip
async def test_bad_input(body: bytes, path: str, status: int, code: str) -> None:
    """A clear error in the envelope with a request id; no worker sees the request; the router serves on."""
    async with rig() as made:
        assert error_of(await made.post(body, path)) == (status, code)
        assert made.engines[0].requests == [] and made.nothing_left()
        assert split_answer(await made.post(chat()))[0] == b"HTTP/1.1 200 OK"


async def test_local_answers() -> None:
    """/health and /v1/models are the router's own; the list is the union over workers."""
    async with rig(answer_ok, answer_ok) as made:
        get = b"GET %s HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n"
        assert split_answer(await made.send(get % b"/health"))[2] == b'{"status":"ok"}'
        models = orjson.loads(split_answer(await made.send(get % b"/v1/models"))[2])
        assert [model["id"] for model in models["data"]] == ["m"]
        assert orjson.loads(split_answer(await made.send(get % b"/v1/models/m"))[2])["id"] == "m"
        assert error_of(await made.send(get % b"/v1/models/x")) == (404, "model_not_found")
        made.report(0, Lifecycle.LOADING)
        made.report(1, Lifecycle.DOWN)
        assert error_of(await made.send(get % b"/health")) == (503, "no_worker")
        assert error_of(await made.post(chat())) == (503, "no_worker")
        made.plane.draining = True
        assert error_of(await made.send(get % b"/health")) == (503, "shutting_down")
        assert made.nothing_left()


@pytest.mark.parametrize(("path", "envelope"), [("/v1/messages", b'"type":"error"'), ("/v1/completions", b'"param"')])
async def test_errors_speak_the_familys_own_form(path: str, envelope: bytes) -> None:
    """Anthropic clients get Anthropic errors, OpenAI clients theirs."""
    async with rig() as made:
        answer = await made.post(b'{"model":"none","messages":[{"role":"user","content":"x"}],"prompt":"x"}', path)
        assert answer.startswith(b"HTTP/1.1 404") and envelope in answer
