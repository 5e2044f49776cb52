"""What an adapter of one engine kind is, and the values it gives. Everything not said is None, never 0."""

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

from router.core.types import Lifecycle

MAX_MODELS = 1000
MAX_NAME_CHARACTERS = 512
LARGEST_COUNT = 2**53  # beyond it JSON readers differ


@dataclass(frozen=True, slots=True)
class Health:
    """`detail` says to people why it is not ready."""

    lifecycle: Lifecycle
    detail: str = ""


@dataclass(slots=True)
class Look:
    """What one look at an engine showed. Later looks add to the facts and replace the load numbers.

    `markers` name the process: equal means the same process, different means a restart. `hints` prove only a restart,
    by changing. `counters` never fall within one process life. `unlisted`: there is no model list, though its kind has one.
    `adapters`: those of the models that are LoRA adapters → where their weights are from, "" where that is not told.
    """

    models: tuple[str, ...] | None = None
    adapters: dict[str, str] | None = None
    loaded_adapters: tuple[str, ...] | None = None
    unlisted: bool = False
    block_tokens: int | None = None
    capacity_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    waiting_tokens: int | None = None
    kv_used_ratio: float | None = None
    markers: dict[str, str] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)
    detail: str = ""


class Adapter(Protocol):
    """One engine, seen from outside. Every method may raise EngineError and nothing else."""

    async def health(self) -> Health:
        """Cheap, and answered even by a busy engine."""

    async def describe(self, *, fresh: bool) -> Look:
        """Models and other lasting facts; `fresh` at the first look since the engine came (back) up."""

    async def scrape(self) -> Look | None:
        """Load numbers, and facts that stand on the same page. None when the kind has none: then nothing was asked."""


def whole(value: Any) -> int | None:
    """A count from JSON or a metric: a number from 0 to 2^53, else None (strings and booleans are none)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST_COUNT:
        return None
    return int(value)


def ratio(value: Any) -> float | None:
    """A share from 0 to 1, clamped; None when it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return min(max(float(value), 0.0), 1.0)


def sum_known(values: list[int | None]) -> int | None:
    """The sum when every part is known and there is one; a sum with unknown parts is unknown."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def mapping(value: Any) -> dict[str, Any]:
    """The JSON object, or an empty one for any other type."""
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[dict[str, Any]]:
    """The objects within a JSON list; everything else is left out."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def printable(text: str, limit: int = 200) -> str:
    """An engine's own words made safe for one log line."""
    return "".join(character if character.isprintable() else " " for character in text[:limit]).strip()
