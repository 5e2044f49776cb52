"""Row 7: the prefix index alone, in this process: resident bytes per block, intake, a 100 k-token lookup."""

import gc
import os
import random
import statistics
import time
import tracemalloc
from itertools import islice

from loadtest.bench.accounting import resident_bytes
from loadtest.bench.chains import Traffic, fresh
from loadtest.bench.results import Figure
from router.core.prefix_index import PrefixIndex

ROW = "index"
BYTES = "resident bytes per block"
INTAKE = "blocks taken in per second and core"
BRANCHES = "bytes per block, every prompt two blocks of its own"
LOOKUP = "lookup of 6,250 blocks over 32 workers"
LOOKUP_WORKERS = 32
LOOKUP_BLOCKS = 6250  # 100,000 tokens
UNBOUNDED = 1 << 40
BATCH_TURNS = 500


def filled_index(workers: int, blocks: int) -> tuple[PrefixIndex, float, int]:
    """(index with at least `blocks` distinct blocks of multi-turn traffic, CPU seconds of its inserts, blocks held)."""
    index = PrefixIndex(UNBOUNDED)
    for slot in range(workers):
        index.add_worker(slot, UNBOUNDED)
    turns = Traffic(workers, seed=1).turns()
    used_s, now_s = 0.0, 0.0
    while index.blocks < blocks:
        batch = list(islice(turns, BATCH_TURNS))
        started_s = time.process_time()
        for slot, keys in batch:
            now_s += 0.001
            index.insert(slot, keys, now_s)
        used_s += time.process_time() - started_s
    return index, used_s, sum(index.blocks_of(slot) for slot in range(workers))


def branch_memory(blocks: int) -> Figure:
    """The other end: prompts that share all but their last two blocks, so that every run is that short.

    Counted by tracemalloc: resident memory would not grow where an index measured before has left room.
    """
    rng = random.Random("branches")
    index = PrefixIndex(UNBOUNDED)
    index.add_worker(0, UNBOUNDED)
    shared = fresh(rng, 64)
    tracemalloc.start()
    try:
        for turn in range(blocks // 2):
            index.insert(0, shared + fresh(rng, 2), turn * 0.001)
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    detail = {"blocks": index.blocks, "own_account_bytes_per_block": index.bytes / index.blocks}
    return Figure(ROW, BRANCHES, "", "B", traced / index.blocks, detail=detail)


def memory_and_intake(blocks: int) -> list[Figure]:
    gc.collect()
    before = resident_bytes(os.getpid())
    index, used_s, held = filled_index(8, blocks)
    gc.collect()
    grown = resident_bytes(os.getpid()) - before
    detail = {"blocks": index.blocks, "held_blocks": held, "own_account_bytes_per_block": index.bytes / index.blocks}
    return [
        Figure(ROW, BYTES, "", "B", grown / index.blocks, detail=detail),
        Figure(ROW, INTAKE, "", "/s", held / used_s, detail={"cpu_s": used_s}),
    ]


def lookup(times: int) -> Figure:
    """Each of 32 workers holds a longer part of one chain: the lookup sees every depth."""
    rng = random.Random("lookup")
    index = PrefixIndex(UNBOUNDED)
    keys = fresh(rng, LOOKUP_BLOCKS)
    for slot in range(LOOKUP_WORKERS):
        index.add_worker(slot, UNBOUNDED)
        index.insert(slot, keys[: LOOKUP_BLOCKS * (slot + 1) // LOOKUP_WORKERS], float(slot))
    taken_ms = []
    for _ in range(times):
        started_s = time.perf_counter()
        levels = index.match(keys)
        taken_ms.append((time.perf_counter() - started_s) * 1e3)
    if levels[0][0] != LOOKUP_BLOCKS or len(levels) != LOOKUP_WORKERS:
        raise AssertionError(f"the lookup found {levels[0][0]} blocks on {len(levels)} levels")
    return Figure(ROW, LOOKUP, "", "ms", statistics.median(taken_ms))


def index_row(*, quick: bool) -> list[Figure]:
    """All figures of the row."""
    return [*memory_and_intake(500_000 if quick else 5_000_000), branch_memory(20_000 if quick else 100_000), lookup(200)]
