"""Fake engines inside the test's own event loop, for the tests of the bench."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loadtest.bench.fake_engine import listen, port_of

HOST = "127.0.0.1"


@asynccontextmanager
async def engine(count: int = 1, *, events: int = 64, step_s: float = 0.0) -> AsyncIterator[list[int]]:
    """Ports of `count` fake workers that run until the block ends; steps come without a gap unless asked for."""
    servers = await listen(HOST, [0] * count, step_s=step_s, events=events)
    try:
        yield [port_of(server) for server in servers]
    finally:
        for server in servers:
            server.close()
