"""Who holds which leading blocks: a bounded radix tree over chained keys, and an LRU cache model per worker.

A chained key names its whole prefix. So one dict from the first key of a run to its node finds every child without a
child table per node, equal last keys prove a whole run equal, and where runs part is found by bisection.

Rules the structure lives by:
- A worker holds a prefix-closed set: with a block all blocks before it. A node's `mask` are the workers that hold all
  of its run, never none; `partial` are those that hold only its head, trimmed by eviction, and nothing below it.
- A worker's holds form a list by last use. A path is touched deepest node first, so an ancestor is always newer than
  its descendants, the oldest hold is a leaf for that worker, and eviction trims runs from their tails, as engines do.
- `now_s` must not decrease. Workers are named by slot, a small integer; masks have bit `1 << slot`.
"""

from array import array
from typing import Final

from router.core.prefix_node import (
    MAX_GHOSTS,
    NEVER_S,
    Hold,
    Level,
    Node,
    Walk,
    WorkerCache,
    common_blocks,
    held_blocks,
    partial_levels,
    slots_of,
    with_at_least,
)

NODE_BYTES: Final = 250  # node, array header, dict entry and its key (tracemalloc, CPython 3.11)
HOLD_BYTES: Final = 140  # hold and its entry in the worker's dict
KEY_BYTES: Final = 9  # 8 and the array's spare room
GHOST_BYTES: Final = 80  # a set entry and its integer
SHRINK_SHARE: Final = 16  # over the byte bound the largest worker model loses one part in this many at a time

__all__ = ["NEVER_S", "Level", "PrefixIndex"]


