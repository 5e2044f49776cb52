"""Row 5: one whole decision in this process, from body bytes to the chosen worker, with real or with text keys.

A decision is what the router does between the last body byte and the worker's name: read the JSON text, render, key,
match, price, choose. Time spent waiting for a tokenizer thread counts.
"""

import asyncio
import gc
import random
import time
from dataclasses import dataclass

from loadtest.bench.bodies import chat_body, history, prose
from loadtest.bench.load import percentile
from loadtest.bench.results import Figure
from loadtest.bench.routers import PATH, DecidingRouter

ROW = "decision"
WORKERS = 8
WARM = "warm {size} chat, {keys}"
COLD = "never-seen {size} chat, {keys}"
QUESTION_BYTES = 120  # what is new in a warm chat: about 25 tokens
TOKEN_KEYS, TEXT_KEYS = "token keys", "text keys"


@dataclass(frozen=True)
class Size:
    """A prompt length; the bytes give about so many tokens of the bench's prose with SmolLM2's tokenizer."""

    name: str
    text_bytes: int
    warm: int
    cold: int


SIZES = (Size("2 k-token", 8_300, warm=200, cold=40), Size("100 k-token", 481_000, warm=40, cold=5))


def question(rng: random.Random) -> dict[str, str]:
    return {"role": "user", "content": prose(rng, QUESTION_BYTES)}


def warm_bodies(size: Size, count: int) -> list[bytes]:
    """One conversation: the first body brings it in, each later one is the same history with another last question."""
    rng = random.Random(f"decision/{size.name}")
    messages = history(rng, prose(rng, 600), size.text_bytes)
    return [chat_body([*messages, question(rng)], stream=True) for _ in range(count + 1)]


def cold_bodies(size: Size, count: int) -> list[bytes]:
    """Conversations that share nothing."""
    made = []
    for number in range(count):
        rng = random.Random(f"decision/{size.name}/cold/{number}")
        messages = history(rng, f"Case {number}. {prose(rng, 600)}", size.text_bytes)
        made.append(chat_body([*messages, question(rng)], stream=True))
    return made


async def time_bodies(router: DecidingRouter, bodies: list[bytes]) -> tuple[list[float], int]:
    """Milliseconds of each decision, and the prompt tokens of the last; each prompt is finished before the next comes."""
    taken_ms = []
    tokens = 0
    for body in bodies:
        started_s = time.perf_counter()
        dispatched = await router.decide(PATH, body)
        taken_ms.append((time.perf_counter() - started_s) * 1e3)
        tokens = await router.end(dispatched)
    return taken_ms, tokens


def figure(what: str, taken_ms: list[float], tokens: int, body_bytes: int) -> Figure:
    detail = {"p99_ms": percentile(taken_ms, 0.99), "prompt_tokens": tokens, "body_bytes": body_bytes}
    return Figure(ROW, what, "", "ms", percentile(taken_ms, 0.5), tuple(taken_ms), detail)


async def measure(tokenizer: str | None, *, quick: bool) -> list[Figure]:
    keys = TEXT_KEYS if tokenizer is None else TOKEN_KEYS
    found = []
    with DecidingRouter(WORKERS, tokenizer) as router:
        for size in SIZES:
            share = 4 if quick else 1
            warm, cold = warm_bodies(size, size.warm // share), cold_bodies(size, max(3, size.cold // share))
            gc.collect()
            gc.freeze()
            cold_ms, tokens = await time_bodies(router, cold)
            found.append(figure(COLD.format(size=size.name, keys=keys), cold_ms, tokens, len(cold[-1])))
            warm_ms, tokens = await time_bodies(router, warm)
            found.append(figure(WARM.format(size=size.name, keys=keys), warm_ms[1:], tokens, len(warm[-1])))
    return found


def decision_row(tokenizer: str | None, *, quick: bool) -> list[Figure]:
    """Figures with text keys, then with token keys where there is a tokenizer."""
    found = asyncio.run(measure(None, quick=quick))
    if tokenizer is not None:
        found += asyncio.run(measure(tokenizer, quick=quick))
    return found
