"""Changes of a published cache, in order, with neighbours merged. Pure."""

from array import array

from router.core.cache_delta import CacheChange, Cleared, Removed, Stored, Tier

TIERS = tuple(Tier)  # fastest first; a tier is named by its place here


class ChangeList:
    """Takes over the arrays that it is given. A run that goes on where the one before ended becomes part of it."""

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        self._changes: list[CacheChange] = []

    def __bool__(self) -> bool:
        return bool(self._changes)

    def stored(self, parent: int | None, keys: "array[int]", tier: int) -> None:
        last = self._changes[-1] if self._changes else None
        if isinstance(last, Stored) and last.tier is TIERS[tier] and last.keys[-1] == parent:
            last.keys.extend(keys)
        else:
            self._changes.append(Stored(parent, keys, TIERS[tier]))

    def removed(self, keys: "array[int]") -> None:
        last = self._changes[-1] if self._changes else None
        if isinstance(last, Removed):
            last.keys.extend(keys)
        else:
            self._changes.append(Removed(keys))

    def cleared(self) -> None:
        """What was there before it need not be told any more."""
        self._changes = [Cleared()]

    def take(self) -> tuple[CacheChange, ...]:
        changes, self._changes = tuple(self._changes), []
        return changes
