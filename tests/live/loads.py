"""The loads that real engines are tested with, who sends them, and what the routers forecast of them.

A load is a list of `Ask`. `play` sends it from a number of clients, spread over the routers in turn. `ceiling` says
what share of its prompt tokens caches can give at best; `forecasts` compares the routers' words with the engines'.
"""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from loadtest.demo.router_process import LocalRouter
from tests.e2e.cluster import until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
REQUEST_TIMEOUT_S = 120.0
WORDS = ("river", "stone", "lamp", "wheel", "garden", "paper", "north", "amber", "copper", "window", "letter", "music")


@dataclass(frozen=True)
class Ask:
    """One request. Those of one `group` share the start of their prompts."""

    path: str
    body: dict[str, Any]
    group: str


@dataclass
class Answered:
    """What a client got, in the engine's own words; `router` is who passed it on. `problem` is "" for a good answer."""

    ask: Ask
    router: LocalRouter
    request_id: str
    status: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    text: str = ""
    problem: str = ""


@dataclass
class Forecasts:
    """Pairs of cached tokens, as the router predicted them and as the engine reported them."""

    pairs: list[tuple[int, int]] = field(default_factory=list)

    def equal_share(self, within_tokens: int = 0) -> float:
        """The share of requests whose two numbers differ by no more than `within_tokens`."""
        good = sum(abs(predicted - actual) <= within_tokens for predicted, actual in self.pairs)
        return good / len(self.pairs)

    def right_share(self, block_tokens: int) -> float:
        """The share of requests whose prediction is the engine's number, to whole blocks of the router."""
        return sum(predicted <= actual < predicted + block_tokens for predicted, actual in self.pairs) / len(self.pairs)

    def misses(self) -> list[tuple[int, int]]:
        return [pair for pair in self.pairs if pair[0] != pair[1]]


def words(rng: random.Random, count: int) -> str:
    return " ".join(f"{rng.choice(WORDS)}{rng.randrange(100)}" for _ in range(count))


def prefix_groups(
    model: str, groups: int = 6, each: int = 8, prefix_words: int = 160, seed: int = 1, *, stream: bool = False
) -> list[Ask]:
    """Chats that share long instructions within a group and end differently; the groups in a shuffled order."""
    rng = random.Random(seed)
    asks = []
    for group in range(groups):
        rules = words(rng, prefix_words)
        for number in range(each):
            question = f"{number}: {words(rng, 12)}"
            messages = [{"role": "system", "content": rules}, {"role": "user", "content": question}]
            body: dict[str, Any] = {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0}
            if stream:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            asks.append(Ask(CHAT, body, f"group-{group}"))
    rng.shuffle(asks)
    return asks


