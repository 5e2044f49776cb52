"""Consistent-hash ring with bounded load (Mirrokni, Thorup, Zadimoghaddam, arXiv 1608.01350).

Points depend on worker ids alone, so routers that share nothing agree on a prompt's homes, and a worker that comes or
goes moves only its own share.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final

from xxhash import xxh3_64_intdigest

from router.core.types import WorkerId

SLOT_BITS: Final = 16  # the low bits of a point name its worker's slot, so that points sort as plain integers
SLOT_MASK: Final = (1 << SLOT_BITS) - 1
MAX_POINTS: Final = 4096  # of one worker


class Ring:
    """Workers by slot. Changing it costs O(points); asking O(log points)."""

    def __init__(self, points: int) -> None:
        self._points_each = points
        self._points: list[int] = []
        self._slots: set[int] = set()

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, slot: int, worker: WorkerId, weight: float = 1.0) -> None:
        """Raises ValueError if the slot is taken or does not fit a point."""
        if slot in self._slots or slot > SLOT_MASK:
            raise ValueError(f"slot {slot} is taken or above {SLOT_MASK}")
        self._slots.add(slot)
        self._points.extend(worker_points(slot, worker, self._points_each * weight))
        self._points.sort()

    def remove(self, slot: int) -> None:
        """Nothing if it is not there."""
        if slot in self._slots:
            self._slots.remove(slot)
            self._points = [point for point in self._points if point & SLOT_MASK != slot]

    def only(self, slots: Iterable[int]) -> "Ring":
        """The ring of some of its workers: the same points, the others' left out."""
        ring = Ring(self._points_each)
        ring._slots = self._slots.intersection(slots)
        if len(ring._slots) == len(self._slots):
            ring._points = self._points[:]
        else:
            chosen = ring._slots
            ring._points = [point for point in self._points if point & SLOT_MASK in chosen]
        return ring

    def homes(self, key: int, count: int = 2, allowed: Callable[[int], bool] | None = None) -> list[int]:
        """The first `count` slots clockwise from the key that are allowed; fewer when there are not that many."""
        found: list[int] = []
        points = self._points
        size, left = len(points), len(self._slots)
        at = bisect_left(points, key)
        seen: set[int] = set()
        while left and len(found) < count:
            slot = points[at if at < size else at - size] & SLOT_MASK
            at += 1
            if slot not in seen:
                seen.add(slot)
                left -= 1
                if allowed is None or allowed(slot):
                    found.append(slot)
        return found

    def place(self, key: int, in_flight_of: Callable[[int], int], total: int, factor: float) -> int:
        """The first slot clockwise that is under the bound. Raises ValueError on an empty ring."""
        if not self._slots:
            raise ValueError("the ring is empty")
        bound = load_bound(factor, total, 1.0 / len(self._slots))
        homes = self.homes(key, 1, lambda slot: in_flight_of(slot) < bound)
        return homes[0] if homes else self.homes(key, 1)[0]


def load_bound(factor: float, total: int, share: float) -> int:
    """Most requests on a worker that should carry `share` of `total` and one more: ⌈factor · (total + 1) · share⌉."""
    return math.ceil(factor * (total + 1) * share)


def worker_points(slot: int, worker: WorkerId, count: float) -> list[int]:
    number = min(MAX_POINTS, max(1, round(count)))
    return [xxh3_64_intdigest(f"{worker}#{i}".encode()) & ~SLOT_MASK | slot for i in range(number)]
