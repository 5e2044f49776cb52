"""A bounded queue of finished log lines and the one thread that writes them to a file descriptor.

The thread that logs only appends to a deque: a full pipe, a slow disk or a closed terminal stalls the writing
thread and never the event loop. Lines beyond the bound are dropped and counted. The descriptor is written without
Python's buffered streams, whose lock would hang interpreter shutdown while a thread is stuck in a full pipe.
"""

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterable


class LineWriter:
    """`write` and `close` are called by one thread at a time, and `on_drop(n)` runs on it."""

    def __init__(self, fd: int, max_lines: int, on_drop: Callable[[int], None], name: str = "log") -> None:
        self._fd = fd
        self._max_lines = max_lines
        self._on_drop = on_drop
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._taken = 0  # lines that went in
        self._done = 0  # lines that were written or lost; counted by the writing thread
        self._lost: deque[int] = deque()  # counts from the writing thread, for `on_drop`
        self._wake = threading.Event()
        self._closing = False
        self._failed = ""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Lines not yet written."""
        return self._taken - self._done

    @property
    def failure(self) -> str:
        """Why the last write failed, empty while writing works."""
        return self._failed

    def write(self, data: bytes, lines: int = 1) -> None:
        """Never blocks; what goes beyond the bound, or comes after `close`, is dropped whole."""
        if self._lost:
            self._report_lost()
        if self._taken - self._done + lines > self._max_lines or self._closing:
            self._on_drop(lines)
            return
        self._taken += lines
        self._waiting.append((data, lines))
        if not self._wake.is_set():
            self._wake.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what waits, for at most `timeout_s`; what is left then, a stuck write too, counts as dropped.

        Safe to call twice.
        """
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive() and self.waiting:
            self._waiting.clear()
            self._lost.append(self.waiting)
            self._done = self._taken
        self._report_lost()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()  # before taking: an append after this sets it again
            while self._waiting:
                try:
                    data, lines = self._waiting.popleft()
                except IndexError:  # `close` gave up and emptied the queue
                    break
                self._write_all(data, lines)
                self._done += lines
            if self._closing and not self._waiting:
                return

    def _write_all(self, data: bytes, lines: int) -> None:
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
            self._lost.append(lines)

    def _report_lost(self) -> None:
        for count in drain(self._lost):
            self._on_drop(count)


def drain(counts: deque[int]) -> Iterable[int]:
    """Empties a deque that another thread may append to."""
    while counts:
        yield counts.popleft()