def crowded(model: str, count: int, prefixes: int, prefix_tokens: int = 320, seed: int = 2) -> list[Ask]:
    """Prompts as token ids over more prefixes than a small cache holds, so that each answer may evict another's blocks."""
    rng = random.Random(seed)
    starts = [[rng.randrange(200, 40_000) for _ in range(prefix_tokens)] for _ in range(prefixes)]
    asks = []
    for _ in range(count):
        chosen = rng.randrange(prefixes)
        tail = [rng.randrange(200, 40_000) for _ in range(rng.randrange(8, 80))]
        kept = rng.choice((prefix_tokens, prefix_tokens, prefix_tokens // 2))
        body = {"model": model, "prompt": starts[chosen][:kept] + tail, "max_tokens": rng.choice((1, 40)), "temperature": 0}
        asks.append(Ask(TEXT, body, f"prefix-{chosen}"))
    return asks


def mixed(model: str, count: int = 200, seed: int = 3) -> list[Ask]:
    """Chats and texts, streamed and not, short and long, some sharing their start: what a pool of several kinds is asked."""
    rng = random.Random(seed)
    rules = [words(rng, 90) for _ in range(8)]
    asks = []
    for _ in range(count):
        group = rng.randrange(len(rules))
        question = words(rng, rng.randrange(4, 40))
        body: dict[str, Any] = {"model": model, "max_tokens": rng.randrange(1, 8), "temperature": 0}
        if rng.random() < 0.7:
            body["messages"] = [{"role": "system", "content": rules[group]}, {"role": "user", "content": question}]
            path = CHAT
        else:
            body["prompt"] = f"{rules[group]} {question}"
            path = TEXT
        if rng.random() < 0.5:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        asks.append(Ask(path, body, f"group-{group}"))
    return asks


async def play(routers: Sequence[LocalRouter], asks: Sequence[Ask], clients: int, pause_s: float = 0.0) -> list[Answered]:
    """Sends all of it, `clients` requests at a time and the n-th through the (n mod routers)-th router; in order of sending.

    The first request of a group is answered before another of that group is sent: two cold ones at once would be
    computed twice, whatever a router does. `pause_s`: what each client waits after an answer.
    """
    waiting = list(enumerate(asks))
    opened: dict[str, bool] = {}  # group → whether its first request was answered
    done: dict[int, Answered] = {}
    progress = asyncio.Condition()

    async def client(session: aiohttp.ClientSession) -> None:
        while waiting:
            async with progress:
                ready = next((at for at, (_, ask) in enumerate(waiting) if opened.get(ask.group, True)), None)
                if ready is None:
                    await progress.wait()
                    continue
                number, ask = waiting.pop(ready)
                opened.setdefault(ask.group, False)
            done[number] = await send(session, routers[number % len(routers)], ask)
            await asyncio.sleep(pause_s)
            async with progress:
                opened[ask.group] = True
                progress.notify_all()

    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client(session))
    return [done[number] for number in sorted(done)]


async def send(session: aiohttp.ClientSession, router: LocalRouter, ask: Ask) -> Answered:
    """One request and its whole answer; a failure is told in `problem`, never raised."""
    try:
        async with session.post(router.url + ask.path, json=ask.body) as response:
            body = await response.read()
            answered = Answered(ask, router, response.headers.get("X-Request-Id", ""), response.status)
    except (aiohttp.ClientError, TimeoutError) as error:
        return Answered(ask, router, "", 0, problem=f"{type(error).__name__}: {error}")
    if response.status != 200:
        answered.problem = body.decode(errors="replace")[:300]
        return answered
    read_answer(answered, body)
    return answered


def read_answer(answered: Answered, body: bytes) -> None:
    """Text and usage of a plain answer or of a stream's chunks."""
    documents = [body]
    if answered.ask.body.get("stream"):
        events = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
        if not events or events[-1].strip() != b"[DONE]":
            answered.problem = "the stream did not end"
        documents = [event for event in events if event.strip() != b"[DONE]"]
    for document in map(json.loads, documents):
        for choice in document.get("choices", ()):
            said = choice.get("message") or choice.get("delta") or {}
            answered.text += choice.get("text") or said.get("content") or ""
        usage = document.get("usage") or {}
        answered.prompt_tokens = usage.get("prompt_tokens", answered.prompt_tokens)
        answered.completion_tokens = usage.get("completion_tokens", answered.completion_tokens)
        details = usage.get("prompt_tokens_details") or {}
        answered.cached_tokens = details.get("cached_tokens", answered.cached_tokens)


def cached_share(answers: Sequence[Answered]) -> float:
    """Cached tokens by prompt tokens, as the engines reported them."""
    return sum(one.cached_tokens or 0 for one in answers) / sum(one.prompt_tokens or 0 for one in answers)


def ceiling(prompts: Sequence[Sequence[int]], block_tokens: int) -> float:
    """The share of tokens that an engine with one endless cache takes from it: every prompt in order, whole blocks only.

    The last token is computed always, so of a prompt seen before the last whole block may be left to compute.
    """
    known: set[tuple[int, ...]] = set()
    cached = 0
    for prompt in prompts:
        usable = (len(prompt) - 1) // block_tokens * block_tokens
        held = 0
        while held < usable and tuple(prompt[: held + block_tokens]) in known:
            held += block_tokens
        cached += held
        known.update(tuple(prompt[:end]) for end in range(block_tokens, len(prompt) + 1, block_tokens))
    return cached / sum(map(len, prompts))


def decision(answered: Answered) -> dict[str, Any]:
    """The finished record of a request: its outcome is written a moment after the last byte went out."""

    def finished() -> dict[str, Any] | None:
        found = answered.router.decision(answered.request_id)
        return found if found.get("outcome") else None

    return until(finished, f"the decision of {answered.request_id} ends")


def forecasts(answers: Sequence[Answered]) -> Forecasts:
    """Of every answer whose engine reported cached tokens."""
    found = Forecasts()
    for row in map(decision, answers):
        if row["actual_cached_tokens"] is not None:
            found.pairs.append((row["predicted_cached_tokens"], row["actual_cached_tokens"]))
    return found


def problems(answers: Sequence[Answered]) -> list[str]:
    return [f"{one.status} {one.request_id} {one.problem}" for one in answers if one.problem]
