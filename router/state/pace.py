"""How often a small thing may be done for what is new: at once, as long as that takes next to none of a core."""

import time
from collections.abc import Callable
from typing import Final

LEAST_S: Final = 0.01
FADE: Final = 0.2  # weight of the newest time in the mean
MOST_SAVED_S: Final = 5.0  # of its share of a core: so long a burst of news may take more than that


class Pace:
    """`began` and `ended` around each time it is done; what else this thread does meanwhile counts too."""

    def __init__(
        self,
        interval_s: float,
        core_share: float,
        cpu_clock: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`interval_s` is how often it is done when nothing is new; `core_share` of a core is what doing it may take."""
        self._interval_s = interval_s
        self._core_share = core_share
        self._most_saved_s = MOST_SAVED_S * core_share
        self._cpu_clock = cpu_clock
        self._clock = clock
        self._cost_s = 0.0  # mean CPU time
        self._began_s = 0.0
        self._saved_s = 0.0  # CPU time that the share had room for and that was not used; below 0: used in advance
        self._counted_s = clock()

    def began(self) -> None:
        self._began_s = self._cpu_clock()

    def ended(self) -> None:
        took_s = self._cpu_clock() - self._began_s
        self._cost_s += (took_s - self._cost_s) * FADE
        now_s = self._clock()
        share_s = (now_s - self._counted_s) * self._core_share
        saved_s = min(self._saved_s + share_s, self._most_saved_s) - took_s
        self._saved_s = max(saved_s, -self._most_saved_s)
        self._counted_s = now_s

    @property
    def soon_s(self) -> float:
        """The shortest pause before it may be done again."""
        if self._saved_s > self._cost_s:
            return LEAST_S
        return min(self._interval_s, max(LEAST_S, self._cost_s / self._core_share))
