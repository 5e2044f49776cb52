"""The KV event stream of a busy engine, without the engine: a process that publishes as vLLM 0.32 does.

Run alone: `python -m loadtest.pool.event_engine --blocks-per-s 3000`. The first line on standard output is JSON with the
addresses of events and replay. Each step of the engine is one batch: the removal, block by block, of what is evicted, the
blocks of a prompt, and one block of each of the sequences that are decoded.
"""

import argparse
import json
import random
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgpack
import zmq

STEPS_PER_S: Final = 10  # of an engine that computes 48,000 tokens a second, in steps of some 5,000
BLOCK_TOKENS: Final = 16
VOCABULARY: Final = 128_000
DECODED: Final = 20  # sequences, each of which fills a block in each step
END: Final = b"\xff" * 8
KEPT_STEPS: Final = 10_000  # that can be replayed, vLLM's default


class BusyEngine:
    """Takes in `blocks` blocks in each step; once its cache is full, as many of those that were freed first are evicted.

    A sequence lives for DECODED steps and then frees its blocks, the last one first, as vLLM does.
    """

    def __init__(self, blocks: int, capacity: int, rng: random.Random) -> None:
        self._blocks = blocks
        self._capacity = capacity
        self._rng = rng
        self._cached = 0
        self._free: deque[int] = deque()  # the next to be evicted first
        self._live: deque[list[int]] = deque()

    def step(self) -> list[dict[str, Any]]:
        """The events of one step."""
        evicted = self._evicted()
        decoded = [self._stored(sequence, 1) for sequence in list(self._live)[: self._blocks // 2]]
        prompt: list[int] = []
        events = [self._stored(prompt, self._blocks - len(decoded)), *decoded]
        self._live.append(prompt)
        if len(self._live) > DECODED:
            self._free.extend(reversed(self._live.popleft()))
        return [*evicted, *events]

    def _stored(self, sequence: list[int], count: int) -> dict[str, Any]:
        """Further blocks of a sequence."""
        parent = sequence[-1] if sequence else None
        hashes = [self._rng.getrandbits(64) for _ in range(count)]
        sequence += hashes
        self._cached += count
        return {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": [self._rng.randrange(VOCABULARY) for _ in range(count * BLOCK_TOKENS)],
            "block_size": BLOCK_TOKENS,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * count,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }

    def _evicted(self) -> list[dict[str, Any]]:
        """One event a block."""
        count = min(max(self._cached - self._capacity, 0), len(self._free))
        self._cached -= count
        gone = [self._free.popleft() for _ in range(count)]
        return [{"type": "BlockRemoved", "block_hashes": [block], "medium": "GPU", "group_idx": 0} for block in gone]


def replay(router: "zmq.Socket[bytes]", kept: deque[tuple[int, bytes]]) -> None:
    """Answers those that ask for what was before."""
    while router.poll(0):
        client, _, start = router.recv_multipart()
        for number, payload in kept:
            if number >= int.from_bytes(start, "big"):
                router.send_multipart([client, b"", b"", number.to_bytes(8, "big"), payload])
        router.send_multipart([client, b"", b"", END, b""])


def publish(blocks_per_s: int, capacity: int) -> None:
    """Until it is ended."""
    context = zmq.Context()
    pub, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    pub.set_hwm(KEPT_STEPS)
    router.set_hwm(KEPT_STEPS)
    addresses = {}
    for name, socket in (("events", pub), ("replay", router)):
        socket.bind("tcp://127.0.0.1:*")
        addresses[name] = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    print(json.dumps(addresses), flush=True)
    engine = BusyEngine(max(blocks_per_s // STEPS_PER_S, 1), capacity, random.Random(1))
    kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT_STEPS)
    began_s = time.monotonic()
    number = 0
    while True:
        payload = msgpack.packb([time.time(), engine.step(), 0])
        kept.append((number, payload))
        pub.send_multipart([b"", number.to_bytes(8, "big"), payload])
        number += 1
        while (left_s := began_s + number / STEPS_PER_S - time.monotonic()) > 0:
            router.poll(round(left_s * 1e3))
            replay(router, kept)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.pool.event_engine", description=__doc__.split("\n\n")[0])
    parser.add_argument("--blocks-per-s", type=int, default=3000)
    parser.add_argument("--capacity", type=int, default=16_384, help="cached blocks; further ones drive out the oldest")
    arguments = parser.parse_args(argv)
    publish(arguments.blocks_per_s, arguments.capacity)
    return 0


if __name__ == "__main__":
    sys.exit(main())
