"""Changes of one worker's cache as numbered deltas of bounded size, and its whole as a snapshot. Pure."""

from array import array
from collections.abc import Callable, Iterator

from router.core.cache_delta import CacheChange, CacheDelta, CacheSnapshot, Cleared, Removed, Stored
from router.core.types import WorkerId

MAX_DELTA_KEYS = 16_384  # 128 KB: what is passed on in one piece must not hold up other things for long


class DeltaLog:
    """Numbers count from 1 within a generation. Nothing is told before the generation has a name."""

    def __init__(self, worker: WorkerId, publish: Callable[[CacheDelta], None]) -> None:
        self.generation = ""
        self._worker = worker
        self._publish = publish
        self._seq = 0

    def rename(self, generation: str, runs: tuple[Stored, ...]) -> None:
        """A new generation, in which these runs are cached already."""
        self.generation = generation
        self._seq = 0
        self.write(runs)

    def write(self, changes: tuple[CacheChange, ...]) -> None:
        if self.generation:
            for part in parted(changes):
                self._seq += 1
                self._publish(CacheDelta(self._worker, self.generation, self._seq, part))

    def snapshot(self, runs: tuple[Stored, ...]) -> CacheSnapshot | None:
        """What is cached after the last delta; None before the generation has a name."""
        return CacheSnapshot(self._worker, self.generation, self._seq, runs) if self.generation else None


def parted(changes: tuple[CacheChange, ...]) -> Iterator[tuple[CacheChange, ...]]:
    """The same changes in the same order, with at most MAX_DELTA_KEYS keys in each part."""
    part: list[CacheChange] = []
    room = MAX_DELTA_KEYS
    for change in changes:
        for piece in pieces(change, room):
            size = 0 if isinstance(piece, Cleared) else len(piece.keys)
            if size > room:
                yield tuple(part)
                part, room = [], MAX_DELTA_KEYS
            part.append(piece)
            room -= size
    if part:
        yield tuple(part)


def pieces(change: CacheChange, room: int) -> Iterator[CacheChange]:
    """The change whole where it fits into a delta, else cut: first to the room that is left, then to full size."""
    if isinstance(change, Cleared) or len(change.keys) <= MAX_DELTA_KEYS:
        yield change
        return
    begin, size = 0, room or MAX_DELTA_KEYS
    while begin < len(change.keys):
        keys: array[int] = change.keys[begin : begin + size]
        if isinstance(change, Removed):
            yield Removed(keys)
        else:
            yield Stored(change.keys[begin - 1] if begin else change.parent, keys, change.tier)
        begin, size = begin + size, MAX_DELTA_KEYS
