"""Takes in, in small pieces, what sidecars told, so that no piece holds up requests; asks for what would help."""

import asyncio
import logging
from collections.abc import Callable

from router.core.placement import Placement
from router.core.types import WorkerId

log = logging.getLogger("warmline.state")
CATCH_UP_S = 0.02  # between two looks for what waits, where engines tell of their caches
REST_S = 0.1  # and where none does
WANT_S = 1.0  # between two looks for workers whose cache is not known though they tell of it


class CatchUp:
    """`want_snapshot` gets one of a worker's cache, if there is one; it is asked again while that does not help."""

    def __init__(self, placement: Placement, clock: Callable[[], float], want_snapshot: Callable[[WorkerId], None]) -> None:
        self.surprises = 0
        self._placement = placement
        self._clock = clock
        self._want_snapshot = want_snapshot
        self._want_at_s = clock()

    def step(self) -> bool:
        """Whether there is more to do. A surprise with what others told is counted and logged: it must not end the router."""
        try:
            now_s = self._clock()
            if now_s >= self._want_at_s:
                self._want_at_s = now_s + WANT_S
                for worker in self._placement.cache_truth.wanted():
                    self._want_snapshot(worker)
            return self._placement.catch_up(now_s)
        except Exception:
            self.surprises += 1
            log.exception("surprise while taking in what sidecars told")
            return False

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            is_busy = self.step()
            pause_s = CATCH_UP_S if self._placement.cache_truth.special else REST_S
            await asyncio.sleep(0 if is_busy else pause_s)
