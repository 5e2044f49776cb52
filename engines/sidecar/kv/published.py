"""The keys that routers are told of, each told when its first holder comes and taken back with its last. Pure.

Several engine blocks may hold one key: blocks of 32 tokens that part in their second half share the key of the first;
engines also hash things that no event tells. Then each key is counted, which takes 90 bytes; where blocks are as large as
those of keys and nothing is hidden, a key has one holder and nothing is kept here.
"""

from array import array
from collections.abc import Iterable

from engines.sidecar.kv.changes import ChangeList

COUNT_BITS = 20  # holders of a key in one tier
COUNT_MASK = (1 << COUNT_BITS) - 1
ONE = (1, 1 << COUNT_BITS, 1 << 2 * COUNT_BITS)  # one holder, by tier


class Published:
    """Counts are packed, one for each tier in an int: nearly all keys have one holder and share three such ints."""

    __slots__ = ("_counts", "changes", "keys")

    def __init__(self) -> None:
        self.keys = 0
        self.changes = ChangeList()
        self._counts: dict[int, int] | None = None

    @property
    def counts(self) -> bool:
        """Whether a key may have several holders."""
        return self._counts is not None

    def count(self, holders: Iterable[tuple["array[int]", int]]) -> None:
        """From now on keys may have several holders; `holders` are the runs of keys, with tiers, that were added so far."""
        self._counts = {}
        for keys, tier in holders:
            self._counts.update(dict.fromkeys(keys, ONE[tier]))

    def clear(self, *, count: bool) -> None:
        if self.keys:
            self.changes.cleared()
        self.keys = 0
        self._counts = {} if count else None

    def add(self, parent: int | None, keys: "array[int]", tier: int) -> None:
        """One more holder for a run of keys behind `parent`, which is told already. Takes over the array."""
        counts, one = self._counts, ONE[tier]
        if counts is None or counts.keys().isdisjoint(keys):
            if counts is not None:
                counts.update(dict.fromkeys(keys, one))
            self.keys += len(keys)
            self.changes.stored(parent, keys, tier)
            return
        for key in keys:
            before = counts.get(key, 0)
            counts[key] = before + one
            self.keys += not before
            if not before or best_tier(before) > tier:
                self.changes.stored(parent, array("Q", (key,)), tier)
            parent = key

    def drop(self, parent: int | None, keys: "array[int]", tier: int) -> None:
        """One holder less for a run of keys; nothing that is told comes behind it. Takes over the array."""
        counts, one = self._counts, ONE[tier]
        found = [one] if counts is None else [counts.pop(key) for key in keys]
        if counts is None or found.count(one) == len(found):
            self.keys -= len(keys)
            keys.reverse()  # from the end, so that a part of the removal leaves no hole either
            self.changes.removed(keys)
            return
        for index in range(len(keys) - 1, -1, -1):
            key, left = keys[index], found[index] - one
            if not left:
                self.keys -= 1
                self.changes.removed(array("Q", (key,)))
                continue
            counts[key] = left
            now = best_tier(left)
            if now > tier:
                self.changes.stored(keys[index - 1] if index else parent, array("Q", (key,)), now)

    def move(self, parent: int | None, keys: "array[int]", before: int, now: int) -> None:
        """A holder of these keys has its copy in another tier. Takes over the array."""
        counts = self._counts
        if counts is None:
            if keys:
                self.changes.stored(parent, keys, now)
            return
        for key in keys:
            count = counts[key]
            counts[key] = moved = count - ONE[before] + ONE[now]
            if best_tier(count) != best_tier(moved):
                self.changes.stored(parent, array("Q", (key,)), best_tier(moved))
            parent = key

    def list_run(self, parent: int | None, keys: "array[int]", tier: int, into: ChangeList, seen: set[int]) -> None:
        """The run as it stands, for a snapshot; `seen` are keys of several holders that are in it. Takes over the array."""
        counts, one = self._counts, ONE[tier]
        if counts is None or all(counts[key] == one for key in keys):
            into.stored(parent, keys, tier)
            return
        for key in keys:
            if key not in seen:
                into.stored(parent, array("Q", (key,)), best_tier(counts[key]))
                if counts[key] not in ONE:
                    seen.add(key)
            parent = key


def best_tier(count: int) -> int:
    """The fastest tier of a packed count that is not 0."""
    if count & COUNT_MASK:
        return 0
    return 1 if count >> COUNT_BITS & COUNT_MASK else 2
