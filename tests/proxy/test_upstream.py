"""The pool of worker connections: reuse, expiry, bounds. Time is passed in; sockets are real."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from router.core.stats import Stats
from router.errors import Overloaded, RouterError, UpstreamRefused
from router.proxy.upstream import Endpoint, UpstreamConnection, UpstreamPool
from router.settings import EngineSpec, UpstreamSettings
from router.wire.http_head import AnswerFacts, Header
from tests.proxy.rig import ScriptedEngine, until

GET = b"GET /v1/completions HTTP/1.1\r\nHost: w\r\n\r\n"


class Recorder:
    """A request's owner that sends as soon as it has a connection and keeps what it is told."""

    def __init__(self) -> None:
        self.connection: UpstreamConnection | None = None
        self.error: RouterError | None = None
        self.body = b""
        self.ended = False
        self.lost = False

    def connected(self, connection: UpstreamConnection) -> None:
        self.connection = connection
        connection.send(self, GET, [])

    def connect_failed(self, error: RouterError) -> None:
        self.error = error

    def interim(self, status: int, reason: bytes, headers: list[Header]) -> None: ...

    def relay(self, head: AnswerFacts | None, pieces: list[bytes], ended: bool) -> None:
        self.body += b"".join(pieces)
        self.ended = ended

    def relay_event(self, chunk: bytes) -> bool:
        return False

    def upstream_lost(self, error: RouterError | None, got_bytes: bool, reused: bool) -> None:
        self.lost = True

    def surprised(self) -> None:
        raise


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class PoolRig:
    def __init__(self, pool: UpstreamPool, engine: ScriptedEngine, clock: Clock, stats: Stats) -> None:
        self.pool, self.engine, self.clock, self.stats = pool, engine, clock, stats
        self.endpoint = Endpoint(EngineSpec("openai", f"http://{engine.worker_id}"))

    async def ask(self) -> Recorder:
        """One whole request."""
        recorder = Recorder()
        connection = self.pool.acquire(self.endpoint, recorder)
        if connection is not None:
            recorder.connected(connection)
        await until(lambda: recorder.ended or recorder.error or recorder.lost)
        return recorder


@pytest.fixture
async def made() -> AsyncIterator[PoolRig]:
    engine, clock, stats = ScriptedEngine(), Clock(), Stats()
    await engine.start()
    pool = UpstreamPool(UpstreamSettings(max_idle_connections=2, max_connections_per_worker=3), stats, clock)
    async with asyncio.TaskGroup() as group:
        pool.start(group)
        yield PoolRig(pool, engine, clock, stats)
        pool.close()
        await engine.stop()


async def test_a_connection_is_reused_while_fresh(made: PoolRig) -> None:
    """Requests in a row share one connection; after upstream_keepalive_s a new one is opened (P26)."""
    for _ in range(3):
        assert (await made.ask()).body == b'{"ok":true}'
    assert made.engine.connections == 1 and made.stats.upstream_reused[made.endpoint.worker_id] == 2
    made.clock.now_s += 4.1
    await made.ask()
    assert made.engine.connections == 2


async def test_the_sweep_closes_old_idle_connections(made: PoolRig) -> None:
    """An idle connection does not outlive its time even when nothing asks for it."""
    await made.ask()
    assert made.pool.idle_count(made.endpoint.worker_id) == 1
    made.clock.now_s += 4.1
    made.pool.sweep(made.clock.now_s)
    await asyncio.wait_for(made.engine.hung_up.wait(), 5)
    assert made.pool.idle_count(made.endpoint.worker_id) == made.pool.open_count(made.endpoint.worker_id) == 0


async def test_an_engine_that_closes_an_idle_connection_is_noticed(made: PoolRig) -> None:
    """A closed idle connection leaves the pool at once."""
    await made.ask()
    for writer in list(made.engine.open):
        writer.close()
    await until(lambda: not made.pool.open_count(made.endpoint.worker_id))
    assert made.pool.idle_count(made.endpoint.worker_id) == 0


async def test_an_engine_that_speaks_unasked_is_cut(made: PoolRig) -> None:
    """Bytes on an idle connection must never become the answer of the next request."""
    await made.ask()
    for writer in list(made.engine.open):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nX")
    await until(lambda: not made.pool.open_count(made.endpoint.worker_id))
    assert (await made.ask()).body == b'{"ok":true}'


async def test_bounds(made: PoolRig) -> None:
    """No more than max_connections_per_worker are open, no more than max_idle_connections kept."""
    recorders = [Recorder() for _ in range(3)]
    for recorder in recorders:
        assert made.pool.acquire(made.endpoint, recorder) is None
    with pytest.raises(Overloaded):
        made.pool.acquire(made.endpoint, Recorder())
    await until(lambda: all(recorder.ended for recorder in recorders))
    await until(lambda: made.pool.open_count(made.endpoint.worker_id) == 2)
    assert made.pool.idle_count(made.endpoint.worker_id) == 2


async def test_a_refused_connect_is_told(made: PoolRig) -> None:
    """Nothing listens: the owner hears UpstreamRefused, and no count stays."""
    await made.engine.stop()
    recorder = await made.ask()
    assert isinstance(recorder.error, UpstreamRefused)
    assert made.pool.open_count(made.endpoint.worker_id) == 0


async def test_a_closed_worker_keeps_no_idle_connection(made: PoolRig) -> None:
    """When a worker goes down or is removed its idle connections close."""
    await made.ask()
    made.pool.close_worker(made.endpoint.worker_id)
    await until(lambda: not made.pool.open_count(made.endpoint.worker_id))


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "prefix"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1", 8000, b"10.0.0.1:8000", b""),
        ("http://engine/base/", "engine", 80, b"engine", b"/base"),
        ("http://[::1]:9", "::1", 9, b"[::1]:9", b""),
    ],
)
def test_endpoints(url: str, host: str, port: int, authority: bytes, prefix: bytes) -> None:
    """A URL is taken apart once, IPv6 and path prefixes included."""
    endpoint = Endpoint(EngineSpec("openai", url, api_key="k"))
    assert (endpoint.host, endpoint.port, endpoint.authority, endpoint.prefix) == (host, port, authority, prefix)
    assert endpoint.authorization == b"Bearer k"
