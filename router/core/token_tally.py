"""How often an engine counts a prompt's tokens otherwise than they were counted for its keys: a moving share per worker."""

from collections.abc import Container
from typing import Final

FADE: Final = 0.1  # weight of the newest prompt in a share: seven that differ in a row make a half
FORGOTTEN: Final = 0.01  # a share below it is none


class Difference:
    """Prompts of one worker that were counted differently. `here` and `there` are the counts of the latest of them."""

    __slots__ = ("here", "share", "there")

    def __init__(self) -> None:
        self.share = 0.0
        self.here = 0
        self.there = 0


class TokenTally:
    """Of the prompts of one model and shape. Workers whose counts were the same all along have no entry and cost nothing."""

    __slots__ = ("differences",)

    def __init__(self) -> None:
        self.differences: dict[str, Difference] = {}

    def note(self, worker: str, here: int, there: int) -> None:
        """One finished request: the tokens its keys were made from, and the engine's `usage.prompt_tokens`."""
        if here != there:
            found = self.differences.get(worker)
            if found is None:
                found = self.differences[worker] = Difference()
            found.share += (1.0 - found.share) * FADE
            found.here = here
            found.there = there
        elif self.differences:
            self._agreed(worker)

    def forget(self, worker: str) -> None:
        self.differences.pop(worker, None)

    def keep(self, workers: Container[str]) -> None:
        """Forgets all others: a request that outlives its worker counts for it once more."""
        for worker in list(self.differences):
            if worker not in workers:
                self.forget(worker)

    def _agreed(self, worker: str) -> None:
        found = self.differences.get(worker)
        if found is not None:
            found.share -= found.share * FADE
            if found.share < FORGOTTEN:
                self.forget(worker)
