"""An engine's cache played as plainly as can be, to compare with; and a router that checks each change it is told."""

from array import array
from dataclasses import dataclass, field
from hashlib import sha256

from engines.sidecar.kv.events import ID_MASK, BlockRemoved, BlockStored
from router.core.cache_delta import CacheChange, Removed, Stored, Tier
from router.core.keys import chain, root, tokens_le
from router.core.types import BLOCK_TOKENS, KeyForm

MODEL = "m"
TIER_OF = {"GPU": Tier.DEVICE, "CPU": Tier.HOST, "CPU_PINNED": Tier.HOST, "STORAGE": Tier.DISK, "DISK": Tier.DISK}
FASTEST_FIRST = list(Tier)


@dataclass(frozen=True)
class Block:
    """One block of a chain, with its handle made of all before it and of something that no event tells."""

    before: "Block | None"
    tokens: tuple[int, ...]
    salt: str | None = None
    hidden: int = 0

    @property
    def id(self) -> int:
        return int.from_bytes(sha256(repr(self).encode()).digest()[:8], "big") & ID_MASK

    @property
    def path(self) -> "list[Block]":
        return [*(self.before.path if self.before else ()), self]

    @property
    def keys(self) -> "array[int]":
        """All keys from the chain's start to this block's end."""
        tokens = [token for block in self.path for token in block.tokens]
        return chain(tokens_le(tokens), root(MODEL, None, self.path[0].salt, KeyForm.TOKENS))

    @property
    def own_keys(self) -> "array[int]":
        """Those that end in this block."""
        return self.keys[len(self.before.keys) if self.before else 0 :]


def stored(blocks: list[Block], medium: str = "GPU", group: int = 0, kind: str | None = None, **more: object) -> BlockStored:
    """The event of a chain's blocks, each the next one's `before`."""
    first = blocks[0]
    return BlockStored(
        ids=[block.id for block in blocks],
        parent=None if first.before is None else first.before.id,
        tokens=tokens_le([token for block in blocks for token in block.tokens]),
        block_tokens=len(first.tokens),
        medium=medium,
        group=group,
        group_kind=kind,
        salt=first.salt if first.before is None else None,
        keyed=len(blocks),
        **more,  # type: ignore[arg-type]
    )


def removed(blocks: list[Block], medium: str = "GPU", group: int = 0) -> BlockRemoved:
    return BlockRemoved([block.id for block in blocks], medium, group)


@dataclass
class NaiveCache:
    """Copies by block, memory and group; everything else is worked out from them each time it is asked."""

    groups: frozenset[int] = frozenset((0,))  # those that matter
    copies: dict[tuple[Block, str, int], int] = field(default_factory=dict)
    told: set[Block] = field(default_factory=set)
    media: dict[str, set[int]] = field(default_factory=dict)  # groups seen in each

    def store(self, blocks: list[Block], medium: str, group: int, kind: str | None) -> None:
        if group not in self.groups:
            return
        self.media.setdefault(medium, set()).add(group)
        first = blocks[0]
        repeat = bool(kind) and first.before is None and medium == "GPU" and self.copies.get((first, medium, group), 0) > 0
        for block in blocks:
            self.told.add(block)
            held = self.copies.get((block, medium, group), 0)
            self.copies[block, medium, group] = max(held, 1) if repeat else held + 1

    def copy(self, blocks: list[Block], medium: str, group: int) -> None:
        """An event without tokens: it is understood for blocks that are remembered."""
        if group not in self.groups:
            return
        self.media.setdefault(medium, set()).add(group)
        for block in blocks:
            if self.is_remembered(block):
                self.copies[block, medium, group] = self.copies.get((block, medium, group), 0) + 1

    def remove(self, blocks: list[Block], medium: str, group: int) -> None:
        for block in blocks:
            if self.copies.get((block, medium, group), 0):
                self.copies[block, medium, group] -= 1
        self.told = {block for block in self.told if self.is_remembered(block)}

    def clear(self) -> None:
        self.copies.clear()
        self.told.clear()

    def has_copy(self, block: Block) -> bool:
        return any(count for (other, _, _), count in self.copies.items() if other == block)

    def is_remembered(self, block: Block) -> bool:
        """Told, and with a copy or, through blocks that were told, something with a copy behind it."""
        return block in self.told and any(self.leads_to(block, other) for other in self.told if self.has_copy(other))

    def leads_to(self, block: Block, other: Block) -> bool:
        path = other.path
        return block in path and self.told.issuperset(path[path.index(block) :])

    def remembered(self) -> set[Block]:
        return {block for block in self.told if self.is_remembered(block)}

    def unknown_parents(self) -> int:
        """Blocks that are only known as the one before another."""
        told = self.remembered()
        return len({block.before for block in told if block.before and block.before not in told})

    def tier(self, block: Block) -> Tier | None:
        usable = [
            TIER_OF[medium]
            for medium, groups in self.media.items()
            if all(self.copies.get((block, medium, group), 0) for group in groups)
        ]
        return min(usable, key=FASTEST_FIRST.index, default=None)

    def published(self) -> dict[int, Tier]:
        keys: dict[int, Tier] = {}
        for block in self.told:
            if all(before in self.told and self.tier(before) for before in block.path):
                tier = self.tier(block)
                assert tier is not None
                for key in block.own_keys:
                    keys[key] = min(keys.get(key, tier), tier, key=FASTEST_FIRST.index)
        return keys


class StrictRouter:
    """Applies changes one by one and fails where one breaks the rules of router.core.cache_delta."""

    def __init__(self) -> None:
        self.keys: dict[int, Tier] = {}
        self._parents: dict[int, int | None] = {}

    def apply(self, changes: tuple[CacheChange, ...]) -> None:
        for change in changes:
            if isinstance(change, Stored):
                self._store(change)
            elif isinstance(change, Removed):
                assert change.keys and len(set(change.keys)) == len(change.keys)
                for key in change.keys:
                    del self.keys[key]
            else:
                self.keys.clear()
            holes = [key for key in self.keys if (before := self._parents[key]) is not None and before not in self.keys]
            assert not holes, (change, holes)

    def _store(self, change: Stored) -> None:
        assert change.keys and len(set(change.keys)) == len(change.keys)
        parent = change.parent
        for key in change.keys:
            assert parent is None or parent in self.keys
            assert self._parents.setdefault(key, parent) == parent
            assert self.keys.get(key) is not change.tier, "told twice"
            self.keys[key] = change.tier
            parent = key


def make_blocks(size: int, count: int, first: int = 0, salt: str | None = None, before: Block | None = None) -> list[Block]:
    """A chain of so many blocks of so many tokens, which count up from `first`."""
    blocks: list[Block] = []
    for index in range(count):
        tokens = tuple(range(first + index * size, first + (index + 1) * size))
        before = Block(before, tokens, salt)
        blocks.append(before)
    return blocks


def filled(keys: int, size: int) -> int:
    """Blocks of so many tokens that make so many keys whole."""
    return -(-keys * BLOCK_TOKENS // size)
