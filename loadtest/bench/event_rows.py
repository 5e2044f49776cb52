"""Row 9: what cache events cost, in this process: memory per block, intake through the feed, lookups, the longest call."""

import gc
import os
import random
import statistics
import time
from array import array
from collections.abc import Iterator
from itertools import islice

from loadtest.bench.accounting import resident_bytes
from loadtest.bench.chains import Traffic, fresh
from loadtest.bench.results import Figure
from router.core.cache_delta import CacheDelta, Stored
from router.core.cache_feed import CacheFeed
from router.core.cache_truth import SWEEP_PLACES
from router.core.event_index import EventIndex
from router.core.fleet import Worker
from router.settings import EngineSpec

ROW = "events"
BYTES = "resident bytes per block told by events"
INTAKE = "blocks of events taken in per second and core"
LONGEST = "longest call of the feed and the sweep, {blocks} blocks"
LOOKUP = "lookup of 6,250 blocks by events over 32 workers"
TURN_LOOKUP = "lookup of a conversation's next turn by events, {workers} workers, {blocks} blocks"
LOOKUP_WORKERS = 32
LOOKUP_BLOCKS = 6250  # 100,000 tokens
UNBOUNDED = 1 << 40
EVERYONE = (1 << 1024) - 1


class Told:
    """An index that follows so many workers, and what its calls took. The watcher of its own feed."""

    def __init__(self, workers: int) -> None:
        self.index = EventIndex(UNBOUNDED)
        self.feed = CacheFeed(self.index, self)
        self.workers = [Worker(EngineSpec("vllm", f"http://10.0.0.0:{1000 + slot}"), slot) for slot in range(workers)]
        for worker in self.workers:
            self.feed.joined(worker)
        self.used_s = 0.0
        self.blocks = 0
        self.longest_ms = 0.0
        self._seqs = [0] * workers

    def synced(self, worker: Worker, in_sync: bool) -> None: ...

    def stored(self, slot: int, keys: "array[int]") -> None: ...

    def delta(self, slot: int, keys: "array[int]", held: int) -> CacheDelta:
        """The worker stores a chain, of which it has so many leading blocks."""
        self._seqs[slot] += 1
        self.blocks += len(keys) - held
        run = Stored(keys[held - 1] if held else None, keys[held:])
        return CacheDelta(self.workers[slot].id, "g", self._seqs[slot], (run,))

    def fill(self, turns: "Iterator[tuple[int, array[int]]]", blocks: int) -> None:
        """Distinct blocks of multi-turn traffic; each turn tells the blocks that its worker does not have yet."""
        while self.index.blocks < blocks:
            slot, keys = next(turns)
            delta = self.delta(slot, keys, self.index.depth(slot, keys))
            began_s = time.thread_time()
            self.feed.delta(delta)
            self._took(time.thread_time() - began_s)

    def forget_some(self) -> None:
        """Every tenth worker is lost, and swept out."""
        for worker in self.workers[::10]:
            began_s = time.thread_time()
            self.feed.forget(worker.id)
            self._took(time.thread_time() - began_s)
        more = True
        while more:
            began_s = time.thread_time()
            more = self.index.sweep(SWEEP_PLACES)
            self._took(time.thread_time() - began_s)

    def _took(self, seconds: float) -> None:
        self.used_s += seconds
        self.longest_ms = max(self.longest_ms, seconds * 1e3)

    def lookups_us(self, chains: "list[array[int]]") -> float:
        """Median of one lookup of each."""
        taken_us = []
        for keys in chains:
            began_s = time.perf_counter()
            self.index.levels(keys, EVERYONE)
            taken_us.append((time.perf_counter() - began_s) * 1e6)
        return statistics.median(taken_us)


def filled(workers: int, blocks: int, lookups: int) -> tuple[Told, float]:
    """(what was told, microseconds of a lookup of its next turns)."""
    told = Told(workers)
    turns = Traffic(workers, seed=3, active=max(256, 4 * workers)).turns()
    told.fill(turns, blocks)
    return told, told.lookups_us([keys for _, keys in islice(turns, lookups)])


def deep_lookup(times: int) -> Figure:
    """Each of 32 workers holds a longer part of one chain: the lookup sees every depth."""
    rng = random.Random("deep lookup")
    keys = fresh(rng, LOOKUP_BLOCKS)
    told = Told(LOOKUP_WORKERS)
    for slot in range(LOOKUP_WORKERS):
        told.index.stored(slot, None, keys[: LOOKUP_BLOCKS * (slot + 1) // LOOKUP_WORKERS])
    levels = told.index.levels(keys, EVERYONE)
    if levels[0].blocks != LOOKUP_BLOCKS or len(levels) != LOOKUP_WORKERS:
        raise AssertionError(f"the lookup found {levels[0].blocks} blocks on {len(levels)} levels")
    return Figure(ROW, LOOKUP, "", "ms", told.lookups_us([keys] * times) / 1e3)


def event_row(*, quick: bool) -> list[Figure]:
    """All figures of the row. As in the router, the cycle collector does not walk what lasts."""
    each, lookups = (1_000, 500) if quick else (10_000, 3_000)
    gc.disable()
    _, small_us = filled(8, 8 * each, lookups)
    before = resident_bytes(os.getpid())
    large, large_us = filled(1_000, 1_000 * each, lookups)
    grown = resident_bytes(os.getpid()) - before
    blocks, intake_s = large.index.blocks, large.used_s
    large.forget_some()
    detail = {"blocks": blocks, "own_account_bytes_per_block": large.index.bytes / blocks}
    return [
        Figure(ROW, BYTES, "", "B", grown / blocks, detail=detail),
        Figure(ROW, INTAKE, "", "/s", large.blocks / intake_s, detail={"seconds": intake_s}),
        Figure(ROW, LONGEST.format(blocks=f"{1_000 * each:,}"), "", "ms", large.longest_ms),
        deep_lookup(200),
        Figure(ROW, TURN_LOOKUP.format(workers=8, blocks=f"{8 * each:,}"), "", "µs", small_us),
        Figure(ROW, TURN_LOOKUP.format(workers="1,000", blocks=f"{1_000 * each:,}"), "", "µs", large_us),
    ]
