"""Connections to workers: a pool per worker of HTTP/1.1 connections that carry one request at a time."""

import asyncio
import errno
from collections.abc import Callable
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

import httptools

from router.core.stats import Stats
from router.core.types import WorkerId
from router.errors import Overloaded, RouterError, RouterFull, UpstreamGarbage, UpstreamRefused
from router.settings import EngineSpec, UpstreamSettings
from router.wire.http_head import AnswerFacts, Header, is_event_chunk

# Connects that fail for want of something on this side: the worker is not at fault.
OWN_SHORTAGES = frozenset((errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM))


class Receiver(Protocol):
    """The owner of a request: told everything that happens to it on its connection, in order."""

    def connected(self, connection: "UpstreamConnection") -> None: ...

    def connect_failed(self, error: RouterError) -> None: ...

    def interim(self, status: int, reason: bytes, headers: list[Header]) -> None:
        """A 1xx answer other than 100 and 101."""

    def relay(self, head: AnswerFacts | None, pieces: list[bytes], ended: bool) -> None:
        """What one read brought: the head if it came, body pieces, and whether the answer is complete."""

    def relay_event(self, chunk: bytes) -> bool:
        """One chunk, framing included, that holds whole events of an event stream. False: not taken, it must be parsed."""

    def upstream_lost(self, error: RouterError | None, got_bytes: bool, reused: bool) -> None:
        """The connection is gone before the answer was complete; `error` None means it was closed or reset."""

    def surprised(self) -> None:
        """Called in the handler of an exception that one of the others raised."""


class Endpoint:
    """Where a worker listens, parsed once."""

    __slots__ = ("authority", "authorization", "host", "port", "prefix", "rank", "worker_id")

    def __init__(self, spec: EngineSpec) -> None:
        parts = urlsplit(spec.url)
        self.worker_id = WorkerId(spec.worker_id)
        self.host = parts.hostname or ""
        self.port = parts.port or 80
        self.authority = parts.netloc.encode("ascii")
        self.prefix = parts.path.rstrip("/").encode("ascii")
        self.authorization = b"Bearer " + spec.api_key.encode("utf-8") if spec.api_key else None
        self.rank = None if spec.rank is None else b"%d" % spec.rank


