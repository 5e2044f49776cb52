"""What an engine says of its KV cache, as values: blocks stored, blocks removed, everything cleared."""

from dataclasses import dataclass, field

ID_BITS = 60  # an int below 2^60 takes 32 bytes, one of 64 bits 48
ID_MASK = (1 << ID_BITS) - 1


@dataclass(slots=True)
class BlockStored:
    """A chain of blocks that became full, first block first.

    `ids` are the low 60 bits of the engine's hashes, which stand for everything up to a block's end; `parent` is that of
    the block before the first, None at a chain's start. `tokens` are little-endian u32, `block_tokens` for each block,
    or none at all where an event only tells of a copy in another memory.
    """

    ids: list[int]
    parent: int | None = None
    tokens: bytes = b""
    block_tokens: int = 0
    medium: str = "GPU"
    group: int = 0
    group_kind: str | None = None
    adapter: str | None = None
    salt: str | None = None
    keyed: int = 0  # leading blocks that tokens, adapter and salt describe wholly; images and the like come behind them
    reused: bool | None = None  # a repeat for blocks found in the cache; None where the engine does not say


@dataclass(slots=True)
class BlockRemoved:
    """One copy less of each block in this memory, for this group of layers."""

    ids: list[int]
    medium: str = "GPU"
    group: int = 0


@dataclass(slots=True)
class BlocksCleared:
    """No block is cached any more."""


CacheEvent = BlockStored | BlockRemoved | BlocksCleared


@dataclass(slots=True)
class EventBatch:
    """What one step of an engine changed. `rank` is its data-parallel rank, None where it does not say."""

    events: list[CacheEvent] = field(default_factory=list)
    rank: int | None = None
