"""engines.sidecar.kv.stream: every batch once and in order, over real sockets, whatever gets lost on the way."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from random import Random
from typing import Any

import msgpack
import pytest

from engines.launch import free_port
from engines.sidecar.kv.socket import Endpoint
from engines.sidecar.kv.sources import EventSource
from engines.sidecar.kv.stream import EventStream
from router.settings import EventSettings
from tests.engines.sidecar.kv.publisher import EnginePublisher

LIMITS = EventSettings(replay_timeout_s=0.3, event_check_s=0.2, max_waiting_events=1000)
QUIET = replace(LIMITS, event_check_s=60.0)


class Diary:
    """A sink that writes down what it is told: the first event of each batch, and the rest by name."""

    def __init__(self) -> None:
        self.news: list[Any] = []
        self.flushes = 0
        self.told = asyncio.Event()

    def _add(self, news: Any) -> None:
        self.news.append(news)
        self.told.set()

    def batch(self, payload: bytes) -> None:
        self._add(msgpack.unpackb(payload)[1][0])

    def flush(self) -> None:
        self.flushes += 1

    def fresh(self) -> None:
        self._add("fresh")

    def lost(self, reason: str) -> None:
        self._add(f"lost: {reason}")

    def restarted(self) -> None:
        self._add("restarted")

    async def until(self, holds: Callable[[list[Any]], bool]) -> list[Any]:
        async with asyncio.timeout(5):
            while not holds(self.news):
                self.told.clear()
                await self.told.wait()
        return self.news

    async def has(self, *news: Any) -> None:
        """Waits until exactly this was told."""
        with suppress(TimeoutError):
            await self.until(lambda told: len(told) >= len(news))
            await asyncio.sleep(0.02)
        assert self.news == list(news)


@asynccontextmanager
async def following(
    publisher: EnginePublisher, limits: EventSettings = QUIET, *, replay: bool = True, topic: str = ""
) -> AsyncIterator[tuple[EventStream, Diary]]:
    """A running stream, connected to the publisher."""
    diary = Diary()
    source = EventSource(publisher.events, publisher.replay if replay else None, topic)
    stream = EventStream(source, limits, diary)
    task = asyncio.ensure_future(stream.run())
    try:
        async with asyncio.timeout(5):
            while not stream.connected:  # noqa: ASYNC110 - a number for people
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # a PUB socket drops what comes before it heard of the subscription
        yield stream, diary
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("old", [False, True], ids=["topic in replies", "older replies"])
async def test_late_joiner_replays_then_follows(old: bool) -> None:
    """Everything from the engine's first batch on, each once, though it joined late; then what comes live."""
    with EnginePublisher("kv", old=old) as publisher:
        for number in range(50):
            publisher.publish(number)
        async with following(publisher, topic="kv") as (stream, diary):
            await diary.has("fresh", *range(50))
            publisher.publish(50)
            publisher.publish(51)
            await diary.has("fresh", *range(52))
            assert publisher.requests == [0, 49] and diary.flushes and not stream.problem


async def test_engine_that_has_published_nothing() -> None:
    """An empty replay means that nothing is cached."""
    with EnginePublisher() as publisher:
        async with following(publisher) as (_, diary):
            await diary.has("fresh")
            publisher.publish("a")
            await diary.has("fresh", "fresh", "a")


async def test_gap_is_replayed() -> None:
    """Batches that got lost are asked for, with the last one known before them, and come before the one that showed it."""
    with EnginePublisher() as publisher:
        async with following(publisher) as (stream, diary):
            for number in range(3):
                publisher.publish(number)
            await diary.has("fresh", "fresh", 0, 1, 2)
            publisher.publish(3, lost=True)
            publisher.publish(4, lost=True)
            publisher.publish(5)
            await diary.has("fresh", "fresh", 0, 1, 2, 3, 4, 5)
            assert publisher.requests[-1] == 2 and stream.gaps == 1


async def test_lost_last_batch_shows_after_a_silence() -> None:
    """Nothing comes after a lost last batch, so it is asked for after a while."""
    with EnginePublisher() as publisher:
        async with following(publisher, LIMITS) as (_, diary):
            publisher.publish("a")
            publisher.publish("b", lost=True)
            assert (await diary.until(lambda news: "b" in news))[-2:] == ["a", "b"]


