"""The numbers of a worker, a bound, the index and a decision as the admin port shows them; rows and metrics read the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from router.core.types import Decision, Lifecycle, Truth

INTERNAL = frozenset(("priced", "homes", "hinted"))  # of a decision: what its candidates are made from
SHOWN = tuple(f.name for f in fields(Decision) if f.name not in INTERNAL)


@dataclass(slots=True)
class WorkerFigures:
    """None is unknown. Never holds a key of the engine."""

    id: str
    url: str
    kind: str
    weight: float
    lifecycle: Lifecycle  # draining when an operator asked for it
    why: str  # why it is not ready, or what about it is odd
    models: tuple[str, ...] | None
    generation: str
    truth: Truth  # by which requests for it are placed
    truth_reason: str
    in_flight: int  # requests of this router
    pending_prefill_tokens: int  # uncached tokens of this router's requests before their first token
    running: int | None = None  # as the engine reported
    waiting: int | None = None
    waiting_tokens: int | None = None
    adapters: tuple[str, ...] | None = None  # LoRA adapters among the models, with their versions
    loaded_adapters: tuple[str, ...] | None = None  # those in the engine's memory
    kv_used_ratio: float | None = None
    report_age_s: float | None = None
    capacity_tokens: int | None = None
    block_tokens: int | None = None
    blocks_held: int = 0
    prefill_tokens_per_s: float | None = None
    predicted_cached_tokens: float | None = None  # moving averages per request whose engine told
    actual_cached_tokens: float | None = None
    cached_tokens_error: float | None = None  # moving average of |predicted - actual|
    tokens_match: bool | None = None  # its tokens are those of the tokenizer here
    tokens_why: str = ""  # where they are not, or where it is not known
    told_truth: Truth | None = None  # as its sidecar says
    demotions: int = 0  # times that a source of its cache truth was dropped for its misses
    other_requests: int = 0  # in flight, told by other routers
    other_prefill_tokens: int = 0  # and their uncached tokens before their first token
    engine: dict[str, float] = field(default_factory=dict)  # further numbers of its kind, see engines/


@dataclass(frozen=True, slots=True)
class Bound:
    """How full something bounded is, in the unit of the knob that bounds it."""

    knob: str
    size: float
    limit: float


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """What is known of all caches together, and what of cache events could not be used."""

    blocks: int
    bytes: int
    evicted_blocks: int
    event_blocks: int = 0  # those of the blocks that cache events told of
    exact_workers: int = 0  # matched by their events
    refused_blocks: int = 0  # no room
    orphan_blocks: int = 0  # the block before them was not held
    feed_gaps: int = 0  # workers that fell out of sync for a missing delta
    feed_stale: int = 0  # deltas and snapshots that came too late
    feed_strangers: int = 0  # and those of unknown workers


@dataclass(frozen=True, slots=True)
class SharedFigures:
    """What a router reads and tells through Redis. Counts only grow; None is not yet."""

    is_up: bool
    read_age_s: float | None  # since the last good read of what sidecars publish
    routers: int  # others that are heard
    counts: Mapping[str, int]  # by what is counted, see SHARED_COUNTERS in metrics.py
    errors: Mapping[str, int]  # failed exchanges by kind


@dataclass(frozen=True, slots=True)
class WorkerTokens:
    """Whether a worker's tokens for one shape of prompt are those of the tokenizer here; None is unknown."""

    id: str
    kind: str
    matches: bool | None
    why: str
    differing_share: float  # of the latest prompts, by the engine's count


@dataclass(frozen=True, slots=True)
class ShapeFigures:
    """What prompts of one shape are keyed from: tokenizer, engine (asked for their tokens) or text, and why not the first."""

    shape: str  # chat, parts (chats with content in parts), tools (chats with tools) or text
    keys_from: str
    why: str
    workers: tuple[WorkerTokens, ...]


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """A model with a tokenizer. `model` is "any" for workers that list none."""

    model: str
    tokenizer: str
    prompts: tuple[ShapeFigures, ...]


def decision_row(decision: Decision) -> dict[str, Any]:
    """A decision with every candidate's numbers, as JSON shows it."""
    return {name: getattr(decision, name) for name in SHOWN}
