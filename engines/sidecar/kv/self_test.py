"""The proof that an engine's events lead to the router's keys: a prompt is sent, and its blocks must come back. Pure parts.

Everything in between is tried at once: that events are on and reach us, under the right topic and rank, that they can be
read, and that the engine caches the very tokens that were sent, in blocks of a size that is known.
"""

import secrets
from dataclasses import dataclass
from typing import Any

from engines.adapter import mapping, printable, whole
from engines.fetch import Answer
from engines.openai import error_text, json_object
from router.core.types import BLOCK_TOKENS

PROBE_BLOCKS = 3  # of the engine
LEAST_TOKENS, USUAL_TOKENS = 3 * BLOCK_TOKENS + 1, 2 * 256 + 1  # the latter where the block size is not known yet
LOWEST_ID, IDS = 3, 248  # in every vocabulary, and hardly ever a special token
RANK_HEADER = "X-Data-Parallel-Rank"  # vLLM and SGLang


def probe_tokens(block_tokens: int | None) -> list[int]:
    """Token ids nobody sent before: some full blocks, and one token more, as engines always compute the last one."""
    count = max(PROBE_BLOCKS * block_tokens + 1, LEAST_TOKENS) if block_tokens else USUAL_TOKENS
    return [LOWEST_ID + secrets.randbelow(IDS) for _ in range(count)]


def probe_body(model: str, tokens: list[int]) -> dict[str, Any]:
    return {"model": model, "prompt": tokens, "max_tokens": 1, "temperature": 0, "stream": False}


def expected_keys(tokens: int, block_tokens: int) -> int:
    """Keys of a prompt of so many tokens that an engine's full blocks hold."""
    return tokens // block_tokens * block_tokens // BLOCK_TOKENS if block_tokens else 0


def usage_of(answer: Answer) -> tuple[int | None, int | None]:
    """(prompt tokens, cached tokens) as the engine counted them."""
    usage = mapping(json_object(answer).get("usage"))
    return whole(usage.get("prompt_tokens")), whole(mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))


def refusal(answer: Answer) -> str:
    words = error_text(answer)
    return f"the engine refused the probe prompt ({answer.status}{': ' + words if words else ''})"


@dataclass(slots=True)
class Evidence:
    """What was seen since a probe was sent whose keys did not come."""

    sent_tokens: int
    counted_tokens: int | None = None
    cached_again: int | None = None  # of the same prompt sent once more
    batches: int = 0
    stored: int = 0  # events that stored blocks
    block_tokens: int = 0
    topic: str = ""
    foreign_topic: str | None = None
    unreadable: str = ""
    foreign_rank: int | None = None
    doubt: str = ""


def diagnosis(seen: Evidence) -> str:
    """Which precondition is not met."""
    if seen.counted_tokens is not None and seen.counted_tokens != seen.sent_tokens:
        return f"token ids differ: {seen.sent_tokens} were sent, the engine counted {seen.counted_tokens}"
    if seen.unreadable:
        return f"its KV events cannot be read: {seen.unreadable}"
    if seen.foreign_rank is not None:
        return f"its KV events come from data-parallel rank {seen.foreign_rank}, which is not this worker's"
    if not seen.batches:
        return silence(seen)
    if not seen.stored:
        return "prefix caching off: its KV events tell of no stored block"
    if not seen.block_tokens:
        return "block size unknown: its KV events tell of no block of full attention with its size"
    return seen.doubt or "token ids differ: its KV events tell of other blocks than those of the probe prompt"


def silence(seen: Evidence) -> str:
    """Why nothing at all came in answer to the probe."""
    if seen.foreign_topic is not None:
        return f"topic: its KV events come under {printable(seen.foreign_topic)!r}, not {seen.topic!r}"
    if seen.cached_again is None:
        return "events off, or prefix caching off: the probe prompt led to no KV event"
    if seen.cached_again:
        return f"events off: {seen.cached_again} tokens of the probe prompt were cached and no KV event told so"
    return "prefix caching off: the probe prompt sent once more found nothing cached"
