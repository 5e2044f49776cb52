"""What a sidecar says of an engine's cache, in our own keys: changes in order, and the whole of it.

Rules that the sender keeps and the receiver checks:
- After every change the keys that a worker holds are prefix-closed: no block without the block before it. Where an engine
  evicts a block in the middle, everything behind it is removed too, and stored again once the gap is filled.
- A key is stored when its first copy appears in any tier and removed when its last copy is gone.
- `seq` counts the deltas of one generation from 1 without gaps; a snapshot's `seq` is that of the last delta in it.
"""

from array import array
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from router.core.types import WorkerId


class Tier(StrEnum):
    """The fastest memory that holds a copy."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Stored:
    """A run of blocks is cached; `parent` is the key before the first of them, None at a chain's start.

    Keys that are held already are in it only to move them to another tier.
    """

    parent: int | None
    keys: "array[int]"
    tier: Tier = Tier.DEVICE


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that are in no tier any more, in any order."""

    keys: "array[int]"


@dataclass(frozen=True, slots=True)
class Cleared:
    """The cache is empty; the process lives on."""


CacheChange = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class CacheDelta:
    worker: WorkerId
    generation: str
    seq: int
    changes: tuple[CacheChange, ...]


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """Everything that is cached, parents before their children."""

    worker: WorkerId
    generation: str
    seq: int
    runs: tuple[Stored, ...]


class Mark(NamedTuple):
    """A prompt that was sent to the worker begins with so many blocks, the last of which has this key."""

    worker: WorkerId
    blocks: int
    key: int


@dataclass(frozen=True, slots=True)
class RouterLoad:
    """What one router has in flight: per worker (requests before their end, uncached tokens before their first token).

    `full`: everything, in place of what was said before; else only the workers that changed, with their new totals.
    `marks`: of the prompts sent since the message before.
    """

    router: str
    seq: int
    full: bool
    workers: dict[WorkerId, tuple[int, int]]
    marks: tuple[Mark, ...] = ()
