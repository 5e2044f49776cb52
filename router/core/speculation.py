"""Blocks that were sent to a worker but are not in its cache events yet: believed for a while, until the events have them.

Siblings of a prompt that is on its way would otherwise scatter (user-pain P6). The blocks stand in the worker's model in
the prefix index. A request's own go again as soon as an event stores the last of them, or `keep_s` after it was sent; while
it still waits for its first token by then, they stay for another `keep_s`. One that failed lets go of its own blocks at
once, but it may have touched those of others, which go with the last who did.
"""

from array import array
from collections import deque
from typing import Final

from router.core.load import Lease
from router.core.prefix_index import PrefixIndex

MAX_EXPIRED: Final = 64  # leases looked at in one call: a choice must not pay for all that ended in a quiet time


class Speculation:
    """What is awaited of whom. As many entries as requests were sent in the last `keep_s` and are still in flight."""

    def __init__(self, index: PrefixIndex, keep_s: float) -> None:
        self._index = index
        self._keep_s = keep_s
        self._awaited: dict[int, dict[int, Lease]] = {}  # slot → key of the last block → the latest lease with it
        self._due: deque[tuple[float, Lease]] = deque()

    def __len__(self) -> int:
        return len(self._due)

    def believe(self, lease: Lease, key: int, now_s: float) -> None:
        """The lease's blocks are in the worker's model now; `key` is the last that the engine will store."""
        if lease.awaited_key is None:
            self._due.append((now_s + self._keep_s, lease))
        else:
            self._withdraw(lease)
        lease.awaited_key = key
        lease.awaited_life = lease.worker.life
        self._awaited.setdefault(lease.worker.slot, {})[key] = lease

    def stored(self, slot: int, keys: "array[int]") -> None:
        """The worker's events have these blocks now."""
        awaited = self._awaited.get(slot)
        if awaited:
            for key in keys:
                lease = awaited.get(key)
                if lease is not None:
                    lease.worker.load.computed(lease)
                    self._drop(lease)

    def forget(self, slot: int) -> None:
        """The worker's model is emptied, or is a history from now on."""
        for lease in self._awaited.pop(slot, {}).values():
            lease.awaited_key = None

    def expire(self, now_s: float) -> bool:
        """Drops what is due, some at a time. Whether there is more."""
        due = self._due
        for _ in range(MAX_EXPIRED):
            if not due or due[0][0] > now_s:
                return False
            lease = due.popleft()[1]
            if lease.awaited_key is None:
                continue
            if lease in lease.worker.load.pending:
                due.append((now_s + self._keep_s, lease))
            else:
                self._drop(lease)
        return True

    def _drop(self, lease: Lease) -> None:
        """Takes the lease's own blocks out of the model; those that later requests share stay for them."""
        self._withdraw(lease)
        lease.awaited_key = None
        if lease.awaited_life == lease.worker.life and lease.inserted_s is not None:
            self._index.drop(lease.worker.slot, lease.prompt.keys, 0, lease.inserted_s)

    def _withdraw(self, lease: Lease) -> None:
        awaited = self._awaited.get(lease.worker.slot, {})
        if lease.awaited_key is not None and awaited.get(lease.awaited_key) is lease:
            del awaited[lease.awaited_key]
