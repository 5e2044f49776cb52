"""Threads that tokenise for the event loop, a slice at a time, what a choice waits for before what may come later."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol


class Job(Protocol):
    """A prompt being tokenised. All methods but the slice itself run on the event loop."""

    def next_slice(self) -> Callable[[], list[bytes]] | None:
        """Work for a thread, of 10 ms or so; None if there is nothing left to do or nobody wants it any more."""

    def take(self, encoded: list[bytes] | None) -> None:
        """The slice's result, None if it failed. The job offers itself again if more is to be done."""


class EncodeLanes:
    """Two queues before a few threads. Each slice goes back over the loop, so an urgent job waits for one slice at most."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        self._urgent: deque[Job] = deque()
        self._later: deque[Job] = deque()
        self._running = 0
        self._closed = False

    def offer(self, job: Job, *, urgent: bool, again: bool = False) -> None:
        """`again`: the job has just had a slice and goes on before others of its lane, so that begun ones get done."""
        if self._closed:
            return
        lane = self._urgent if urgent else self._later
        if again:
            lane.appendleft(job)
        else:
            lane.append(job)
        self._pump()

    def close(self) -> None:
        """Forgets what is queued; a slice being worked on ends by itself."""
        self._closed = True
        self._urgent.clear()
        self._later.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _pump(self) -> None:
        while self._running < self._threads and (self._urgent or self._later):
            job = (self._urgent or self._later).popleft()
            work = job.next_slice()
            if work is None:
                continue
            self._running += 1
            future = asyncio.get_running_loop().run_in_executor(self._executor, work)
            future.add_done_callback(partial(self._done, job))

    def _done(self, job: Job, done: "asyncio.Future[list[bytes]]") -> None:
        self._running -= 1
        failed = done.cancelled() or done.exception() is not None
        job.take(None if failed else done.result())
        if not self._closed:
            self._pump()
