"""An engine's event publisher for tests, over real sockets.

It speaks as vLLM 0.32's ZmqEventPublisher does (distributed/kv_events.py): PUB frames topic, 8-byte big-endian number from 0,
msgpack payload `[ts, [events], rank]` with events as maps; a ROUTER answers `[empty, first number]` with `[empty, topic,
number, payload]` for each batch in its buffer from that number on and `[empty, empty, ff×8, empty]` at the end. Releases
before it, and SGLang's, left the topic out of replies: `old`. SGLang 0.5.23 sends the same frames.
"""

import threading
import time
from collections import deque
from types import TracebackType
from typing import Any, Self

import msgpack
import zmq

from tests.engines.sidecar.kv.naive_cache import Block

END = b"\xff" * 8


class EnginePublisher:
    """`publish` sends from the test's own thread; replay is answered by another, as engines do it beside their work."""

    def __init__(self, topic: str = "", buffer_steps: int = 10_000, rank: int | None = 0, *, old: bool = False) -> None:
        self.topic = topic.encode()
        self.rank = rank
        self.old = old
        self.answers = True  # whether replay requests are answered
        self.leaves_out: set[int] = set()  # numbers that the next reply lacks, as when its peer reads too slowly
        self.end: list[bytes] | None = None  # in place of the end mark
        self.requests: list[int] = []
        self.events = self.replay = "tcp://127.0.0.1:*"
        self._buffer_steps = buffer_steps
        self._open()

    def _open(self) -> None:
        self.number = 0
        self._context = zmq.Context()
        self._lock = threading.Lock()
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=self._buffer_steps)
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        for socket in (self._pub, self._router):
            socket.setsockopt(zmq.LINGER, 0)
        self._pub.bind(self.events)
        self._router.bind(self.replay)
        self.events = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._answer, args=(self._router, self._stop))
        self._thread.start()

    def _close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._pub.close()
        self._router.close()
        self._context.term()  # waits until the addresses are free

    def restart(self) -> None:
        """Another life on the same addresses: nothing remembered, numbers from 0."""
        self._close()
        self._open()

    def publish(self, *events: Any, lost: bool = False, stamp: float | None = None) -> int:
        """Sends a batch, or only remembers it where it gets `lost` on the way; its number."""
        payload = msgpack.packb([time.time() if stamp is None else stamp, list(events), self.rank])
        return self.publish_bytes(payload, lost=lost)

    def publish_bytes(self, payload: bytes, *, lost: bool = False, remembered: bool = True) -> int:
        number = self.number
        self.number += 1
        if remembered:
            with self._lock:
                self._buffer.append((number, payload))
        if not lost:
            self._pub.send_multipart([self.topic, number.to_bytes(8, "big"), payload])
        return number

    def send_raw(self, *frames: bytes) -> None:
        self._pub.send_multipart(frames)

    def _answer(self, router: "zmq.Socket[bytes]", stop: threading.Event) -> None:
        while not stop.is_set():
            if not router.poll(10):
                continue
            client, _, start = router.recv_multipart()
            first = int.from_bytes(start, "big")
            self.requests.append(first)
            if not self.answers:
                continue
            topic = [] if self.old else [self.topic]
            with self._lock:
                for number, payload in self._buffer:
                    if number >= first and number not in self.leaves_out:
                        router.send_multipart([client, b"", *topic, number.to_bytes(8, "big"), payload])
            self.leaves_out = set()
            router.send_multipart([client, *(self.end or [b"", *([] if self.old else [b""]), END, b""])])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()


def stored_map(blocks: list[Block], **more: Any) -> dict[str, Any]:
    """The event of a chain of blocks as vLLM 0.32 sends it."""
    first = blocks[0]
    salt = first.salt if first.before is None else None
    return {
        "type": "BlockStored",
        "block_hashes": [block.id for block in blocks],
        "parent_block_hash": None if first.before is None else first.before.id,
        "token_ids": [token for block in blocks for token in block.tokens],
        "block_size": len(first.tokens),
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [[salt] if salt else None] + [None] * (len(blocks) - 1),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        **more,
    }


def removed_map(block: Block, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [block.id], "medium": "GPU", "group_idx": 0, **more}


CLEARED = {"type": "AllBlocksCleared"}
