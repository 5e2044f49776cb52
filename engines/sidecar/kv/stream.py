"""One engine's KV event stream, put in order: live messages, and replay for what was missed.

Read from vLLM 0.32 distributed/kv_events.py (ZmqEventPublisher); SGLang and TensorRT-LLM speak the same. A publisher sends
each batch once and remembers the last ones (`buffer_steps`); asked on its replay endpoint it sends those from a number on.
It says nothing where it has none, so a batch that is the last one and was missed shows only when it is asked: after a
silence that is done.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

import zmq
from xxhash import xxh3_64_intdigest

from engines.sidecar.kv.sequence import Sequence, Verdict
from engines.sidecar.kv.socket import MessageSocket
from engines.sidecar.kv.sources import EventSource
from engines.sidecar.kv.wire import MalformedEvents, live_frames, replay_frames
from router.settings import EventSettings

MESSAGES_AT_ONCE = 32  # then other tasks have their turn
LOOK_S = 0.5  # between two looks at the connection while no message comes
GIVE_UP_S = 5.0  # without a connection, until it is made anew
REPLAY_ATTEMPTS = 3


class Sink(Protocol):
    """What follows the stream. None of these may raise."""

    def batch(self, payload: bytes) -> None:
        """The next batch; none is missing between two calls."""

    def flush(self) -> None:
        """There are no further batches at hand."""

    def fresh(self) -> None:
        """Nothing is cached: the next batch is the first of the engine's life."""

    def lost(self, reason: str) -> None:
        """Batches are missing before the next one: what was known cannot be kept up to date."""

    def restarted(self) -> None:
        """Another life of the engine has begun."""


class NoReplay(Exception):
    """The replay endpoint did not answer in time, or not as it should."""


