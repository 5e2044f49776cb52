"""A steady flow of requests: sent when due, every failure counted by what it was."""

import asyncio

import pytest

from loadtest.bench.bodies import KINDS, bodies
from loadtest.pool import requests
from loadtest.pool.requests import MAX_CONNECTIONS, Answer, Flow, latencies
from tests.loadtest.bench_rig import HOST, engine

BODIES = bodies(KINDS["chat2k"], 3, seed=1)


async def flow_to(url: str, rate: float, seconds: float) -> Flow:
    flow = Flow(url, BODIES, rate)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(flow.run())
        await asyncio.sleep(seconds)
        task.cancel()
    return flow


async def test_answers_are_timed() -> None:
    """As many as were due, over connections kept open."""
    async with engine() as (port,):
        flow = await flow_to(f"http://{HOST}:{port}", 100.0, 0.5)
    assert 20 <= len(flow.answers) <= 51 and not flow.failures
    assert all(answer.took_s > 0 for answer in flow.answers)


async def served(answer: bytes, rate: float, seconds: float) -> Flow:
    """A flow to a server that says this at once, or nothing, and closes where it is no whole answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(answer)
            if answer.startswith(b"nonsense"):
                break
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        return await flow_to(f"http://{HOST}:{server.sockets[0].getsockname()[1]}", rate, seconds)


async def test_failures_are_counted() -> None:
    """A status that is not 200, an answer that is none, nobody there."""
    refused = await served(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", 50.0, 0.2)
    assert set(refused.failures) == {"status 503"} and not refused.answers
    assert set((await served(b"nonsense", 50.0, 0.2)).failures) == {"connection lost"}
    gone = await flow_to(f"http://{HOST}:1", 50.0, 0.2)
    assert all(reason.startswith("no connection") for reason in gone.failures) and gone.failures


async def test_silence_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of the requests that found no connection."""
    monkeypatch.setattr(requests, "END_S", 0.1)
    flow = await served(b"", 1000.0, 0.3)
    assert flow.failures["no answer"] > MAX_CONNECTIONS


def test_latencies_are_of_a_time() -> None:
    """Answers to requests due within it, of all flows together."""
    flow = Flow("http://a:1", BODIES, 1.0, answers=[Answer(1.0, 0.1), Answer(2.0, 0.2), Answer(3.0, 0.3)])
    found = latencies([flow, flow], 1.5, 3.0)
    assert (found.requests, found.p50_ms, found.max_ms) == (2, 200.0, 200.0)
    assert latencies([flow], 9.0, 10.0).max_ms == 0.0
