"""Sends the conversations to an OpenAI-compatible server as its users would: the `openai` SDK, streaming, a few at a time."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from openai import AsyncOpenAI, OpenAIError
from openai.types.chat import ChatCompletionMessageParam

from loadtest.demo.conversations import Conversation, Message, Step, next_ready

ANSWER_TOKENS = 24
REQUEST_TIMEOUT_S = 120.0


class DemoFailed(Exception):
    """A request of the demo that did not succeed; the text names it."""


@dataclass(frozen=True)
class Exchange:
    """One answered request, as its client saw it."""

    step: Step
    request_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_s: float  # from sending to the first chunk with text
    duration_s: float
    text: str


class Driver:
    """Plays one schedule against one server: `concurrency` users at a time, each conversation in its own order."""

    def __init__(self, base_url: str, model: str, talks: dict[str, Conversation], steps: Sequence[Step]) -> None:
        self._client = AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=REQUEST_TIMEOUT_S)
        self._model = model
        self._talks = talks
        self._waiting = list(steps)
        self._answered: dict[str, int] = {}
        self._progress = asyncio.Condition()

    async def play(self, concurrency: int, on_answer: Callable[[Exchange], None]) -> list[Exchange]:
        """Every exchange in the order of their ends. Raises DemoFailed at the first request that fails."""
        done: list[Exchange] = []
        try:
            async with self._client, asyncio.TaskGroup() as users:
                for _ in range(concurrency):
                    users.create_task(self._user(done, on_answer))
        except BaseExceptionGroup as failures:
            first = next((failure for failure in failures.exceptions if isinstance(failure, DemoFailed)), None)
            if first is None:
                raise
            raise first from None
        return done

    async def _user(self, done: list[Exchange], on_answer: Callable[[Exchange], None]) -> None:
        """Takes the first step that may go until none is left; waits where all hang on answers still to come."""
        while self._waiting:
            position = next_ready(self._waiting, self._answered)
            if position is None:
                async with self._progress:
                    await self._progress.wait()
                continue
            step = self._waiting.pop(position)
            exchange = await self._ask(step)
            self._talks[step.conversation].answered(step.turn, exchange.text)
            self._answered[step.conversation] = step.turn + 1
            done.append(exchange)
            on_answer(exchange)
            async with self._progress:
                self._progress.notify_all()

    async def _ask(self, step: Step) -> Exchange:
        messages = self._talks[step.conversation].ask(step.turn)
        try:
            return await self._stream(step, messages)
        except OpenAIError as error:
            raise DemoFailed(f"turn {step.turn + 1} of {step.conversation} failed: {error}") from error

    async def _stream(self, step: Step, messages: list[Message]) -> Exchange:
        started_at = time.perf_counter()
        ttft_s, text, usage = None, "", None
        stream = await self._client.chat.completions.create(
            model=self._model,
            messages=cast("list[ChatCompletionMessageParam]", messages),
            max_tokens=ANSWER_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            usage = chunk.usage or usage
            if chunk.choices and chunk.choices[0].delta.content:
                ttft_s = ttft_s or time.perf_counter() - started_at
                text += chunk.choices[0].delta.content
        duration_s = time.perf_counter() - started_at
        if usage is None:
            raise DemoFailed(f"turn {step.turn + 1} of {step.conversation}: the answer ended without usage")
        details = usage.prompt_tokens_details
        return Exchange(
            step=step,
            request_id=stream.response.headers.get("x-request-id", ""),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=(details.cached_tokens or 0) if details else 0,
            completion_tokens=usage.completion_tokens,
            ttft_s=duration_s if ttft_s is None else ttft_s,
            duration_s=duration_s,
            text=text,
        )
