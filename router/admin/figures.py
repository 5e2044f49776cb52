"""The numbers of a worker, a bound, the index and a decision as the admin port shows them; rows and metrics read the same."""

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
    truth: Truth
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
    engine: dict[str, float] = field(default_factory=dict)  # further numbers of its kind, see engines/


@dataclass(frozen=True, slots=True)
class Bound:
    """How full something bounded is, in the unit of the knob that bounds it."""

    knob: str
    size: float
    limit: float


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """The prefix index as a whole."""

    blocks: int
    bytes: int
    evicted_blocks: int


def decision_row(decision: Decision) -> dict[str, Any]:
    """A decision with every candidate's numbers, as JSON shows it."""
    return {name: getattr(decision, name) for name in SHOWN}
