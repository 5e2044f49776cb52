"""Listens to an engine's KV event stream and keeps the frames as they came; asks its replay socket."""

import queue
import struct
import threading
import time
from types import TracebackType
from typing import Self

import zmq

Frames = list[bytes]
QUIET_S = 0.6  # vLLM hands events to its socket up to a tenth of a second late
POLL_MS = 50
REPLAY_MS = 5000
END = b"\xff" * 8


class Tap:
    """Subscribed from the moment it is made. An engine that starts later, or again on the same address, is heard too.

    A thread of its own reads the socket all the time: ZeroMQ subscribes again after a reconnect only while it is used."""

    def __init__(self, events: str, replay: str | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._replay = replay
        self._arrived: queue.SimpleQueue[Frames] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(events,), daemon=True)
        self._reader.start()

    def heard(self, deadline_s: float = 5.0, quiet_s: float = QUIET_S) -> list[Frames]:
        """Everything that came since the last call, until nothing came for `quiet_s`; at most `deadline_s` long."""
        found: list[Frames] = []
        ends_at = time.monotonic() + deadline_s
        while (left_s := ends_at - time.monotonic()) > 0:
            try:
                found.append(self._arrived.get(timeout=min(quiet_s, left_s)))
            except queue.Empty:
                break
        return found

    def _read(self, events: str) -> None:
        with self._context.socket(zmq.SUB) as subscriber:
            subscriber.setsockopt(zmq.SUBSCRIBE, b"")
            subscriber.setsockopt(zmq.RECONNECT_IVL, 50)
            subscriber.connect(events)
            while not self._closing.is_set():
                if subscriber.poll(POLL_MS):
                    self._arrived.put(subscriber.recv_multipart())

    def replayed(self, start: int) -> list[Frames]:
        """What the replay socket answers to `start`, the end mark included. Raises TimeoutError when it falls
        silent without an end mark."""
        assert self._replay is not None, "made without a replay address"
        dealer = self._context.socket(zmq.DEALER)
        try:
            dealer.connect(self._replay)
            dealer.send_multipart([b"", struct.pack(">Q", start)])
            found: list[Frames] = []
            while dealer.poll(REPLAY_MS):
                found.append(dealer.recv_multipart())
                if END in found[-1]:
                    return found
            raise TimeoutError(f"no end mark from {self._replay} after {len(found)} batches")
        finally:
            dealer.close(0)

    def close(self) -> None:
        self._closing.set()
        self._reader.join()
        self._context.destroy(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
