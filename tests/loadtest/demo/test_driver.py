"""loadtest.demo.driver: users that stream their conversations through the `openai` SDK."""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from loadtest.demo.assistants import Assistant
from loadtest.demo.conversations import conversations, interleave
from loadtest.demo.driver import ANSWER_TOKENS, DemoFailed, Driver, Exchange

TALKS = (Assistant("shop", "You sell.", (("a?", "b?"), ("c?", "d?"))), Assistant("tutor", "You teach.", (("e?", "f?"),)))
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ChattyServer:
    """Streams two words per answer and remembers the requests; the second half of each prompt counts as cached."""

    def __init__(self, *, usage: bool = True) -> None:
        self.usage = usage
        self.bodies: list[dict[str, object]] = []
        self.busy = self.most_busy = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        self.bodies.append(await request.json())
        stream = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "X-Request-Id": f"request-{len(self.bodies)}"}
        )
        await stream.prepare(request)
        for delta in ({"role": "assistant", "content": None}, {"content": "Hello"}, {"content": " there"}):
            await self.send(stream, {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        if self.usage:
            tokens = {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42}
            await self.send(stream, {"choices": [], "usage": {**tokens, "prompt_tokens_details": {"cached_tokens": 20}}})
        await stream.write(b"data: [DONE]\n\n")
        self.busy -= 1
        return stream

    async def send(self, stream: web.StreamResponse, chunk: dict[str, object]) -> None:
        chunk |= {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        await stream.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def play(url: str, concurrency: int) -> list[Exchange]:
    talks = conversations(TALKS)
    seen: list[Exchange] = []
    done = await Driver(url, "m", talks, interleave(talks, random.Random(0))).play(concurrency, seen.append)
    assert seen == done
    return done


async def test_every_turn_is_asked_in_order() -> None:
    """Each conversation's turns follow each other with the answers in the history; all are asked once."""
    server = ChattyServer()
    async with serving(server.answer) as url:
        done = await play(url, concurrency=2)
    assert sorted((exchange.step.conversation, exchange.step.turn) for exchange in done) == [
        (name, turn) for name in ("shop-1", "shop-2", "tutor-1") for turn in (0, 1)
    ]
    lengths = sorted(len(messages) for body in server.bodies if isinstance(messages := body["messages"], list))
    assert lengths == [2, 2, 2, 4, 4, 4]
    second = next(body["messages"] for body in server.bodies if len(str(body["messages"])) > 150)
    assert isinstance(second, list) and second[2] == {"role": "assistant", "content": "Hello there"}


async def test_requests_are_streamed_short_and_deterministic() -> None:
    """Temperature 0, few tokens, streamed with usage: the run measures prompts, not answers."""
    server = ChattyServer()
    async with serving(server.answer) as url:
        await play(url, concurrency=1)
    for body in server.bodies:
        assert body["stream"] is True and body["stream_options"] == {"include_usage": True}
        assert body["max_tokens"] == ANSWER_TOKENS and body["temperature"] == 0


async def test_exchange_holds_what_the_client_saw() -> None:
    """Usage, request id, text and times come from the stream; the role chunk is no first token."""
    async with serving(ChattyServer().answer) as url:
        done = await play(url, concurrency=1)
    first = done[0]
    assert (first.request_id, first.prompt_tokens, first.cached_tokens, first.completion_tokens) == ("request-1", 40, 20, 2)
    assert first.text == "Hello there" and 0 < first.ttft_s <= first.duration_s


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_no_more_at_a_time_than_asked(concurrency: int) -> None:
    """`concurrency` bounds the requests in flight."""
    server = ChattyServer()
    async with serving(server.answer) as url:
        await play(url, concurrency)
    assert server.most_busy <= concurrency


async def test_failing_server_names_the_turn() -> None:
    """The first failed request ends the run with one readable error; nothing is retried or hidden."""
    calls = 0

    async def broken(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        return web.json_response({"error": {"message": "out of order"}}, status=500)

    async with serving(broken) as url:
        with pytest.raises(DemoFailed, match=r"turn 1 of \S+ failed: .*out of order"):
            await play(url, concurrency=1)
    assert calls == 1


async def test_answer_without_usage_is_a_failure() -> None:
    """Figures without cached tokens would be wrong, so such a run does not go on."""
    async with serving(ChattyServer(usage=False).answer) as url:
        with pytest.raises(DemoFailed, match="ended without usage"):
            await play(url, concurrency=2)