class UpstreamConnection:
    """One connection to one worker, an asyncio protocol. `receiver` is None while it is idle in the pool."""

    __slots__ = (
        "_chunk_ended",
        "_ended",
        "_events",
        "_excess",
        "_head",
        "_head_bytes",
        "_headers",
        "_in_head",
        "_keep_alive",
        "_parser",
        "_pieces",
        "_pool",
        "_reason",
        "_transport",
        "_until_close",
        "endpoint",
        "got_bytes",
        "idle_since_s",
        "receiver",
        "status",
        "uses",
    )

    def __init__(self, pool: "UpstreamPool", endpoint: Endpoint) -> None:
        self._pool = pool
        self.endpoint = endpoint
        self._transport: asyncio.Transport | None = None
        self.receiver: Receiver | None = None
        self.idle_since_s = 0.0
        self.uses = 0
        self._reset()
        self._parser: Any = httptools.HttpResponseParser(self)

    def _reset(self) -> None:
        self.got_bytes = False
        self.status = 0
        self._reason = b""
        self._headers: list[Header] = []
        self._head: AnswerFacts | None = None
        self._in_head = True
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._ended = self._excess = self._until_close = False
        self._events = False  # the parser stands between two chunks of an event stream
        self._chunk_ended = False
        self._keep_alive = True

    # What the owner calls

    @property
    def reason(self) -> bytes:
        return self._reason

    @property
    def reused(self) -> bool:
        return self.uses > 1

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, receiver: Receiver, head: bytes, body: list[bytes]) -> None:
        """Start a request on an idle connection."""
        self._reset()
        self.receiver = receiver
        self.uses += 1
        transport = self._transport
        assert transport is not None
        if not body:
            transport.write(head)
        elif len(body) == 1 and len(body[0]) <= 65536:
            transport.write(head + body[0])  # one system call; writelines costs 4 us more
        else:
            transport.writelines([head, *body])

    def pause(self) -> None:
        if self.is_open:
            self._transport.pause_reading()  # type: ignore[union-attr]

    def resume(self) -> None:
        if self.is_open:
            self._transport.resume_reading()  # type: ignore[union-attr]

    def abort(self) -> None:
        """Close at once; the receiver, if any, hears no more of it. Engines stop generating when they see this."""
        self.receiver = None
        if self._transport is not None:
            self._transport.abort()

    def is_usable(self, now_s: float, keepalive_s: float) -> bool:
        return self.is_open and now_s - self.idle_since_s < keepalive_s

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def pause_writing(self) -> None:
        """The worker reads slowly: the whole body is in memory already, so there is nothing to hold back."""

    def resume_writing(self) -> None:
        """Nothing was held back."""

    def data_received(self, data: bytes) -> None:
        receiver = self.receiver
        if receiver is None:
            self.abort()  # an engine that speaks unasked: never let these bytes meet the next request
            return
        self.got_bytes = True
        if self._events and is_event_chunk(data) and receiver.relay_event(data):
            return  # 64 events cost 0.2 ms less than through the parser, which still stands before a chunk
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(UpstreamGarbage("the worker switched protocols unasked"))
            return
        except httptools.HttpParserError as error:
            if not self._ended:
                self._fail(UpstreamGarbage(f"the worker's answer is not HTTP: {error}"))
                return
            self._excess = True
        if self._in_head and self._head_bytes > self._pool.settings.max_response_header_bytes:
            self._fail(UpstreamGarbage("the head of the worker's answer is too large"))
            return
        self._events = self._chunk_ended and not self._ended and data.endswith(b"\r\n")
        head, pieces, ended = self._head, self._pieces, self._ended
        if head is None and not pieces and not ended:
            return
        self._head, self._pieces = None, []
        if ended:
            self._end()
        try:
            receiver.relay(head, pieces, ended)
        except Exception:
            receiver.surprised()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._parser = None  # it refers back to this object
        self._pool.gone(self)
        receiver, self.receiver = self.receiver, None
        if receiver is None:
            return
        try:
            if self._until_close and exc is None:
                receiver.relay(None, [], True)
            else:
                receiver.upstream_lost(None, self.got_bytes, self.reused)
        except Exception:
            receiver.surprised()

    # httptools callbacks: no work here that could raise

    def on_message_begin(self) -> None:
        if self._ended:
            self._excess = True
        self._headers, self._reason = [], b""

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._ended:
            return
        status = self._parser.get_status_code()
        if status < 200:
            if status not in (100, 101) and self.receiver is not None:
                self.receiver.interim(status, self._reason, self._headers)
            return
        self.status = status
        self._in_head = False
        self._head = head = AnswerFacts(self._headers)
        self._until_close = not head.chunked and head.content_length is None and status not in (204, 304)

    def on_chunk_header(self) -> None:
        self._chunk_ended = False

    def on_chunk_complete(self) -> None:
        self._chunk_ended = True  # what follows it is nothing, or a size whose line end would call on_chunk_header

    def on_body(self, piece: bytes) -> None:
        if not self._ended:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        if self.status:  # not the end of a 1xx answer
            self._keep_alive = self._parser.should_keep_alive()
            self._ended = True

    # Ends

    def _end(self) -> None:
        self.receiver = None
        unsent = self._transport is None or self._transport.get_write_buffer_size() > 0  # answered before it was read
        if self._keep_alive and not self._excess and not self._until_close and not unsent:
            self._pool.release(self)
        else:
            self.abort()

    def _fail(self, error: RouterError) -> None:
        receiver, got_bytes = self.receiver, self.got_bytes
        self.abort()
        if receiver is not None:
            try:
                receiver.upstream_lost(error, got_bytes, reused=False)
            except Exception:
                receiver.surprised()


