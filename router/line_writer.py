"""A bounded queue of log lines and the one thread that writes them to a file descriptor.

The thread that logs only appends to a deque: a full pipe, a slow disk or a closed terminal stalls the writing
thread and never the event loop. Lines beyond the bound are dropped and counted. The descriptor is written without
Python's buffered streams, whose lock would hang interpreter shutdown while a thread is stuck in a full pipe.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Entry = TypeVar("Entry")
BATCH_LINES = 512  # of one system call


class LineWriter(Generic[Entry]):
    """`render` turns entries into finished lines on the writing thread; an entry it fails on counts as dropped.

    `write` may be called from any thread, `on_drop(n)` runs on the threads that call `write` and `close`.
    Lines are written `delay_s` after the first of a batch, sooner when half of `max_lines` wait.
    """

    def __init__(
        self,
        fd: int,
        render: Callable[[Entry], bytes],
        max_lines: int,
        on_drop: Callable[[int], None],
        delay_s: float = 0.0,
        name: str = "log",
    ) -> None:
        self._fd = fd
        self._render = render
        self._max_lines = max_lines
        self._hurry_at = max(1, max_lines // 2)
        self._on_drop = on_drop
        self._delay_s = delay_s
        self._waiting: deque[Entry] = deque()
        self._lost: deque[int] = deque()  # counts from the writing thread, for `on_drop`
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._writing = 0  # lines of the write under way
        self._closing = False
        self._failed = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Lines not yet written."""
        return len(self._waiting)

    @property
    def failure(self) -> str:
        """Why the last write failed, empty while writing works."""
        return self._failed

    def write(self, entry: Entry) -> None:
        """Never blocks, 0.3 µs; beyond the bound, and after `close`, the line is dropped."""
        waiting = len(self._waiting)
        if self._lost:
            self._report_lost()
        if waiting >= self._max_lines or self._closing:
            self._on_drop(1)
            return
        self._waiting.append(entry)
        if not self._wake.is_set():
            self._wake.set()
        if waiting >= self._hurry_at and not self._hurry.is_set():
            self._hurry.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what waits, for at most `timeout_s`; what is left then, a stuck write too, counts as dropped.

        Safe to call twice.
        """
        self._closing = True
        self._hurry.set()
        self._wake.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._count_lost(len(self._waiting) + self._writing)
            self._waiting.clear()
            self._writing = 0
        self._report_lost()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            if self._delay_s and not self._closing:
                self._hurry.wait(self._delay_s)
            self._wake.clear()  # before taking: an append after this sets it again
            self._hurry.clear()
            while self._waiting:
                lines = self._take()
                self._writing = len(lines)
                self._write_all(b"".join(lines), len(lines))
                self._writing = 0
            if self._closing and not self._waiting:
                return

    def _take(self) -> list[bytes]:
        lines: list[bytes] = []
        broken = 0
        for _ in range(min(len(self._waiting), BATCH_LINES)):
            try:
                entry = self._waiting.popleft()
            except IndexError:  # `close` gave up and emptied the queue
                break
            try:
                lines.append(self._render(entry))
            except Exception:  # one odd entry must not end logging
                broken += 1
        self._count_lost(broken)
        return lines

    def _write_all(self, data: bytes, count: int) -> None:
        view = memoryview(data)
        ready = select.poll()
        ready.register(self._fd, select.POLLOUT)
        try:
            while view:
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:  # the descriptor was made non-blocking by whom we share it with
                    ready.poll(1000)
            self._failed = ""
        except OSError as error:
            self._failed = error.strerror or str(error)
            self._count_lost(count)

    def _count_lost(self, count: int) -> None:
        if count:
            self._lost.append(count)

    def _report_lost(self) -> None:
        for count in drain(self._lost):
            self._on_drop(count)


def drain(counts: deque[int]) -> Iterable[int]:
    """Empties a deque that another thread may append to."""
    while counts:
        yield counts.popleft()
