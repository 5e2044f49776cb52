"""Recordings that go on: finished requests on their way from the request path to who records them, bounded on the way."""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from router.core.placement import Lease
from router.core.stats import Stats
from router.core.types import BLOCK_TOKENS, Usage
from router.errors import RouterError

MAX_RECORDINGS: Final = 2
SETTLE_S: Final = 1.0  # longest time that a request waits for the keys of its prompt's tail
ENTRY_BYTES: Final = 2048  # a lease with its decision and prices
KEY_BYTES: Final = array("Q").itemsize


class TooManyRecordings(RouterError):
    status, reason, type = 409, "too_many_recordings", "invalid_request_error"


class Finished(NamedTuple):
    """A request that is over. Its lease's prompt may still get longer: tails are keyed after dispatch."""

    lease: Lease
    usage: Usage | None
    ended_s: float
    size_bytes: int


class Recording:
    """What one listener has not taken yet, at most `max_bytes` of it; further requests are counted as dropped.

    Requests that were sent before `start_s` are left out: when the ones before them were sent is not known.
    """

    def __init__(self, max_bytes: int, start_s: float, stats: Stats) -> None:
        self.start_s = start_s
        self.dropped = 0
        self.waiting_bytes = 0
        self._max_bytes = max_bytes
        self._stats = stats
        self._waiting: deque[Finished] = deque()

    def add(self, lease: Lease, usage: Usage | None) -> None:
        if lease.sent_s < self.start_s:
            return
        decision, prompt = lease.decision, lease.prompt
        size_bytes = ENTRY_BYTES + KEY_BYTES * max(len(prompt.keys), prompt.prompt_tokens // BLOCK_TOKENS)
        if self.waiting_bytes + size_bytes > self._max_bytes:
            self.dropped += 1
            self._stats.recording_dropped += 1
            return
        self.waiting_bytes += size_bytes
        self._waiting.append(Finished(lease, usage, lease.sent_s + (decision.duration_s or 0.0), size_bytes))

    def take(self, now_s: float) -> Finished | None:
        """The next in order of ending; None while there is none, or its keys may still be coming."""
        waiting = self._waiting
        if not waiting:
            return None
        finished = waiting[0]
        if not finished.lease.prompt.complete and now_s - finished.ended_s < SETTLE_S:
            return None
        self.waiting_bytes -= finished.size_bytes
        return waiting.popleft()


class Recordings:
    """All that go on, `MAX_RECORDINGS` at most. Nobody records, nothing is noted: `listen` tells the request path."""

    def __init__(self, max_bytes: int, stats: Stats, clock: Callable[[], float], listen: Callable[[bool], None]) -> None:
        self.closing = asyncio.Event()  # set: the router ends, and recordings with it
        self.clock = clock
        self._max_bytes = max_bytes
        self._stats = stats
        self._listen = listen
        self._open: list[Recording] = []

    def note(self, lease: Lease, usage: Usage | None) -> None:
        for recording in self._open:
            recording.add(lease, usage)

    def waiting_bytes(self) -> int:
        """Of the recording that has most."""
        return max((recording.waiting_bytes for recording in self._open), default=0)

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """One more, from now on. Its memory is free again afterwards. Raises TooManyRecordings."""
        if len(self._open) >= MAX_RECORDINGS:
            raise TooManyRecordings(f"{MAX_RECORDINGS} recordings go on already; end one of them")
        recording = Recording(self._max_bytes, self.clock(), self._stats)
        self._open.append(recording)
        self._changed()
        try:
            yield recording
        finally:
            self._open.remove(recording)
            self._changed()

    def _changed(self) -> None:
        self._stats.recordings = len(self._open)
        self._listen(bool(self._open))