class PrefixIndex:
    """All worker caches over one tree. Never above `limit_bytes` by its own account after any call."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.blocks = 0  # distinct blocks
        self.evicted_blocks = 0  # by the capacity of a worker
        self.bound_evicted_blocks = 0  # by limit_bytes
        self._holds = 0
        self._ghosts = 0
        self._node_bytes = NODE_BYTES
        self._first: dict[int, Node] = {}  # first key of a run → its node
        self._caches: dict[int, WorkerCache] = {}

    @property
    def evictions(self) -> int:
        """Blocks that some worker's model gave up, for whatever reason but a restart."""
        return self.evicted_blocks + self.bound_evicted_blocks

    @property
    def nodes(self) -> int:
        return len(self._first)

    @property
    def bytes(self) -> int:
        """Resident size, estimated."""
        return (
            len(self._first) * self._node_bytes
            + self._holds * HOLD_BYTES
            + self.blocks * KEY_BYTES
            + self._ghosts * GHOST_BYTES
        )

    def add_worker(self, slot: int, capacity_blocks: int) -> None:
        """A worker with an empty cache. Raises ValueError if the slot is taken."""
        if slot in self._caches:
            raise ValueError(f"slot {slot} is taken")
        self._caches[slot] = WorkerCache(1 << slot, max(1, capacity_blocks))
        self._node_bytes = max(self._node_bytes, NODE_BYTES + (slot // 30) * 4)  # the size of a mask

    def remove_worker(self, slot: int) -> None:
        """Forgets the worker and frees its slot; nothing if it is not there."""
        if slot in self._caches:
            self.forget(slot)
            self.watch_evicted(slot, False)
            del self._caches[slot]

    def has_worker(self, slot: int) -> bool:
        return slot in self._caches

    def blocks_of(self, slot: int) -> int:
        return self._caches[slot].used_blocks

    def capacity_of(self, slot: int) -> int:
        return self._caches[slot].capacity_blocks

    def set_capacity(self, slot: int, blocks: int) -> None:
        """Takes effect at once: what is beyond it is evicted, oldest first."""
        cache = self._caches[slot]
        cache.capacity_blocks = max(1, blocks)
        if cache.used_blocks > cache.capacity_blocks:
            self.evicted_blocks += self._evict(cache, cache.used_blocks - cache.capacity_blocks)

    def set_limit(self, limit_bytes: int) -> None:
        """Takes effect at once."""
        self.limit_bytes = limit_bytes
        self._shrink()

    def match(self, keys: "array[int]") -> list[tuple[int, int]]:
        """(leading blocks, mask of the slots that hold at least those), as `levels` tells it."""
        return [(level.blocks, level.mask) for level in self.levels(self.walk(keys, len(keys)))]

    def walk(self, keys: "array[int]", stop: int) -> Walk:
        """The nodes of the first `stop` blocks: what `levels` and `insert` go by, so that a choice looks them up once."""
        walk = Walk()
        nodes, first, start = walk.nodes, self._first, 0
        while start < stop:
            node = first.get(keys[start])
            if node is None:
                break
            nodes.append(node)
            run = node.keys
            blocks = len(run)
            end = start + blocks
            if end > stop or keys[end - 1] != run[-1]:
                walk.same = blocks = common_blocks(run, keys, start, stop)
                start += blocks
                break
            walk.same = blocks
            start = end
        walk.blocks = start
        return walk

    def levels(self, walk: Walk) -> list[Level]:
        """Leading blocks held, deepest level first, masks growing; a worker's match is the first level with its bit."""
        levels: list[Level] = []
        depth, mask, left = 0, 0, len(walk.nodes)
        for node in walk.nodes:
            left -= 1
            blocks = len(node.keys) if left else walk.same
            if node.partial is not None:
                if depth:
                    levels.append(Level(depth, mask))
                levels.extend(partial_levels(node, depth, depth + blocks))
                mask = with_at_least(node, blocks)
            elif node.mask != mask:
                if depth:
                    levels.append(Level(depth, mask))
                mask = node.mask
            depth += blocks
        if depth:
            levels.append(Level(depth, mask))
            levels.reverse()
        return levels

    def deepest(self, keys: "array[int]") -> int:
        """The most leading blocks that any worker holds."""
        return self.walk(keys, len(keys)).blocks

    def insert(self, slot: int, keys: "array[int]", now_s: float, walk: Walk | None = None) -> float:
        """The worker holds all of `keys` now, used just now; the coldest of its other blocks make room.

        Keys beyond the worker's capacity are left out. Returns when the coldest of the blocks that it already held was
        last used, NEVER_S if it held none. `walk`: of all the keys, made since the last change; it is used up.
        """
        cache = self._caches[slot]
        bit, stop = cache.bit, len(keys)
        if walk is None or stop > cache.capacity_blocks:
            stop = min(stop, cache.capacity_blocks)
            walk = self.walk(keys, stop)
        path = walk.nodes
        if path and walk.same < len(path[-1].keys):
            path[-1] = self._split(path[-1], walk.same)
        above: Node | None = None
        at = 0
        while at < len(path):
            node = path[at]
            if not node.mask & bit:
                self._complete(cache, node)
            elif above is not None and node.mask == bit == above.mask and above.children == 1 and not above.partial:
                self._merge(cache, above, node)
                at -= 1
                del path[at]
            above = node
            at += 1
        if walk.blocks < stop:
            self._append(cache, path, keys[walk.blocks : stop])
        coldest_s = self._touch(cache, path, now_s)
        if cache.used_blocks > cache.capacity_blocks:
            self.evicted_blocks += self._evict(cache, cache.used_blocks - cache.capacity_blocks)
        self._shrink()
        return coldest_s

    def drop(self, slot: int, keys: "array[int]", from_block: int, since_s: float = float("inf")) -> int:
        """The worker does not hold the blocks of `keys` from `from_block` on: an insert that never ran is undone.

        Blocks used after `since_s`, or with other held blocks behind them, stay. Returns the blocks dropped.
        """
        cache = self._caches[slot]
        before = cache.used_blocks
        walk = self.walk(keys, len(keys))
        end, same = walk.blocks, walk.same
        for node in reversed(walk.nodes):
            start = end - same
            hold = cache.holds.get(node)
            if hold is not None:
                held = held_blocks(node, cache.bit)
                keep = max(0, from_block - start)
                if keep >= held or held > same or hold.children or hold.used_s > since_s:
                    break
                if keep:
                    self._trim(cache, node, held, keep)
                    break
                self._release(cache, hold, held)
            end = start
            if node.parent is not None:
                same = len(node.parent.keys)
        return before - cache.used_blocks

    def evict_older(self, slot: int, before_s: float) -> int:
        """Drops every block of the worker that was last used before `before_s`; returns how many."""
        cache = self._caches[slot]
        before = cache.used_blocks
        while (hold := cache.end.newer) is not cache.end and hold.used_s < before_s:
            self._release(cache, hold, held_blocks(hold.node, cache.bit))
        self.evicted_blocks += before - cache.used_blocks
        return before - cache.used_blocks

    def watch_evicted(self, slot: int, on: bool) -> None:
        """Whether to remember what the worker's capacity makes the model evict, for `was_evicted`."""
        cache = self._caches[slot]
        if not on:
            self._ghosts -= len(cache.ghosts or ())
            cache.ghosts = None
        elif cache.ghosts is None:
            cache.ghosts = set()

    def was_evicted(self, slot: int, key: int) -> bool:
        """Whether the model of this worker evicted the block lately, so that a hit on it proves the model too small."""
        ghosts = self._caches[slot].ghosts
        return ghosts is not None and key in ghosts

    def forget(self, slot: int) -> None:
        """The worker's cache is empty now."""
        cache = self._caches[slot]
        for node, hold in cache.holds.items():
            self._leave(node, cache.bit)
            hold.older = hold.newer = cache.end  # else they would be garbage in cycles
        self._holds -= len(cache.holds)
        cache.holds = {}
        cache.used_blocks = 0
        cache.end.older = cache.end.newer = cache.end
        if cache.ghosts is not None:
            self._ghosts -= len(cache.ghosts)
            cache.ghosts.clear()

    def _append(self, cache: WorkerCache, path: list[Node], tail: "array[int]") -> None:
        """Blocks nobody had. A run that only this worker holds and nothing hangs from grows in place."""
        above = path[-1] if path else None
        if above is not None and above.mask == cache.bit and not above.children and above.partial is None:
            above.keys.extend(tail)
        else:
            node = self._first[tail[0]] = Node(tail, cache.bit, above, 0)
            if above is not None:
                above.children += 1
            path.append(node)
        cache.used_blocks += len(tail)
        self.blocks += len(tail)

    def _complete(self, cache: WorkerCache, node: Node) -> None:
        """From no hold or a partial one to all of the run; `_touch` makes the Hold."""
        held = 0
        if node.partial is not None:
            held = node.partial.pop(cache.bit, 0)
            if not node.partial:
                node.partial = None
        node.mask |= cache.bit
        cache.used_blocks += len(node.keys) - held

    def _touch(self, cache: WorkerCache, path: list[Node], now_s: float) -> float:
        """Moves the holds of a path to the newest end, deepest first, making those that are missing."""
        holds, end = cache.holds, cache.end
        newest = end.older
        coldest_s = NEVER_S
        fresh = 0  # 1 when the hold made last becomes a new child of the next one up
        for node in reversed(path):
            hold = holds.get(node)
            if hold is None:
                hold = holds[node] = Hold(now_s, fresh)
                hold.node = node
                self._holds += 1
                fresh = 1
            else:
                if coldest_s == NEVER_S:
                    coldest_s = hold.used_s
                hold.used_s = now_s
                hold.children += fresh
                fresh = 0
                if hold is newest:
                    newest = hold.older
                else:
                    hold.older.newer = hold.newer
                    hold.newer.older = hold.older
            hold.older = newest
            newest.newer = hold
            newest = hold
        newest.newer = end
        end.older = newest
        return coldest_s

    def _split(self, node: Node, head_blocks: int) -> Node:
        """Cuts a run in two and returns the new head; the node itself becomes the tail, so its children stay its own."""
        run = node.keys
        head = Node(run[:head_blocks], node.mask, node.parent, 1)
        node.keys = run[head_blocks:]
        node.parent = head
        self._first[head.keys[0]] = head
        self._first[node.keys[0]] = node
        for slot in slots_of(node.mask):
            self._split_hold(self._caches[slot], node, head)
        if node.partial is not None:
            partial, node.partial = node.partial, None
            for bit, held in partial.items():
                cache = self._caches[bit.bit_length() - 1]
                if held > head_blocks:
                    self._split_hold(cache, node, head)
                    node.partial = {**(node.partial or {}), bit: held - head_blocks}
                else:
                    hold = cache.holds[head] = cache.holds.pop(node)
                    hold.node = head
                if held >= head_blocks:
                    head.mask |= bit
                else:
                    head.partial = {**(head.partial or {}), bit: held}
        return head

    def _split_hold(self, cache: WorkerCache, tail: Node, head: Node) -> None:
        """The head was last used when the tail was: it comes right after it in the list."""
        below = cache.holds[tail]
        hold = cache.holds[head] = Hold(below.used_s, 1)
        self._holds += 1
        hold.node, hold.older, hold.newer = head, below, below.newer
        below.newer.older = hold
        below.newer = hold

    def _merge(self, cache: WorkerCache, head: Node, tail: Node) -> None:
        """Undoes a split once one worker alone holds both runs and touches both: head and tail become `tail`."""
        del self._first[tail.keys[0]]
        tail.keys = head.keys + tail.keys
        tail.parent = head.parent
        self._first[tail.keys[0]] = tail
        hold = cache.holds.pop(head)
        hold.older.newer = hold.newer
        hold.newer.older = hold.older
        self._holds -= 1

    def _evict(self, cache: WorkerCache, excess: int, remember: bool = True) -> int:
        """Takes the coldest `excess` blocks from the worker; returns their number."""
        left = excess
        while left > 0:
            hold = cache.end.newer
            node = hold.node
            held = held_blocks(node, cache.bit)
            keep = max(0, held - left)
            if cache.ghosts is not None and remember:
                self._remember(cache.ghosts, node.keys[keep])
            left -= held - keep
            if keep:
                self._trim(cache, node, held, keep)
            else:
                self._release(cache, hold, held)
        return excess

    def _remember(self, ghosts: set[int], key: int) -> None:
        """Starts afresh when it is full: what is lost is only a chance to learn."""
        self._ghosts -= len(ghosts)
        if len(ghosts) >= MAX_GHOSTS:
            ghosts.clear()
        ghosts.add(key)
        self._ghosts += len(ghosts)

    def _trim(self, cache: WorkerCache, node: Node, held: int, keep: int) -> None:
        """The worker keeps the first `keep` of the `held` blocks."""
        cache.used_blocks -= held - keep
        node.mask &= ~cache.bit
        if node.partial is None:
            node.partial = {cache.bit: keep}
        else:
            node.partial[cache.bit] = keep
        if not node.mask:
            self._shorten(node)

    def _release(self, cache: WorkerCache, hold: Hold, held: int) -> None:
        """The worker holds nothing of the node any more; it must hold nothing below."""
        cache.used_blocks -= held
        self._holds -= 1
        hold.older.newer = hold.newer
        hold.newer.older = hold.older
        node = hold.node
        del cache.holds[node]
        if node.parent is not None:
            cache.holds[node.parent].children -= 1
        self._leave(node, cache.bit)

    def _leave(self, node: Node, bit: int) -> None:
        """Takes a worker off a node; a node that nobody holds goes, one that nobody holds in full is cut."""
        if node.mask & bit:
            node.mask ^= bit
        else:
            partial = node.partial or {}
            del partial[bit]
            node.partial = partial or None
        if node.mask:
            return
        if node.partial is not None:
            self._shorten(node)
            return
        self.blocks -= len(node.keys)
        del self._first[node.keys[0]]
        if node.parent is not None:
            node.parent.children -= 1

    def _shorten(self, node: Node) -> None:
        """Cuts a run to its longest partial hold, which thereby becomes a whole one."""
        partial = node.partial or {}
        longest = max(partial.values())
        self.blocks -= len(node.keys) - longest
        del node.keys[longest:]
        for bit in [bit for bit, held in partial.items() if held == longest]:
            node.mask |= bit
            del partial[bit]
        node.partial = partial or None

    def _shrink(self) -> None:
        """Back under the byte bound: the worker models with the most blocks give up their oldest."""
        while self.bytes > self.limit_bytes and self.blocks:
            cache = max(self._caches.values(), key=lambda cache: cache.used_blocks)
            self.bound_evicted_blocks += self._evict(cache, max(1, cache.used_blocks // SHRINK_SHARE), False)
