"""What the data plane tells whoever records: each request that had a worker, once, when it is over."""

import asyncio

import pytest

from router.core.load import Lease
from router.core.types import Usage
from tests.proxy.rig import EngineRequest, answer_ok, chat, post, rig, sized, split_answer, until, until_closed

USAGE = b'{"usage":{"prompt_tokens":40,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":16}}}'


class Listener:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.noted: list[tuple[Lease, Usage | None]] = []

    def note(self, lease: Lease, usage: Usage | None) -> None:
        self.noted.append((lease, usage))

    def waiting_bytes(self) -> int:
        return 0


async def with_usage(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(sized(USAGE, "Content-Type: application/json"))


async def refuses(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(sized(b"{}", status="400 Bad Request"))


async def crashes(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def test_a_finished_request_is_told_with_its_usage() -> None:
    """The lease has its keys, its decision how it went, the usage what the engine counted; before that nothing is told."""
    async with rig(with_usage) as made:
        await made.post(chat("before"))
        made.plane.recorder = listener = Listener()
        await made.post(chat("hello " * 100))
        made.plane.recorder = None
        await made.post(chat("after"))
        ((lease, usage),) = listener.noted
        assert usage == Usage(40, 16, 7) and len(lease.prompt.keys) > 4
        decision = lease.decision
        assert (decision.outcome, decision.status, decision.actual_cached_tokens) == ("ok", 200, 16)
        assert decision.duration_s is not None and lease.released


async def test_a_request_that_was_tried_twice_is_told_once() -> None:
    """What a worker failed to do is no request of its own: only where the request ended is told."""
    async with rig(crashes, answer_ok, policy="round-robin") as made:
        made.plane.recorder = listener = Listener()
        for _ in range(2):
            assert split_answer(await made.post(chat()))[0] == b"HTTP/1.1 200 OK"
        assert len(listener.noted) == 2 and "retry" in [lease.decision.reason for lease, _ in listener.noted]
        assert {lease.worker.id for lease, _ in listener.noted} == {made.engines[1].worker_id}


@pytest.mark.parametrize(("script", "outcome", "status"), [(refuses, "ok", 400), (crashes, "upstream_closed", 502)])
async def test_failures_say_so(script: object, outcome: str, status: int) -> None:
    """A request that was not answered well is told with how it ended; its prompt was not computed."""
    async with rig(script) as made:  # type: ignore[arg-type]
        made.plane.recorder = listener = Listener()
        await made.post(chat())
        ((lease, usage),) = listener.noted
        assert usage is None and (lease.decision.outcome, lease.decision.status) == (outcome, status)


async def test_a_client_that_goes_is_told() -> None:
    """What the engine did until then was for a prompt that is part of the traffic."""

    async def hangs(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await until_closed(reader)

    async with rig(hangs) as made:
        made.plane.recorder = listener = Listener()
        _, writer = await made.connect()
        writer.write(post(chat()))
        await until(lambda: made.engines[0].requests)
        writer.close()
        await until(lambda: listener.noted)
        ((lease, usage),) = listener.noted
        assert usage is None and (lease.decision.outcome, lease.decision.status) == ("client_gone", None)


async def test_what_has_no_worker_is_not_told() -> None:
    """Answers of the router's own are no traffic of the pool."""
    async with rig() as made:
        made.plane.recorder = listener = Listener()
        await made.send(b"GET /nothing HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n")
        await made.post(chat(model="unknown"))
        assert not listener.noted
