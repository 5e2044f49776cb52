"""Row 8: what a choice costs with 1,000 workers and 10 M blocks, against 8 workers with as many blocks each."""

import gc
import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Self

from loadtest.bench.chains import Traffic
from loadtest.bench.load import percentile
from loadtest.bench.results import Figure
from loadtest.bench.routers import MODEL, placement_over, ready_fleet
from router.core.load import Lease
from router.core.stats import Stats
from router.core.types import BLOCK_TOKENS, PromptKeys

ROW = "scale"
CHOICE = "choice with {workers} workers, {blocks} blocks"
RATIO = "choice at the large size ÷ at 8 workers"
SMALL_WORKERS = 8
IN_FLIGHT_EACH = 2


@dataclass(frozen=True)
class Scale:
    workers: int
    blocks_each: int
    choices: int


def scales(*, quick: bool) -> tuple[Scale, Scale]:
    """(small, large)."""
    each, choices = (2_000, 3_000) if quick else (10_000, 10_000)
    return Scale(SMALL_WORKERS, each, choices), Scale(1_000, each, choices)


class Crowd:
    """A placement over a fleet under load: as many requests in flight as there are `IN_FLIGHT_EACH` per worker."""

    def __init__(self, scale: Scale) -> None:
        fleet = ready_fleet(scale.workers, capacity_tokens=scale.blocks_each * BLOCK_TOKENS * 4, now_s=0.0)
        self.placement = placement_over(fleet, Stats())
        self.workers = fleet.candidates(MODEL)
        self.in_flight: deque[Lease] = deque()
        self.limit = IN_FLIGHT_EACH * scale.workers
        self.now_s = 1.0

    def fill(self, turns: "Iterator[tuple[int, array[int]]]", blocks: int) -> None:
        """Put that many distinct blocks into the index, each turn at the worker it says."""
        index = self.placement.index
        while index.blocks < blocks:
            for worker, keys in islice(turns, 1000):
                self.now_s += 0.0001
                index.insert(self.workers[worker].slot, keys, self.now_s)

    def choose(self, keys: "array[int]", name: str) -> float:
        """Microseconds of one choice alone. The oldest requests end when there are too many."""
        self.now_s += 0.001
        prompt = PromptKeys(keys, len(keys) * BLOCK_TOKENS)
        started_s = time.perf_counter()
        lease = self.placement.choose(name, MODEL, prompt, self.workers, now_s=self.now_s, wall_s=self.now_s)
        taken_us = (time.perf_counter() - started_s) * 1e6
        self.in_flight.append(lease)
        self.placement.first_token(lease, self.now_s + 0.0002)
        if len(self.in_flight) > self.limit:
            self.placement.finish(self.in_flight.popleft(), self.now_s + 0.0005, None, "ok", 200)
        return taken_us


class GcPauses:
    """Context manager that notes the longest garbage collection inside it, in milliseconds."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._started_s = 0.0

    def _note(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._started_s = time.perf_counter()
        else:
            self.longest_ms = max(self.longest_ms, (time.perf_counter() - self._started_s) * 1e3)

    def __enter__(self) -> Self:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)


def time_choices(scale: Scale) -> tuple[list[float], dict[str, float]]:
    """Microseconds of each choice for the next turns of conversations that the index holds, and what to note of the run."""
    crowd = Crowd(scale)
    turns = Traffic(scale.workers, seed=2, active=max(256, 4 * scale.workers)).turns()
    crowd.fill(turns, scale.workers * scale.blocks_each)
    for number in range(crowd.limit):
        crowd.choose(next(turns)[1], f"w{number}")
    asked = list(islice(turns, scale.choices))
    with GcPauses() as pauses:
        taken_us = [crowd.choose(keys, f"r{number}") for number, (_, keys) in enumerate(asked)]
        gc.collect()
    notes = {"p99_us": percentile(taken_us, 0.99), "slowest_us": max(taken_us), "full_gc_ms": pauses.longest_ms}
    return taken_us, {**notes, "blocks": crowd.placement.index.blocks}


def scale_row(*, quick: bool) -> list[Figure]:
    """Both sizes and their ratio. What a full garbage collection takes is told too: the router's loop stands still for it."""
    found = []
    for scale in scales(quick=quick):
        taken_us, notes = time_choices(scale)
        what = CHOICE.format(workers=f"{scale.workers:,}", blocks=f"{scale.workers * scale.blocks_each:,}")
        found.append(Figure(ROW, what, "", "µs", percentile(taken_us, 0.5), detail=notes))
    small, large = found
    return [*found, Figure(ROW, RATIO, "", "×", large.value / small.value)]
