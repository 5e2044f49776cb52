"""Pieces of the prefix index: runs of blocks, one worker's holds on them in order of last use, and small questions on both."""

from array import array
from typing import Final

NEVER_S: Final = float("-inf")  # last use of blocks that were not held
MAX_GHOSTS: Final = 256  # per worker


class Level:
    """Leading blocks, and the mask of the slots that hold at least those."""

    __slots__ = ("blocks", "mask")

    def __init__(self, blocks: int, mask: int) -> None:
        self.blocks = blocks
        self.mask = mask


class Node:
    """A run of blocks that are held alike."""

    __slots__ = ("children", "keys", "mask", "parent", "partial")

    def __init__(self, keys: "array[int]", mask: int, parent: "Node | None", children: int) -> None:
        self.keys = keys
        self.mask = mask
        self.partial: dict[int, int] | None = None  # bit of a worker → blocks of the run's head that it holds
        self.parent = parent
        self.children = children


class Walk:
    """The nodes that a chain runs through, as they are until the index changes."""

    __slots__ = ("blocks", "nodes", "same")

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.same = 0  # blocks of the last node's run that the chain shares
        self.blocks = 0  # leading blocks of the chain that some worker holds


class Hold:
    """One worker's hold on one node, a link in that worker's list by last use."""

    __slots__ = ("children", "newer", "node", "older", "used_s")

    node: Node
    older: "Hold"
    newer: "Hold"

    def __init__(self, used_s: float, children: int) -> None:
        self.used_s = used_s
        self.children = children  # child nodes that this worker holds any of; 0 is a leaf


class WorkerCache:
    """The model of one worker's cache. `end` closes the ring of holds: `end.newer` is the oldest, `end.older` the newest."""

    __slots__ = ("bit", "capacity_blocks", "end", "ghosts", "holds", "used_blocks")

    def __init__(self, bit: int, capacity_blocks: int) -> None:
        self.bit = bit
        self.capacity_blocks = capacity_blocks
        self.used_blocks = 0
        self.holds: dict[Node, Hold] = {}
        self.end = Hold(NEVER_S, 0)
        self.end.older = self.end.newer = self.end
        self.ghosts: set[int] | None = None  # first blocks of what was evicted lately; None: nobody asks


def common_blocks(run: "array[int]", keys: "array[int]", start: int, stop: int) -> int:
    """How many blocks `run` and `keys[start:stop]` share; needs the first to be equal. O(log n), as keys are chained."""
    low, high = 1, min(len(run), stop - start)
    while low < high:
        middle = (low + high + 1) // 2
        if run[middle - 1] == keys[start + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def held_blocks(node: Node, bit: int) -> int:
    """Blocks of the node's run that a worker with a hold on it holds."""
    return node.partial[bit] if node.partial is not None and not node.mask & bit else len(node.keys)


def with_at_least(node: Node, blocks: int) -> int:
    """Mask of the workers that hold the first `blocks` of the run."""
    mask = node.mask
    for bit, held in (node.partial or {}).items():
        if held >= blocks:
            mask |= bit
    return mask


def partial_levels(node: Node, start: int, end: int) -> list[Level]:
    """Levels within the run, shallow first, of the workers that hold less of it than `start` to `end`."""
    depths = sorted({held for held in (node.partial or {}).values() if held < end - start})
    return [Level(start + held, with_at_least(node, held)) for held in depths]


def slots_of(mask: int) -> list[int]:
    slots: list[int] = []
    while mask:
        slot = mask.bit_length() - 1
        slots.append(slot)
        mask ^= 1 << slot
    return slots
