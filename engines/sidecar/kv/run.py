"""A piece of a chain of engine blocks without a branch in it, held in arrays: some 20 bytes a block beside two dict entries."""

from array import array
from typing import Optional

from router.core.keys import BLOCK_BYTES, chain


class Run:
    """Blocks `ids` behind the first `at` blocks of `parent`.

    An anchor is the empty run at a namespace's root; a placeholder is the one block that others named as their parent
    before it was told itself. Runs behind a placeholder have no `seed`, so they have no keys until it is told.
    """

    __slots__ = ("at", "children", "first", "held", "ids", "keys", "lead", "live", "name", "parent", "seed", "tokens")

    def __init__(self, parent: Optional["Run"], at: int, name: int = 0) -> None:
        self.parent = parent
        self.at = at
        self.name = name  # among its parent's children behind the same block
        self.ids = array("Q")
        self.held = bytearray()  # mask of lanes with a copy, by block
        self.live = 0  # leading blocks that are published
        self.keys = array("Q")  # those that end within these blocks
        self.seed: int | None = None  # the key before the first of `keys`, the namespace's root at a chain's start
        self.first = False  # whether no key comes before
        self.lead = b""  # tokens between the last key before this run and its first block
        self.tokens: bytearray | None = None  # of these blocks, where something still needs them
        self.children: dict[int, dict[int, Run]] | None = None  # by their `at`, then by name

    def find(self, block: int, near: int) -> int:
        """The place of a block that is in it; those at the end and beside `near` are found at once."""
        ids = self.ids
        last = len(ids) - 1
        if ids[last] == block:
            return last
        if near < last and ids[near + 1] == block:
            return near + 1
        if 0 < near <= last and ids[near - 1] == block:
            return near - 1
        return ids.index(block)

    def key_count(self, blocks: int, block_bytes: int) -> int:
        """Keys that end within the first so many blocks."""
        return (len(self.lead) + blocks * block_bytes) // BLOCK_BYTES

    def key_before(self, index: int) -> int | None:
        """The key before `keys[index]`, None at a chain's start."""
        if index:
            return self.keys[index - 1]
        return None if self.first else self.seed

    def loose(self, blocks: int, block_bytes: int) -> bytes:
        """Tokens up to the end of the first so many blocks that are in no key yet."""
        done = self.key_count(blocks, block_bytes) * BLOCK_BYTES
        if self.tokens is None:
            return self.lead[done:]
        return self.lead[done:] + bytes(self.tokens[max(done - len(self.lead), 0) : blocks * block_bytes])

    def root(self, block_bytes: int) -> None:
        """Where its keys begin, once its parent knows its own; keys of tokens that it holds already."""
        parent = self.parent
        if parent is None or parent.seed is None:
            return
        keys = parent.key_count(self.at, block_bytes)
        self.seed = parent.keys[keys - 1] if keys else parent.seed
        self.first = parent.first and not keys
        self.lead = parent.loose(self.at, block_bytes)
        if self.tokens:
            self.keys = chain(self.lead + self.tokens, self.seed)

    def extend(self, ids: list[int], data: bytes, mask: int, keeps_tokens: bool) -> None:
        """Further blocks at the end with their tokens, all with copies in the lanes of `mask`."""
        if self.seed is not None:
            loose = self.loose(len(self.ids), len(data) // len(ids))
            self.keys.extend(chain(loose + data if loose else data, self.keys[-1] if self.keys else self.seed))
        if keeps_tokens or self.seed is None:
            if self.tokens is None:
                self.tokens = bytearray()
            self.tokens += data
        self.ids.extend(ids)
        self.held += bytes((mask,)) * len(ids)

    def cut(self, blocks: int, block_bytes: int) -> None:
        """Forget all but the first so many blocks."""
        del self.ids[blocks:], self.held[blocks:]
        if self.seed is not None:
            del self.keys[self.key_count(blocks, block_bytes) :]
        if self.tokens is not None:
            del self.tokens[blocks * block_bytes :]

    def kept(self, blocks: int) -> int:
        """Of the first so many blocks those that may not be forgotten: up to the last with a copy or a child behind it."""
        held = len(self.held[:blocks].rstrip(b"\0"))
        return max(held, max(self.children)) if self.children else held

    def link(self, child: "Run", at: int) -> None:
        child.parent, child.at = self, at
        if self.children is None:
            self.children = {}
        self.children.setdefault(at, {})[child.name] = child

    def unlink(self, child: "Run") -> None:
        assert self.children is not None
        siblings = self.children[child.at]
        del siblings[child.name]
        if not siblings:
            del self.children[child.at]

    def children_within(self, low: int, high: int) -> list["Run"]:
        """Those behind more than `low` and at most `high` blocks."""
        if not self.children:
            return []
        return [child for at, siblings in self.children.items() if low < at <= high for child in siblings.values()]
