"""Request bodies of the bench: multi-turn chats with shared beginnings and ends that nobody has seen before.

Bodies depend on (kind, seed) only, so every contender of a round gets the same bytes, and the next round fresh tails.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

MODEL = "bench"
FAMILIES = 8  # conversations with a beginning of their own, over one system prompt per two of them
VOCABULARY = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one you "
    "were all her she there would their we him been has when who will no more if out so up said what its about than into them "
    "can only other time new some could these two may first then do any like my now over such our man me even most made after "
    "also did many off before must well back through years much where your way down should because long each just state people "
    "invoice deploy cluster region latency token cache prefix schedule engine request worker replica budget quarter customer "
    "shipment contract summary analysis function variable exception database migration rollback incident timeline owner review"
)
WORDS = VOCABULARY.split()


@dataclass(frozen=True)
class Kind:
    """One traffic shape. `history_bytes` is shared by a family of requests, `tail_bytes` is each request's own."""

    name: str
    history_bytes: int
    tail_bytes: int
    stream: bool


KINDS = {
    kind.name: kind
    for kind in (
        Kind("chat2k", history_bytes=1500, tail_bytes=300, stream=False),
        Kind("chat100k", history_bytes=98_000, tail_bytes=1_200, stream=False),
        Kind("stream64", history_bytes=1500, tail_bytes=300, stream=True),
    )
}


def prose(rng: random.Random, size: int) -> str:
    """About `size` bytes of English-like words with some punctuation."""
    words: list[str] = []
    length = 0
    while length < size:
        word = rng.choice(WORDS)
        ending = "." if rng.random() < 0.08 else ",\n" if rng.random() < 0.02 else ""
        words.append(word + ending)
        length += len(words[-1]) + 1
    return " ".join(words)


def chat_body(messages: Sequence[dict[str, str]], *, stream: bool) -> bytes:
    """The JSON that an SDK would send."""
    body = {"model": MODEL, "messages": list(messages), "temperature": 0.7, "max_tokens": 64, "stream": stream}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def history(rng: random.Random, system: str, size: int) -> list[dict[str, str]]:
    """A system message, then turns of user and assistant, about `size` bytes of text together."""
    messages = [{"role": "system", "content": system}]
    left = size - len(system)
    turn_bytes = max(200, size // 24)
    while left > 100:
        messages.append({"role": "user", "content": prose(rng, min(left, turn_bytes) // 3)})
        messages.append({"role": "assistant", "content": prose(rng, 2 * min(left, turn_bytes) // 3)})
        left -= len(messages[-1]["content"]) + len(messages[-2]["content"])
    return messages


def bodies(kind: Kind, count: int, seed: int) -> list[bytes]:
    """`count` bodies: histories are the same for every seed (warm after the first requests), tails never repeat."""
    shared = random.Random(f"{kind.name}/histories")
    systems = [prose(shared, min(900, kind.history_bytes // 2)) for _ in range(FAMILIES // 2)]
    histories = [history(shared, systems[i % len(systems)], kind.history_bytes) for i in range(FAMILIES)]
    rng = random.Random(f"{kind.name}/{seed}")
    made = []
    for number in range(count):
        tail = f"Question {seed}-{number}: {prose(rng, kind.tail_bytes)}"
        made.append(chat_body([*histories[rng.randrange(FAMILIES)], {"role": "user", "content": tail}], stream=kind.stream))
    return made


def unseen_body(size: int, seed: int) -> bytes:
    """One long chat nobody has sent before, not even its beginning; about `size` bytes of text."""
    rng = random.Random(f"unseen/{seed}")
    return chat_body(history(rng, f"Session {seed}. {prose(rng, 600)}", size), stream=False)