class EventStream:
    """Gives a sink all batches in order, each once, and tells it where some are missing. Numbers for people are counted."""

    def __init__(self, source: EventSource, limits: EventSettings, sink: Sink) -> None:
        self.messages = 0
        self.gaps = 0
        self.malformed = 0
        self.unreadable = ""  # what was wrong with the last of these
        self.foreign_topic: str | None = None  # the last one that was not the one asked for
        self.connected = False
        self.problem = ""  # why an answer to what was missed is wanting
        self._source = source
        self._limits = limits
        self._sink = sink
        self._topic = source.topic.encode()
        self._sequence = Sequence(limits.max_waiting_events)
        self._begun = False
        self._synchronised = False
        self._has_replayed = False

    @property
    def topic(self) -> str:
        return self._source.topic

    @property
    def trouble(self) -> str:
        """Why the stream is not to be relied on at the moment."""
        if self.connected:
            return self.problem
        source = self._source
        return f"nobody publishes KV events to {source.events}" if source.binds else f"no connection to {source.events}"

    async def run(self) -> None:
        """Until cancelled. Raises Endpoint."""
        limits = self._limits
        while True:
            with MessageSocket(zmq.SUB, limits.max_waiting_events, limits.max_event_bytes) as live:
                live.attach(self._source.events, binds=self._source.binds)
                if not self._begun:
                    await self._begin()
                await self._follow(live)

    async def _follow(self, live: MessageSocket) -> None:
        """Takes in what comes, and asks for what may have been missed: after a silence, and once it is connected (again).

        Returns where there is no connection any more and none comes by itself.
        """
        clock = asyncio.get_running_loop().time
        heard_s = connected_s = clock()
        while self.connected or clock() < connected_s + GIVE_UP_S:
            frames = await live.receive(min(LOOK_S, self._limits.event_check_s))
            was_connected, self.connected = self.connected, live.is_connected()
            if self.connected:
                connected_s = clock()
            if self.connected > was_connected or (frames is None and clock() >= heard_s + self._limits.event_check_s):
                await self._catch_up()
                heard_s = clock()
            count = 0
            while frames is not None:
                await self._take_live(frames)
                heard_s = clock()
                count += 1
                frames = live.receive_now() if count < MESSAGES_AT_ONCE else None
            self._sink.flush()
            await asyncio.sleep(0)

    async def _take_live(self, frames: list[bytes]) -> None:
        self.messages += 1
        try:
            topic, number, payload = live_frames(frames)
        except MalformedEvents as error:
            self.malformed += 1  # if it stood for a batch, the next number shows that one is missing
            self.unreadable = str(error)
            return
        if not topic.startswith(self._topic):
            self.foreign_topic = topic.decode("utf-8", "replace")
            return
        digest = xxh3_64_intdigest(payload)
        verdict = self._sequence.offer(number, digest)
        if verdict is Verdict.RESTART:
            await self._restart()
            verdict = self._sequence.offer(number, digest)
        if verdict is Verdict.GAP:
            self.gaps += 1
            await self._catch_up()
            verdict = self._sequence.offer(number, digest)
        if verdict is Verdict.GAP:
            self._lose(number, self._loss(number))
            verdict = self._sequence.offer(number, digest)
        if verdict is Verdict.NEXT:
            self._take(number, payload)

    def _take(self, number: int, payload: bytes) -> None:
        if number == 0:
            self._sink.fresh()
            self._synchronised = True
        self._sink.batch(payload)

    def _loss(self, number: int) -> str:
        lost = f"batches {self._sequence.next} to {number - 1} of its events"
        return f"{lost} were missed" + ("" if self._source.replay else ", and it has no replay endpoint")

    def _lose(self, number: int, reason: str) -> None:
        """Go on at that number without what was before."""
        self._sink.lost(reason)
        self._sequence.begin(number)
        self._synchronised = True

    async def _restart(self) -> None:
        self._sink.restarted()
        await self._begin()

    async def _begin(self) -> None:
        """Learn all that this life of the engine has published, as far as it remembers."""
        self._sequence.begin()
        self._begun, self._synchronised = True, False
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Was anything missed? Asks for it, and for the last batch that was taken in, which must be the same as it was."""
        if self._source.replay is None:
            return
        for _ in range(REPLAY_ATTEMPTS):
            before = self._sequence.next
            try:
                again = await self._replay_once(self._source.replay)
            except NoReplay as error:
                self.problem = str(error)
                return
            self.problem = ""
            if not again or self._sequence.next == before:
                return

    async def _replay_once(self, endpoint: str) -> bool:
        """Whether the replay itself lacked something that another one may give. Raises NoReplay."""
        known = self._sequence.next
        asked = max(known - 1, 0)
        empty = True
        async with aclosing(self._replay(endpoint, asked)) as replayed:
            async for number, payload in replayed:
                digest = xxh3_64_intdigest(payload)
                if number < known:
                    if not self._sequence.is_known(number, digest):
                        await self._restart()
                        return False
                elif number > self._sequence.next:
                    if self._sequence.next > known:
                        return True
                    self._lose(number, f"batches {known} to {number - 1} of its events are no longer in its replay buffer")
                    known = number
                empty = False
                if self._sequence.offer(number, digest) is Verdict.NEXT:
                    self._take(number, payload)
        if empty and known and self._has_replayed:
            await self._restart()
        elif empty and not known:
            self._nothing_yet()
        self._has_replayed |= not empty
        return False

    def _nothing_yet(self) -> None:
        """The engine has published nothing."""
        if not self._synchronised:
            self._sink.fresh()
            self._synchronised = True

    async def _replay(self, endpoint: str, start: int) -> AsyncGenerator[tuple[int, bytes], None]:
        """The engine's batches from a number on. Raises NoReplay."""
        limits = self._limits
        with MessageSocket(zmq.DEALER, limits.max_waiting_events, limits.max_event_bytes) as asking:
            asking.attach(endpoint, binds=False)
            asking.send((b"", start.to_bytes(8, "big")))
            count = 0
            while True:
                frames = asking.receive_now() if count % MESSAGES_AT_ONCE else None
                frames = frames or await asking.receive(limits.replay_timeout_s)
                if frames is None:
                    raise NoReplay(f"no answer from {endpoint} within {limits.replay_timeout_s:g} s")
                try:
                    parts = replay_frames(frames)
                except MalformedEvents as error:
                    raise NoReplay(f"{endpoint}: {error}") from None
                if parts is None:
                    return
                count += 1
                topic, number, payload = parts
                if topic is None or topic.startswith(self._topic):
                    yield number, payload
                if not count % MESSAGES_AT_ONCE:
                    self._sink.flush()
                    await asyncio.sleep(0)
