"""Prefixes that other routers of the pool sent to workers a moment ago: held there, though nobody's events tell it yet.

Without them each router places a new prefix by itself until the worker has computed it and its events have come round. A
prompt is told by some of its block keys, its marks: four of every doubling of its length, so that what two prompts share is
known to within a fifth.
"""

from array import array
from bisect import bisect_right
from typing import Final

from router.core.cache_delta import Mark
from router.core.fleet import Fleet, Worker
from router.core.prefix_node import Level
from router.core.types import Truth, WorkerId

DEPTHS: Final = (1, 2, 3, *(part << power for power in range(19) for part in (4, 5, 6, 7)))  # in blocks
NO_CACHE: Final = Truth.NONE
NO_MARK: Final = (0, 0, 0.0)


def marks_of(worker: WorkerId, keys: "array[int]", known_blocks: int) -> list[Mark]:
    """Of a prompt sent to the worker, those behind the blocks that are known to be there."""
    start, end = bisect_right(DEPTHS, known_blocks), bisect_right(DEPTHS, len(keys))
    return [Mark(worker, depth, keys[depth - 1]) for depth in DEPTHS[start:end]]


class SentElsewhere:
    """At most `max_marks`, each for `keep_s`; of several workers that were sent one, the latest."""

    def __init__(self, fleet: Fleet, keep_s: float, max_marks: int) -> None:
        self._fleet = fleet
        self._keep_s = keep_s
        self._max_marks = max_marks
        self._marks: dict[int, tuple[int, int, float]] = {}  # key → worker's bit, blocks, until when; in order of that time
        self.dropped = 0  # marks that found no room for as long as they count

    def __len__(self) -> int:
        return len(self._marks)

    def heard(self, marks: "tuple[Mark, ...]", now_s: float) -> None:
        """Another router sent prompts. Workers that are not known here are left out, and those that keep no cache."""
        self.expire(now_s)
        kept = self._marks
        for mark in marks:
            worker = self._fleet.get(mark.worker)
            if worker is not None and worker.truth is not NO_CACHE:
                kept.pop(mark.key, None)
                kept[mark.key] = worker.bit, mark.blocks, now_s + self._keep_s
        while len(kept) > self._max_marks:
            del kept[next(iter(kept))]
            self.dropped += 1

    def expire(self, now_s: float) -> None:
        kept = self._marks
        while kept:
            key = next(iter(kept))
            if kept[key][2] > now_s:
                return
            del kept[key]

    def levels(self, keys: "array[int]", now_s: float) -> list[Level]:
        """Who was sent how much of the prompt: deepest first, with masks that grow."""
        found: list[Level] = []
        mask = 0
        for place in range(bisect_right(DEPTHS, len(keys)) - 1, -1, -1):
            depth = DEPTHS[place]
            bit, blocks, until_s = self._marks.get(keys[depth - 1], NO_MARK)
            if blocks == depth and until_s > now_s and bit & ~mask:
                mask |= bit
                found.append(Level(depth, mask))
        return found

    def is_held(self, keys: "array[int]", now_s: float) -> bool:
        """Whether a prompt was sent somewhere that begins with all of these blocks (at least one), as far as marks tell."""
        depth = DEPTHS[bisect_right(DEPTHS, len(keys)) - 1]
        return self._marks.get(keys[depth - 1], NO_MARK)[2] > now_s

    def forget(self, worker: Worker) -> None:
        """What was sent there is not held there any more."""
        for key in [key for key, (bit, _, _) in self._marks.items() if bit == worker.bit]:
            del self._marks[key]