class UpstreamPool:
    """Idle and busy connections of every worker; newest idle one first, so that the spare ones age out together."""

    def __init__(self, settings: UpstreamSettings, stats: Stats, clock: Callable[[], float]) -> None:
        self.settings = settings
        self._stats = stats
        self._clock = clock
        self._idle: dict[WorkerId, list[UpstreamConnection]] = {}
        self._open: dict[WorkerId, set[UpstreamConnection]] = {}
        self._connecting: dict[WorkerId, int] = {}
        self._group: asyncio.TaskGroup | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        """Connects run as tasks of `group`."""
        self._group = group

    def acquire(self, endpoint: Endpoint, receiver: Receiver) -> UpstreamConnection | None:
        """An idle connection, or None and `receiver` hears of a new one later. Raises Overloaded at the worker's bound."""
        worker_id = endpoint.worker_id
        idle = self._idle.get(worker_id)
        now_s = self._clock()
        while idle:
            connection = idle.pop()
            if connection.is_usable(now_s, self.settings.upstream_keepalive_s):
                self._stats.upstream_reused[worker_id] += 1
                return connection
            connection.abort()
        self.connect(endpoint, receiver)
        return None

    def connect(self, endpoint: Endpoint, receiver: Receiver) -> None:
        """Open a new connection for `receiver`. Raises Overloaded at the worker's bound."""
        worker_id = endpoint.worker_id
        if self.open_count(worker_id) >= self.settings.max_connections_per_worker:
            raise Overloaded(f"worker {worker_id} has no connection to spare")
        assert self._group is not None
        self._connecting[worker_id] = self._connecting.get(worker_id, 0) + 1
        self._group.create_task(self._open_connection(endpoint, receiver))

    async def _open_connection(self, endpoint: Endpoint, receiver: Receiver) -> None:
        loop = asyncio.get_running_loop()
        connection = UpstreamConnection(self, endpoint)
        error: RouterError | None = None
        try:
            async with asyncio.timeout(self.settings.connect_timeout_s):
                protocol = cast(asyncio.Protocol, connection)
                await loop.create_connection(lambda: protocol, endpoint.host, endpoint.port)
        except TimeoutError:
            error = UpstreamRefused(f"worker {endpoint.worker_id} did not accept a connection in time")
        except OSError as failure:
            text = failure.strerror or str(failure)
            if failure.errno in OWN_SHORTAGES:
                error = RouterFull(f"the router cannot open connections: {text}")
            else:
                error = UpstreamRefused(f"worker {endpoint.worker_id}: {text}")
        finally:
            self._connecting[endpoint.worker_id] -= 1
        if error is None and not connection.is_open:
            error = UpstreamRefused(f"worker {endpoint.worker_id} closed a new connection at once")
        try:
            if error is not None:
                receiver.connect_failed(error)
                return
            self._open.setdefault(endpoint.worker_id, set()).add(connection)
            self._stats.upstream_connections[endpoint.worker_id] += 1
            receiver.connected(connection)
        except Exception:  # this is a task of the router's own group: one request must not end them all
            receiver.surprised()

    def release(self, connection: UpstreamConnection) -> None:
        """Keep a connection whose answer is complete for the next request, or close it beyond the bound."""
        idle = self._idle.setdefault(connection.endpoint.worker_id, [])
        if len(idle) >= self.settings.max_idle_connections or self.settings.upstream_keepalive_s == 0:
            connection.abort()
            return
        connection.receiver = None
        connection.idle_since_s = self._clock()
        idle.append(connection)

    def gone(self, connection: UpstreamConnection) -> None:
        """A closed connection leaves every list."""
        worker_id = connection.endpoint.worker_id
        self._open.get(worker_id, set()).discard(connection)
        idle = self._idle.get(worker_id)
        if idle and connection in idle:
            idle.remove(connection)

    def sweep(self, now_s: float) -> None:
        """Close connections idle for too long."""
        limit_s = self.settings.upstream_keepalive_s
        for idle in self._idle.values():
            while idle and not idle[0].is_usable(now_s, limit_s):
                idle.pop(0).abort()

    def close_worker(self, worker_id: WorkerId) -> None:
        """Close a worker's idle connections; busy ones end with their requests."""
        for connection in self._idle.pop(worker_id, []):
            connection.abort()

    def forget_worker(self, worker_id: WorkerId) -> None:
        """A removed worker: no idle connection and no count of it stays once its requests have ended."""
        self.close_worker(worker_id)
        if not self._open.get(worker_id) and not self._connecting.get(worker_id):
            self._open.pop(worker_id, None)
            self._connecting.pop(worker_id, None)

    def close(self) -> None:
        """Abort everything, busy or idle."""
        self._idle.clear()
        for connections in self._open.values():
            for connection in list(connections):
                connection.abort()

    def open_count(self, worker_id: WorkerId) -> int:
        return len(self._open.get(worker_id, ())) + self._connecting.get(worker_id, 0)

    def idle_count(self, worker_id: WorkerId) -> int:
        return len(self._idle.get(worker_id, ()))
