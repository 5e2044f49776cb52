"""Whatever comes on an engine's event socket: nothing is raised, what is told keeps the rules, others' caches stay right."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import msgpack
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.sidecar.kv.mirror import CacheMirror
from engines.sidecar.kv.sources import EventSource
from engines.sidecar.kv.stream import EventStream
from engines.sidecar.kv.wire import END_OF_REPLAY
from router.core.cache_delta import CacheDelta
from router.core.types import WorkerId
from router.settings import EventSettings
from tests.core.builders import chain
from tests.core.test_cache_truth import World, pairs, stored
from tests.engines.sidecar.kv.naive_cache import MODEL, StrictRouter, make_blocks
from tests.engines.sidecar.kv.publisher import CLEARED, removed_map, stored_map

LIMITS = EventSettings(max_event_blocks=1024, max_orphan_blocks=16, max_waiting_events=16, replay_timeout_s=0.05)
BLOCKS = make_blocks(16, 8)
OTHER = make_blocks(16, 8, first=5000, before=BLOCKS[2])
EVENTS = [
    stored_map(BLOCKS[:4]),
    stored_map(BLOCKS[4:]),
    stored_map(OTHER[:3]),
    stored_map(OTHER[5:]),
    removed_map(BLOCKS[3]),
    removed_map(BLOCKS[0]),
    removed_map(OTHER[1]),
    CLEARED,
]
PAYLOADS = [msgpack.packb([1.0, batch, 0]) for batch in ([event] for event in EVENTS)] + [msgpack.packb([1.0, EVENTS, 0])]


class Engine:
    """A stream into the mirror of worker 1 of two; what it tells goes to the router's index too."""

    def __init__(self, replay: str | None = None) -> None:
        self.world = World(count=2)
        self.world.tell(0, stored(range(9)))
        self.told = StrictRouter()
        self.generation = ""
        self.lives = 0
        self.mirror = CacheMirror(
            WorkerId(self.world.workers[1].id), None, LIMITS, self._publish, self._restarted, lambda: None
        )
        self.mirror.begin(MODEL)
        self.mirror.rename("g1")
        self.stream = EventStream(EventSource("tcp://127.0.0.1:1", replay), LIMITS, self.mirror)

    def _restarted(self) -> None:
        self.lives += 1
        self.mirror.rename(f"g1+{self.lives}")

    def _publish(self, delta: CacheDelta) -> None:
        if delta.generation != self.generation:
            self.generation, self.told = delta.generation, StrictRouter()
        self.told.apply(delta.changes)
        self.world.truth.delta(delta)

    async def take(self, messages: list[list[bytes]]) -> None:
        for frames in messages:
            await self.stream._take_live(frames)
            self.mirror.flush()
        self.check()

    def check(self) -> None:
        snapshot = self.mirror.snapshot()
        assert snapshot is not None
        if snapshot.generation == self.generation:
            assert {key for run in snapshot.runs for key in run.keys} == self.told.keys.keys()
        self.world.caught_up()
        assert pairs(self.world.truth.events.levels(chain(range(12)), 0b1)) == [(9, 0b1)]
        assert self.world.truth.feed.in_sync(self.world.workers[0].id)


def cut(data: bytes, place: int) -> bytes:
    return data[: place % (len(data) + 1)]


def flipped(data: bytes, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[bit // 8 % len(damaged)] ^= 1 << bit % 8
    return bytes(damaged)


PAYLOAD = st.sampled_from(PAYLOADS)
NUMBER = (st.integers(0, 20) | st.integers(0, 2**64 - 1)).map(lambda number: number.to_bytes(8, "big"))
BODY = st.one_of(
    PAYLOAD,
    st.builds(cut, PAYLOAD, st.integers(0, 5000)),
    st.builds(flipped, PAYLOAD, st.integers(0, 50_000)),
    st.binary(max_size=60),
)
FRAMES = st.one_of(
    st.tuples(st.just(b""), NUMBER, BODY).map(list),
    st.lists(st.binary(max_size=12), max_size=5),
    st.tuples(st.binary(max_size=4), st.binary(max_size=9), BODY).map(list),
)


@settings(max_examples=200, deadline=None)
@given(messages=st.lists(FRAMES, max_size=25))
def test_live_frames(messages: list[list[bytes]]) -> None:
    """Random, truncated and damaged messages, in any order and under any number."""
    asyncio.run(Engine().take(messages))


@settings(max_examples=100, deadline=None)
@given(bodies=st.lists(BODY, max_size=25))
def test_payloads_in_order(bodies: list[bytes]) -> None:
    """Under the numbers that are due, so that each is taken in."""
    asyncio.run(Engine().take([[b"", number.to_bytes(8, "big"), body] for number, body in enumerate(bodies)]))


@contextlib.contextmanager
def answering(rng: Random) -> Iterator[str]:
    """The address of a replay endpoint that answers each request with anything."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.bind("tcp://127.0.0.1:*")
        stop = threading.Event()

        def answer() -> None:
            while not stop.is_set():
                if router.poll(5):
                    client, *_ = router.recv_multipart()
                    for frames in anything(rng):
                        router.send_multipart([client, *frames])

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield router.getsockopt_string(zmq.LAST_ENDPOINT)
        finally:
            stop.set()
            thread.join()


def anything(rng: Random) -> list[list[bytes]]:
    """Answers to one request for replay: right ones, damaged ones, and what is none; mostly with an end."""
    answers: list[list[bytes]] = []
    number = rng.choice((0, 0, 0, rng.randrange(9), rng.getrandbits(64)))
    for _ in range(rng.randrange(8)):
        payload = rng.choice(PAYLOADS)
        body = rng.choice((payload, payload, cut(payload, rng.randrange(5000)), flipped(payload, rng.randrange(50_000))))
        topic = rng.choice(([], [b""], [b"kv"]))
        answers.append([b"", *topic, min(number, 2**64 - 1).to_bytes(8, "big"), body])
        number += rng.choice((1, 1, 1, 1, 0, 3))
    if rng.random() < 0.3:
        frames: list[Any] = [rng.randbytes(rng.randrange(12)) for _ in range(rng.randrange(1, 6))]
        answers.insert(rng.randrange(len(answers) + 1), frames)
    if rng.random() < 0.8:
        answers.append([b"", b"", END_OF_REPLAY, b""])
    return answers


async def catch_up_through(endpoint: str, rng: Random) -> None:
    engine = Engine(endpoint)
    await engine.stream._begin()
    engine.mirror.flush()
    engine.check()
    for _ in range(3):
        number = engine.stream._sequence.next + rng.randrange(3)
        await engine.take([[b"", min(number, 2**64 - 2).to_bytes(8, "big"), rng.choice(PAYLOADS)]])


def test_answers_to_requests_for_replay() -> None:
    """They come from another socket, and may be anything too, or nothing within the time for them."""
    for seed in range(25):
        rng = random.Random(seed)
        with answering(rng) as endpoint:
            try:
                asyncio.run(catch_up_through(endpoint, rng))
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