async def test_gap_beyond_the_buffer() -> None:
    """What the engine does not remember any more is lost, which is said; what it remembers is taken."""
    with EnginePublisher(buffer_steps=2) as publisher:
        async with following(publisher) as (_, diary):
            publisher.publish(0)
            for number in range(1, 5):
                publisher.publish(number, lost=True)
            publisher.publish(5)
            lost = "lost: batches 1 to 3 of its events are no longer in its replay buffer"
            await diary.has("fresh", "fresh", 0, lost, 4, 5)
            publisher.publish(6)
            await diary.has("fresh", "fresh", 0, lost, 4, 5, 6)


async def test_joining_too_late() -> None:
    """A buffer that does not reach back to the first batch: the rest is taken, and that it is not all is said."""
    with EnginePublisher(buffer_steps=3) as publisher:
        for number in range(10):
            publisher.publish(number)
        async with following(publisher) as (_, diary):
            await diary.has("lost: batches 0 to 6 of its events are no longer in its replay buffer", 7, 8, 9)


async def test_batch_that_was_never_published() -> None:
    """TensorRT-LLM drops batches whose number is used already: no replay has them. From its sources, see test_wire.py."""
    with EnginePublisher() as publisher:
        async with following(publisher) as (_, diary):
            publisher.publish(0)
            publisher.number += 1
            publisher.publish(2)
            await diary.has("fresh", "fresh", 0, "lost: batches 1 to 1 of its events are no longer in its replay buffer", 2)


async def test_without_replay() -> None:
    """From the first batch on it is all; a gap is a loss."""
    with EnginePublisher() as publisher:
        async with following(publisher, LIMITS, replay=False) as (_, diary):
            publisher.publish(0)
            publisher.publish(1, lost=True)
            publisher.publish(2)
            await diary.has("fresh", 0, "lost: batches 1 to 1 of its events were missed, and it has no replay endpoint", 2)
            assert publisher.requests == []


async def test_joining_late_without_replay() -> None:
    """Whoever sees another number first has missed something."""
    with EnginePublisher() as publisher:
        publisher.publish(0)
        async with following(publisher, replay=False) as (_, diary):
            publisher.publish(1)
            await diary.has("lost: batches 0 to 0 of its events were missed, and it has no replay endpoint", 1)


@pytest.mark.parametrize("replay", [True, False])
async def test_restart_on_the_live_stream(replay: bool) -> None:
    """Numbers that begin anew are another life of the engine: all of it is taken from its first batch on."""
    with EnginePublisher() as publisher:
        async with following(publisher, replay=replay) as (_, diary):
            for number in range(5):
                publisher.publish(number)
            await diary.until(lambda news: 4 in news)
            before = len(diary.news)
            publisher.restart()
            await asyncio.sleep(0.4)  # until it is connected again
            publisher.publish("a")
            publisher.publish("b")
            assert (await diary.until(lambda news: "b" in news))[before:] == ["restarted", "fresh", "a", "b"]


async def test_restart_that_is_ahead() -> None:
    """Another life with higher numbers looks like a gap; the batch before it shows that it is none."""
    with EnginePublisher() as publisher:
        async with following(publisher) as (_, diary):
            publisher.publish("old 0")
            publisher.publish("old 1")
            await diary.until(lambda news: "old 1" in news)
            before = len(diary.news)
            publisher.restart()
            for number in range(4):
                publisher.publish(f"new {number}", lost=True)
            await asyncio.sleep(0.4)
            publisher.publish("new 4")
            news = await diary.until(lambda news: "new 4" in news)
            assert news[before:] == ["restarted", "fresh", "new 0", "new 1", "new 2", "new 3", "new 4"]


async def test_restart_into_silence() -> None:
    """An engine that restarted and publishes nothing shows it when asked after a silence."""
    with EnginePublisher() as publisher:
        publisher.publish("old")
        async with following(publisher, LIMITS) as (_, diary):
            publisher.restart()
            assert (await diary.until(lambda news: news[-2:] == ["restarted", "fresh"]))[:2] == ["fresh", "old"]


async def test_replay_that_does_not_answer() -> None:
    """It is a problem until it answers; live batches are taken meanwhile."""
    with EnginePublisher() as publisher:
        publisher.answers = False
        publisher.publish(0)
        diary = Diary()
        stream = EventStream(EventSource(publisher.events, publisher.replay), LIMITS, diary)
        task = asyncio.ensure_future(stream.run())
        async with asyncio.timeout(5):
            while not stream.problem:  # noqa: ASYNC110 - what is waited for is a number for people
                await asyncio.sleep(0.01)
        assert stream.problem == f"no answer from {publisher.replay} within 0.3 s"
        publisher.answers = True
        await diary.until(lambda news: news == ["fresh", 0])
        await asyncio.sleep(0.05)
        assert not stream.problem
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_topics() -> None:
    """Batches under another topic are left alone, and remembered as a possible reason why none came."""
    with EnginePublisher("kv@one") as publisher:
        async with following(publisher, replay=False, topic="kv@two") as (stream, diary):
            publisher.publish(0)
            publisher.topic = b"kv@two@m"
            publisher.number = 0
            publisher.publish("mine")
            await diary.has("fresh", "mine")
            assert stream.foreign_topic == "kv@one"


