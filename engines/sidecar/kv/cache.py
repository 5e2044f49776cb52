"""An engine's cache in the router's keys, kept up to date by its events. Pure.

Engine hashes are handles only: a block's keys are made of its tokens behind its parent's, so one table from handle to run
is all that is needed. A key is published while every block from its chain's start to the one in which it ends is in some
memory; a block that is gone takes all behind it along, and brings it back when it is stored again.
"""

from collections.abc import Iterator, Mapping

from engines.sidecar.kv.changes import ChangeList
from engines.sidecar.kv.events import BlockRemoved, BlockStored, CacheEvent
from engines.sidecar.kv.lanes import COPIES_ONLY, DEVICE, MEDIA, Lanes
from engines.sidecar.kv.published import Published
from engines.sidecar.kv.run import Run
from router.core.cache_delta import CacheChange, Stored
from router.core.keys import BLOCK_BYTES, TOKEN_BYTES, root
from router.core.types import BLOCK_TOKENS, KeyForm

Place = tuple[Run, int]  # behind so many blocks of a run


class EngineCache:
    """One engine (one data-parallel rank). `doubt` says why what is published may not be all that is cached."""

    def __init__(self, model: str, max_blocks: int, max_orphan_blocks: int) -> None:
        self.adapters: Mapping[str, str] = {}  # LoRA adapters by name: the text that keys of new chains are made with
        self.lost_blocks = 0  # stored by the engine and not taken in: no room, or an event that does not fit
        self.unplaced_copies = 0  # told of blocks that are not known
        self.unkeyed_blocks = 0  # stored with images or other inputs that no key describes
        self.orphan_blocks = 0  # waiting now for a block before them to be told, that block included
        self._model = model
        self._max_blocks = max_blocks
        self._max_orphan_blocks = max_orphan_blocks
        self._doubt = ""
        self._lanes = Lanes()
        self._published = Published()
        self._runs: dict[int, Run] = {}  # by block
        self._anchors: dict[int, Run] = {}  # by the root of their namespace
        self._more_copies: dict[tuple[int, int], int] = {}  # (block, lane) → copies beyond the first
        self._unkeyed: dict[int, int] = {}  # block → copies
        self._block_bytes = BLOCK_BYTES  # of tokens in an engine block
        self._keeps_tokens = False  # where blocks end within a key, whose tokens then come from several

    @property
    def block_tokens(self) -> int:
        """Tokens of an engine block, 0 until one was stored."""
        return self._lanes.block_tokens

    @property
    def blocks(self) -> int:
        """Engine blocks remembered: what is bounded."""
        return len(self._runs) + len(self._unkeyed)

    @property
    def keys(self) -> int:
        """Keys published."""
        return self._published.keys

    @property
    def doubt(self) -> str:
        if not self._doubt and self.orphan_blocks:
            return "blocks were stored behind others that were never told"
        return self._doubt

    def apply(self, event: CacheEvent) -> None:
        """Takes in one event; what it changes is in the next `take_changes`."""
        if isinstance(event, BlockStored):
            self._store(event)
        elif isinstance(event, BlockRemoved):
            self._remove(event)
        else:
            self.clear()

    def clear(self) -> None:
        """Nothing is cached, and that is certain."""
        for run in (*self._anchors.values(), *set(self._runs.values())):
            run.parent = run.children = None  # parts the cycles: nobody collects those of old objects
        self._runs.clear()
        self._anchors.clear()
        self._more_copies.clear()
        self._unkeyed.clear()
        self._published.clear(count=self.block_tokens not in (0, BLOCK_TOKENS))
        self.orphan_blocks = 0
        self._doubt = ""

    def take_changes(self) -> tuple[CacheChange, ...]:
        """What changed since the last call, in order; prefix-closed after each of them."""
        return self._published.changes.take()

    def snapshot(self) -> tuple[Stored, ...]:
        """All that is published now, parents first."""
        runs = ChangeList()
        seen: set[int] = set()
        for run in self._live_runs():
            for begin, end, tier in self._stretches(run, 0, run.live):
                self._published.list_run(run.key_before(begin), run.keys[begin:end], tier, runs, seen)
        return tuple(change for change in runs.take() if isinstance(change, Stored))

    # Stored

    def _store(self, event: BlockStored) -> None:
        tiers = self._lanes.tiers
        bit = self._lanes.learn(event)
        if not bit or not event.ids:
            return
        if self._lanes.tiers is not tiers:
            self._revalue(tiers, bit)
        if not event.tokens or event.medium in COPIES_ONLY:
            self._copy(event.ids, bit)
            return
        self._block_bytes = self.block_tokens * TOKEN_BYTES
        self._keeps_tokens = self._block_bytes % BLOCK_BYTES != 0
        if self._block_bytes != BLOCK_BYTES and not self._published.counts:
            self._count_keys()
        problem = self._misfit(event) or self._no_room(event)
        if problem:
            self.lost_blocks += len(event.ids)
            self._doubt = problem
        elif self._runs.keys().isdisjoint(event.ids) and self._unkeyed.keys().isdisjoint(event.ids):
            self._place(self._place_behind(event), event.ids, event.tokens, event.keyed, bit)
        else:
            self._store_mixed(event, bit)

    def _misfit(self, event: BlockStored) -> str:
        if event.block_tokens != self.block_tokens or len(event.tokens) != len(event.ids) * self._block_bytes:
            return "stored blocks do not fit their tokens"
        if event.parent in event.ids or len(set(event.ids)) < len(event.ids):
            return "a stored chain bites its tail"
        return ""

    def _no_room(self, event: BlockStored) -> str:
        if self.blocks + len(event.ids) > self._max_blocks:
            return f"it caches more than {self._max_blocks} blocks"
        if event.parent is None or event.parent in self._unkeyed:
            return ""
        run = self._runs.get(event.parent)
        if (run is None or run.seed is None) and self.orphan_blocks + len(event.ids) >= self._max_orphan_blocks:
            return "blocks were stored behind others that were never told"
        return ""

    def _store_mixed(self, event: BlockStored, bit: int) -> None:
        """Some of its blocks are known: these get one more copy, the stretches between them are placed."""
        ids, size = event.ids, self._block_bytes
        repeat = self._is_repeat(event, bit)
        place: Place | None = None
        index = 0
        while index < len(ids):
            end = index
            while end < len(ids) and self._is_new(ids[end]):
                end += 1
            if end > index:
                behind = place if index else self._place_behind(event)
                data = event.tokens[index * size : end * size]
                place = self._place(behind, ids[index:end], data, event.keyed - index, bit)
                index = end
            else:
                place = self._add_copy(ids[index], bit, counts=not repeat)
                index += 1

    def _is_repeat(self, event: BlockStored, bit: int) -> bool:
        """Whether it tells a found prefix again (vLLM's kv_cache_report_mode=full), which makes no copies.

        Where the engine does not say, it is one if it is told from its chain's start and the first block is on the device
        already: vLLM computes a block anew only if it did not find it. Engines that do not tell a group's kind have no such
        mode; SGLang stores a prefix again for another `extra_key`, which its hashes do not show, and removes it twice.
        """
        if event.reused is not None:
            return event.reused
        may_be = event.parent is None and event.group_kind is not None and MEDIA.get(event.medium) == DEVICE
        return may_be and self._is_held(event.ids[0], bit)

    def _is_new(self, block: int) -> bool:
        """Never told of, or only as a parent."""
        run = self._runs.get(block)
        return block not in self._unkeyed if run is None else run.parent is None

    def _is_held(self, block: int, bit: int) -> bool:
        run = self._runs.get(block)
        return run is not None and run.held[run.find(block, 0)] & bit != 0

    def _place_behind(self, event: BlockStored) -> Place | None:
        """Where the event's first block belongs, None where it gets no keys. An unknown parent becomes a placeholder."""
        if event.keyed <= 0 or event.parent in self._unkeyed:
            return None
        if event.parent is None:
            adapter = None if event.adapter is None else self.adapters.get(event.adapter, event.adapter)
            key = root(self._model, adapter, event.salt, KeyForm.TOKENS)
            anchor = self._anchors.get(key)
            if anchor is None:
                anchor = self._anchors[key] = Run(None, 0)
                anchor.seed, anchor.first = key, True
            return anchor, 0
        run = self._runs.get(event.parent)
        if run is None:
            run = self._runs[event.parent] = Run(None, 0, event.parent)
            run.ids.append(event.parent)
            run.held.append(0)
            self.orphan_blocks += 1
            self._count_keys()
        return run, run.find(event.parent, 0) + 1

    def _place(self, place: Place | None, ids: list[int], data: bytes, keyed: int, bit: int) -> Place | None:
        """Puts new blocks there and says where their last one is; None if that has no keys, as all behind it."""
        keyed = 0 if place is None else min(max(keyed, 0), len(ids))
        for block in ids[keyed:]:
            if block not in self._runs:
                self._unkeyed[block] = self._unkeyed.get(block, 0) + 1
                self.unkeyed_blocks += 1
        if place is None or not keyed:
            return None
        all_keyed = keyed == len(ids)
        if not all_keyed:
            ids, data = ids[:keyed], data[: keyed * self._block_bytes]
        run, at = place
        start = at
        if run.parent is None or at < len(run.ids) or (run.children and at in run.children):
            run, start = Run(run, at, ids[0]), 0
            run.root(self._block_bytes)
        orphans = [(at, self._runs[block]) for at, block in enumerate(ids) if block in self._runs] if self.orphan_blocks else []
        run.extend(ids, data, bit, self._keeps_tokens)
        if not start:
            self._link(run)
        self._runs.update(dict.fromkeys(ids, run))
        if run.seed is None:
            self.orphan_blocks += len(ids)
        for index, placeholder in orphans:
            self._adopt(placeholder, run, start + index + 1)
        if run.live == start:
            self._grow(run)
        return (run, start + len(ids)) if all_keyed else None

    def _link(self, run: Run) -> None:
        """Puts a new run behind its parent's blocks. While keys are not counted, it is watched whether one is there already.

        Two blocks of one key are then behind the same block: the chains before them would have met earlier.
        """
        parent, at = run.parent, run.at
        assert parent is not None
        if not self._published.counts:
            run.name = run.keys[0]
            siblings = parent.children.get(at, {}) if parent.children else {}
            if run.name in siblings or (at < len(parent.ids) and parent.keys[at] == run.name):
                self._count_keys()
                run.name = run.ids[0]
        parent.link(run, at)

    def _count_keys(self) -> None:
        """From now on a key may have several holders."""
        if not self._published.counts:
            self._published.count(
                (run.keys[begin:end], tier)
                for run in self._live_runs()
                for begin, end, tier in self._stretches(run, 0, run.live)
            )

    def _adopt(self, placeholder: Run, run: Run, at: int) -> None:
        """What waited behind a placeholder belongs behind the first `at` blocks of a run, and has keys if that has."""
        self.orphan_blocks -= 1
        waiting = list(placeholder.children_within(0, 1))
        for child in waiting:
            run.link(child, at)
        while run.seed is not None and waiting:
            child = waiting.pop()
            child.root(self._block_bytes)
            if not self._keeps_tokens:
                child.tokens = None
            self.orphan_blocks -= len(child.ids)
            waiting += child.children_within(0, len(child.ids))

    # Copies

    def _copy(self, ids: list[int], bit: int) -> None:
        """One more copy of blocks that are known; of others nothing is known but that."""
        for block in ids:
            if self._is_new(block):
                self.unplaced_copies += 1
            else:
                self._add_copy(block, bit, counts=True)

    def _add_copy(self, block: int, bit: int, *, counts: bool) -> Place | None:
        """Unless `counts`, there is one afterwards, however many there were. Where the block is, None if it has no keys."""
        run = self._runs.get(block)
        if run is None:
            self._unkeyed[block] += counts
            return None
        index = run.find(block, 0)
        mask = run.held[index]
        if not mask & bit:
            self._set_held(run, index, mask | bit)
        elif counts:
            self._more_copies[block, bit] = self._more_copies.get((block, bit), 0) + 1
        return run, index + 1

    def _remove(self, event: BlockRemoved) -> None:
        """Blocks that are not known, or not in that memory, are passed over: not every copy was told."""
        bit = self._lanes.find(event.medium, event.group)
        if not bit:
            return
        ids = event.ids
        at = index = 0
        while at < len(ids):
            block = ids[at]
            run = self._runs.get(block)
            if run is None:
                self._remove_unkeyed(block)
            elif run.ids[-1] == block and (blocks := self._removable_tail(run, ids, at, bit)):
                self._cut(run, run.kept(len(run.ids) - blocks))
                at += blocks
                continue
            else:
                index = run.find(block, index)
                self._remove_one(run, index, bit)
            at += 1

    def _removable_tail(self, run: Run, ids: list[int], at: int, bit: int) -> int:
        """How many of the ids from `at` on are the last blocks of the run, last one first, and gone with this one copy."""
        if self._more_copies or run.parent is None:
            return 0
        most = min(len(run.ids) - (max(run.children) if run.children else 0), len(ids) - at)
        tail, held = run.ids[: -most - 1 : -1], run.held[: -most - 1 : -1]
        count = 0
        for block, mask in zip(tail, held, strict=True):
            if block != ids[at + count] or mask != bit:
                break
            count += 1
        return count

    def _remove_one(self, run: Run, index: int, bit: int) -> None:
        block, mask = run.ids[index], run.held[index]
        if not mask & bit:
            return
        if self._more_copies and (block, bit) in self._more_copies:
            self._remove_extra(block, bit)
            return
        self._set_held(run, index, mask & ~bit)
        if mask == bit and index == len(run.ids) - 1:
            self._cut(run, run.kept(index))

    def _remove_unkeyed(self, block: int) -> None:
        copies = self._unkeyed.get(block, 0)
        if copies > 1:
            self._unkeyed[block] = copies - 1
        else:
            self._unkeyed.pop(block, None)

    def _remove_extra(self, block: int, bit: int) -> None:
        copies = self._more_copies[block, bit] - 1
        if copies:
            self._more_copies[block, bit] = copies
        else:
            del self._more_copies[block, bit]

    def _set_held(self, run: Run, index: int, mask: int) -> None:
        tiers = self._lanes.tiers
        before, now = tiers[run.held[index]], tiers[mask]
        if index < run.live and not now:
            self._shrink(run, index)
        run.held[index] = mask
        if index < run.live and before != now:
            first, last = run.key_count(index, self._block_bytes), run.key_count(index + 1, self._block_bytes)
            self._published.move(run.key_before(first), run.keys[first:last], before - 1, now - 1)
        elif index == run.live and now:
            self._grow(run)

    def _cut(self, run: Run, kept: int) -> None:
        """Forgets all but the first blocks of a run; nothing is behind the others. Runs that become empty go too."""
        while True:
            if kept < run.live:
                self._shrink(run, kept)
            for block in run.ids[kept:]:
                del self._runs[block]
            if run.seed is None:
                self.orphan_blocks -= len(run.ids) - kept
            run.cut(kept, self._block_bytes)
            if run.ids:
                return
            parent = run.parent
            if parent is None:
                if run.seed is not None and not run.children:
                    del self._anchors[run.seed]
                return
            parent.unlink(run)
            run = parent
            kept = run.kept(len(run.ids))

    # Published

    def _grow(self, run: Run) -> None:
        """Publishes what became a whole chain: further blocks of a run, and the runs behind them."""
        waiting = [run]
        while waiting:
            run = waiting.pop()
            if run.parent is None or run.parent.live < run.at or run.seed is None:
                continue
            first = run.live
            tiers = run.held[first:].translate(self._lanes.tiers)
            gap = tiers.find(0)
            run.live += len(tiers) if gap < 0 else gap
            for begin, end, tier in self._stretches(run, first, run.live):
                self._published.add(run.key_before(begin), run.keys[begin:end], tier)
            waiting += run.children_within(first, run.live)

    def _shrink(self, run: Run, blocks: int) -> None:
        """Withdraws all but the first so many blocks of a run, and what is behind them, last ones first."""
        waiting = [(run, blocks)]
        order: list[tuple[Run, int, int]] = []
        while waiting:
            run, blocks = waiting.pop()
            order.append((run, blocks, run.live))
            waiting += [(child, 0) for child in run.children_within(blocks, run.live)]
            run.live = blocks
        for run, first, last in reversed(order):
            for begin, end, tier in reversed(list(self._stretches(run, first, last))):
                self._published.drop(run.key_before(begin), run.keys[begin:end], tier)

    def _stretches(self, run: Run, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(first key, key behind the last, tier) of the keys that end in these blocks, cut where the tier changes."""
        size = self._block_bytes
        begin, end = run.key_count(first, size), run.key_count(last, size)
        if begin == end:
            return
        tiers = run.held[first:last].translate(self._lanes.tiers)
        if tiers.count(tiers[0]) == len(tiers):
            yield begin, end, tiers[0] - 1
            return
        for index, tier in enumerate(tiers):
            end = run.key_count(first + index + 1, size)
            if end > begin:
                yield begin, end, tier - 1
                begin = end

    def _revalue(self, before: bytes, bit: int) -> None:
        """A lane was learnt; where that changes what copies in the others are worth, everything is published anew."""
        now = self._lanes.tiers
        if before[:bit] == now[:bit]:
            return
        starts = self._first_runs()
        self._lanes.tiers = before
        for run in starts:
            self._shrink(run, 0)
        self._lanes.tiers = now
        for run in starts:
            self._grow(run)

    def _first_runs(self) -> list[Run]:
        return [run for anchor in self._anchors.values() for run in anchor.children_within(-1, 0)]

    def _live_runs(self) -> Iterator[Run]:
        """Those that are published up to some block, parents first."""
        waiting = self._first_runs()
        while waiting:
            run = waiting.pop()
            yield run
            waiting += run.children_within(0, run.live)
