"""Which worker served a client's session last: a hint, bounded in number and in size."""

from collections import OrderedDict

from router.core.types import WorkerId


class Sessions:
    """Session name → worker, the least recently used forgotten first.

    Names come from clients and may be long, so their 64-bit hashes are kept; one hint in 2^64 / `limit` is wrong.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._workers: OrderedDict[int, WorkerId] = OrderedDict()

    def __len__(self) -> int:
        return len(self._workers)

    def worker_of(self, session: str) -> WorkerId | None:
        return self._workers.get(hash(session))

    def note(self, session: str, worker: WorkerId) -> None:
        name = hash(session)
        self._workers[name] = worker
        self._workers.move_to_end(name)
        if len(self._workers) > self._limit:
            self._workers.popitem(last=False)