async def test_frames_that_are_none() -> None:
    """Hostile frames never end the loop; a batch that was broken shows by its missing number."""
    with EnginePublisher() as publisher:
        async with following(publisher, replay=False) as (stream, diary):
            for frames in ((b"",), (b"", b"1", b""), (b"", b"\xff" * 8, b"x"), (b"a", b"b", b"c", b"d")):
                publisher.send_raw(*frames)
            publisher.publish(0)
            await diary.has("fresh", 0)
            assert stream.malformed == 4 and stream.unreadable == "4 frames instead of topic, sequence and payload"


async def test_replay_with_a_hole() -> None:
    """A reply that lacks batches, dropped because they were not read in time, is asked for again from there on."""
    with EnginePublisher() as publisher:
        for number in range(6):
            publisher.publish(number)
        publisher.leaves_out = {2, 3}
        async with following(publisher) as (_, diary):
            await diary.has("fresh", *range(6))
            assert publisher.requests[:2] == [0, 1]


async def test_replay_that_is_none() -> None:
    """A replay endpoint that answers something else is a problem, not an end."""
    with EnginePublisher() as publisher:
        publisher.publish(0)
        publisher.end = [b"", b"x", b"y"]
        async with following(publisher) as (stream, diary):
            await diary.has("fresh", 0)
            assert stream.problem == f"{publisher.replay}: a sequence number that is not one of 8 bytes"


async def test_connection_that_libzmq_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a message that was too large a new connection is made, and what was missed meanwhile is replayed."""
    monkeypatch.setattr("engines.sidecar.kv.stream.GIVE_UP_S", 0.2)
    with EnginePublisher() as publisher:
        async with following(publisher, replace(LIMITS, max_event_bytes=1024)) as (_, diary):
            publisher.publish(0)
            await diary.has("fresh", "fresh", 0)
            publisher.publish_bytes(b"x" * 2000, remembered=False)
            publisher.number -= 1
            publisher.publish(1)
            publisher.publish(2, lost=True)
            await diary.has("fresh", "fresh", 0, 1, 2)
            await asyncio.sleep(0.3)
            publisher.publish(3)
            await diary.has("fresh", "fresh", 0, 1, 2, 3)


@pytest.mark.parametrize("seed", range(4))
async def test_chaos(seed: int) -> None:
    """Whatever is lost and however often the engine restarts: of its last life every batch was told, once and in order."""
    chance = Random(seed)
    with EnginePublisher() as publisher:
        async with following(publisher, replace(LIMITS, event_check_s=0.1)) as (_, diary):
            for life in range(3):
                if life:
                    publisher.restart()
                for number in range(chance.randint(0, 200)):
                    publisher.publish([life, number], lost=chance.random() < 0.2)
                    if chance.random() < 0.05:
                        await asyncio.sleep(0.02)
            publisher.publish("last")
            news = await diary.until(lambda news: "last" in news)
            told = news[len(news) - 1 - news[::-1].index("fresh") + 1 :]
            assert told == [[2, number] for number in range(publisher.number - 1)] + ["last"]


async def test_engine_that_connects_here() -> None:
    """With a wildcard the engine is the one that connects."""
    diary = Diary()
    with EnginePublisher() as publisher:
        port = free_port()
        stream = EventStream(EventSource(f"tcp://127.0.0.1:{port}", binds=True), QUIET, diary)
        task = asyncio.ensure_future(stream.run())
        await asyncio.sleep(0.05)
        publisher._pub.connect(f"tcp://127.0.0.1:{port}")
        for _ in range(100):
            publisher.number = 0
            publisher.publish(0, stamp=1.0)
            await asyncio.sleep(0.02)
            if diary.news:
                break
        await diary.has("fresh", 0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_address_that_cannot_be_used() -> None:
    """That is raised: it does not get better by waiting."""
    with pytest.raises(Endpoint):
        await EventStream(EventSource("tcp://nowhere"), LIMITS, Diary()).run()
