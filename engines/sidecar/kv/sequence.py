"""The numbers of an engine's batches: what comes next, what was taken in before, what is missing, what is another life. Pure.

A publisher counts its batches from 0 and starts again when its engine does. A number that was taken in before is the same
batch only if its bytes are the same: so the last digests are kept. They also tell whether a replay comes from the same life.
"""

from array import array
from enum import Enum, auto


class Verdict(Enum):
    NEXT = auto()
    DUPLICATE = auto()
    GAP = auto()  # batches before it are missing
    RESTART = auto()  # it is of another life of the engine


class Sequence:
    """`remembered` is how far back a batch may come a second time: as many as can wait in queues."""

    __slots__ = ("_digests", "next")

    def __init__(self, remembered: int) -> None:
        self.next = 0
        self._digests = array("Q", bytes(8 * remembered))

    def begin(self, number: int = 0) -> None:
        """What comes next has this number, and nothing before it is known."""
        self.next = number
        self._digests = array("Q", bytes(8 * len(self._digests)))

    def offer(self, number: int, digest: int) -> Verdict:
        """What a batch of this number and digest is; NEXT takes it in."""
        if number == self.next:
            self._digests[number % len(self._digests)] = digest
            self.next += 1
            return Verdict.NEXT
        if number > self.next:
            return Verdict.GAP
        return Verdict.DUPLICATE if self.is_known(number, digest) else Verdict.RESTART

    def is_known(self, number: int, digest: int) -> bool:
        """Whether it was taken in, with these bytes, and is remembered."""
        size = len(self._digests)
        return self.next - size <= number < self.next and self._digests[number % size] == digest
