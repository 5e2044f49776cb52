"""Client connections: parsing requests, keeping their order, time limits, back-pressure, closing."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import httptools

from router.errors import BadFraming, BodyTooLarge, HeadTooLarge, RequestTimeout, RouterError, RouterFull
from router.proxy.exchange import Exchange
from router.proxy.request import IncomingRequest, check_head
from router.wire.http_head import CONTINUE

if TYPE_CHECKING:
    from router.proxy.plane import DataPlane

MAX_PIPELINED = 16  # whole requests waiting behind the one being answered; then reading stops
LINGER_S = 2.0  # time an erring client gets to read its answer before the connection is cut
EOF_PROBES_S = (0.05, 0.5)
SWEEP_S = 0.1


# What a connection waits for; decides what its deadline means.
IDLE: Final = 0  # nothing of a request yet
HEAD: Final = 1
BODY: Final = 2
ANSWER: Final = 3  # a request is being answered
LINGER: Final = 4  # last answer sent, input is thrown away


class ClientConnection:
    """One client: an asyncio protocol. At most one exchange at a time; pipelined requests wait and are answered in order.

    It does not inherit from asyncio.Protocol, which would keep mypyc from making its attributes fast.
    """

    __slots__ = (
        "_connection_made_s",
        "_fatal",
        "_incoming",
        "_listener",
        "_parser",
        "_paused",
        "_plane",
        "_probes",
        "_raw_head_bytes",
        "_waiting",
        "address",
        "deadline_s",
        "exchange",
        "half_closed",
        "phase",
        "transport",
        "writable",
        "write",
    )

    def __init__(self, plane: "DataPlane", listener: "Listener") -> None:
        self._plane = plane
        self._listener = listener
        self._parser = httptools.HttpRequestParser(self)
        self._incoming: IncomingRequest | None = None
        self._waiting: deque[IncomingRequest] = deque()
        self._fatal: RouterError | None = None
        self._raw_head_bytes = 0
        self._paused = False
        self._probes = 0
        self.exchange: Exchange | None = None
        self.transport: asyncio.Transport | None = None
        self.address = ""
        self.half_closed = False
        self.writable = True
        self.write: Callable[[bytes], None] = write_nowhere  # the transport's own while there is one
        self.phase: int = IDLE
        self.deadline_s = 0.0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        stats = self._plane.stats
        stats.connections_total += 1
        if not self._listener.admit(self):
            stats.connections_refused += 1
            transport.close()
            return
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if isinstance(peer, tuple) else ""
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.write = transport.write  # type: ignore[attr-defined]
        self.deadline_s = self._plane.clock() + self._plane.limits.header_timeout_s

    def data_received(self, data: bytes) -> None:
        if self.phase == LINGER:
            return
        plane = self._plane
        if self.phase != ANSWER:
            now_s = plane.clock()
            if self.phase == BODY:
                self.deadline_s = now_s + plane.limits.body_timeout_s
            elif self.phase == IDLE:
                self.phase = HEAD
                self.deadline_s = now_s + plane.limits.header_timeout_s
        incoming = self._incoming
        if incoming is None or not incoming.in_body:
            self._raw_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fatal = self._fatal or RouterClosing(
                "the connection ends here"
            )  # the request is answered, what follows it is not HTTP/1.1
        except httptools.HttpParserError as error:
            self._fatal = self._fatal or BadFraming(f"the request is not valid HTTP: {error}")
        incoming = self._incoming
        too_large = self._raw_head_bytes > plane.limits.max_header_bytes + 4
        if too_large and incoming is not None and not incoming.in_body and self._fatal is None:
            limit = plane.limits.max_header_bytes
            self._fatal = HeadTooLarge(f"the request's head is larger than max_header_bytes ({limit})")
        if self.exchange is None:
            self._next()
        elif (len(self._waiting) >= MAX_PIPELINED or self._fatal) and not self._paused:
            self._paused = True
            self.transport.pause_reading()  # type: ignore[union-attr]

    def eof_received(self) -> bool:
        """A client that has sent all it wants may still read: keep the connection while an answer is due."""
        self.half_closed = True
        if self.phase == LINGER:
            return False
        if self._incoming is not None and self._fatal is None:
            self._fatal = BadFraming("the request ended before its body was complete")
        if self.exchange is None:
            self._next()
            return self._is_lingering() or self.exchange is not None
        self._probe_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.write = write_nowhere
        self._listener.forget(self)
        self._drop_incoming()
        for request in self._waiting:
            self._plane.stats.buffered_bytes -= request.body_bytes
        self._waiting.clear()
        if self.exchange is not None:
            exchange, self.exchange = self.exchange, None
            exchange.client_gone()

    def pause_writing(self) -> None:
        self.writable = False
        if self.exchange is not None:
            self.exchange.pause()

    def resume_writing(self) -> None:
        self.writable = True
        if self.exchange is not None:
            self.exchange.resume()

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._incoming = IncomingRequest(self._plane.clock())

    def on_url(self, url: bytes) -> None:
        incoming = self._incoming
        assert incoming is not None
        incoming.target += url
        incoming.header_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        incoming = self._incoming
        if incoming is None or incoming.in_body:
            return  # a trailer: nothing here is allowed to depend on it
        incoming.headers.append((name.lower(), name, value))
        incoming.header_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        incoming, limits = self._incoming, self._plane.limits
        assert incoming is not None
        incoming.in_body = True
        incoming.method = self._parser.get_method()
        error = check_head(incoming, self._parser.get_http_version(), limits.max_header_bytes, limits.max_body_bytes)
        self._raw_head_bytes = 0
        if error is not None:
            self._fatal = self._fatal or error
        elif incoming.framed and self.exchange is None:
            self.phase = BODY
            self.deadline_s = self._plane.clock() + limits.body_timeout_s
            if incoming.expects_continue and not self._waiting and self.transport is not None:
                self.transport.write(CONTINUE)
                incoming.expects_continue = False

    def on_body(self, piece: bytes) -> None:
        incoming = self._incoming
        if incoming is None or self._fatal is not None:
            return
        incoming.body.append(piece)
        incoming.body_bytes += len(piece)
        stats, limits = self._plane.stats, self._plane.limits
        stats.buffered_bytes += len(piece)
        if incoming.body_bytes > limits.max_body_bytes:
            self._fatal = BodyTooLarge(f"the request's body is larger than max_body_bytes ({limits.max_body_bytes})")
        elif stats.buffered_bytes > limits.max_buffered_bytes:
            self._fatal = RouterFull("the router holds too many request bytes; try again shortly")

    def on_message_complete(self) -> None:
        incoming = self._incoming
        if incoming is None or self._fatal is not None:
            return
        incoming.complete = True
        incoming.keep_alive = self._parser.should_keep_alive()
        self._incoming = None
        self._waiting.append(incoming)

    # The order of answers

    def _next(self) -> None:
        """Answer the next whole request, else the error that ended the input, else wait for more."""
        transport = self.transport
        if transport is None or transport.is_closing() or self.phase == LINGER:
            return
        if self._waiting:
            request = self._waiting.popleft()
            self.phase = ANSWER
            self.exchange = exchange = Exchange(self._plane, self, request)
            exchange.start()
            return
        if self._fatal is not None:
            self._refuse(self._fatal)
            return
        if self.half_closed:
            self.close_after_answer()
            return
        if self._paused:
            self._paused = False
            transport.resume_reading()
        if self._incoming is not None:
            self._await_rest(self._incoming)
        elif self.phase == ANSWER:
            self.phase = IDLE
            self.deadline_s = self._plane.clock() + self._plane.limits.keepalive_timeout_s

    def _await_rest(self, incoming: IncomingRequest) -> None:
        """The next request came in part while another was answered: its clock starts now."""
        if self.phase != ANSWER:
            return
        limits = self._plane.limits
        self.phase = BODY if incoming.in_body else HEAD
        limit_s = limits.body_timeout_s if incoming.in_body else limits.header_timeout_s
        self.deadline_s = self._plane.clock() + limit_s
        if incoming.in_body and incoming.expects_continue:
            self.transport.write(CONTINUE)  # type: ignore[union-attr]
            incoming.expects_continue = False

    def exchange_done(self, keep_alive: bool) -> None:
        """Called by the exchange once its answer is written whole (or as much of it as there will be)."""
        self.exchange = None
        transport = self.transport
        if transport is None:
            return
        if not keep_alive or self._plane.draining:
            self.close_after_answer()
        else:
            self._next()

    def _refuse(self, error: RouterError) -> None:
        """Answer an error that ends the connection. The request it belongs to was never whole."""
        self._drop_incoming()
        if not isinstance(error, RouterClosing):
            self._plane.refuse(self, error)
        self.close_after_answer()

    def _is_lingering(self) -> bool:
        return self.phase == LINGER

    def _drop_incoming(self) -> None:
        if self._incoming is not None:
            self._plane.stats.buffered_bytes -= self._incoming.body_bytes
            self._incoming = None

    def close_after_answer(self) -> None:
        """Send what is buffered, then FIN; throw input away for a moment so that the answer is not lost to a reset."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        for request in self._waiting:
            self._plane.stats.buffered_bytes -= request.body_bytes
        self._waiting.clear()
        self._drop_incoming()
        self.phase = LINGER
        if self.half_closed:
            self.deadline_s = self._plane.clock() + self._plane.limits.client_write_timeout_s
            transport.close()
            return
        if self._paused:
            self._paused = False
            transport.resume_reading()
        buffered = transport.get_write_buffer_size() > 0
        self.deadline_s = self._plane.clock() + (self._plane.limits.client_write_timeout_s if buffered else LINGER_S)
        transport.write_eof()

    def abort(self) -> None:
        """Cut the connection: the client must see that its answer is not whole."""
        if self.transport is not None:
            self.transport.abort()

    # Time

    def on_deadline(self, now_s: float) -> None:
        """Called by the sweep once `deadline_s` has passed."""
        self.deadline_s = now_s + 3600.0
        if self.phase == ANSWER and self.exchange is not None:
            self.exchange.on_deadline(now_s)
        elif self.phase in (HEAD, BODY):
            part = "head" if self.phase == HEAD else "body"
            self._refuse(RequestTimeout(f"the request's {part} did not arrive in time"))
        else:
            self.abort()

    def _probe_eof(self) -> None:
        """Tell a client that only half-closed from one that is gone, while its answer is due.

        Both look the same (FIN) until something is written: a closed peer answers that with a reset, which the next
        write reports.
        """
        exchange, transport = self.exchange, self.transport
        if exchange is None or transport is None:
            return
        probe = exchange.eof_probe()
        if probe:
            transport.write(probe)
        elif not exchange.answer_started:
            self.abort()  # an HTTP/1.0 client takes no interim answer: its EOF counts as going
            return
        if self._probes < len(EOF_PROBES_S):
            asyncio.get_running_loop().call_later(EOF_PROBES_S[self._probes], self._probe_eof)
            self._probes += 1


def write_nowhere(data: bytes) -> None:
    """Stands for the transport of a client that is gone."""


class RouterClosing(RouterError):
    """Ends a connection after the answers that are due, with no answer of its own."""


class Listener:
    """All client connections of the data port, and the clock that ends the late ones."""

    def __init__(self, plane: "DataPlane") -> None:
        self._plane = plane
        self._connections: set[ClientConnection] = set()

    def protocol(self) -> asyncio.Protocol:
        """A protocol for the next connection; the factory of `loop.create_server`."""
        return cast(asyncio.Protocol, ClientConnection(self._plane, self))

    def admit(self, connection: ClientConnection) -> bool:
        """False when the bound on connections is reached."""
        if len(self._connections) >= self._plane.limits.max_connections:
            return False
        self._connections.add(connection)
        self._plane.stats.connections_open = len(self._connections)
        return True

    def forget(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        self._plane.stats.connections_open = len(self._connections)

    def sweep(self, now_s: float) -> None:
        """End what is past its deadline; 5,000 connections cost 0.3 ms, a timer per request would cost 2 us each."""
        for connection in [c for c in self._connections if c.deadline_s <= now_s]:
            connection.on_deadline(now_s)

    def close_idle(self) -> None:
        """At shutdown: connections without a request close, the others after their answer."""
        for connection in list(self._connections):
            if connection.phase == IDLE:
                connection.close_after_answer()

    def owes_answers(self) -> bool:
        """Whether a request is being answered or bytes of an answer still wait to be sent."""
        return any(
            c.exchange is not None or (c.transport is not None and c.transport.get_write_buffer_size() > 0)
            for c in self._connections
        )

    def abort_all(self) -> None:
        for connection in list(self._connections):
            connection.abort()

    async def sweep_forever(self, clock: Callable[[], float]) -> None:
        """Runs until cancelled; also measures how late the event loop wakes it."""
        lag = self._plane.stats.loop_lag_s
        while True:
            asleep_s = clock()
            await asyncio.sleep(SWEEP_S)
            now_s = clock()
            lag.observe(max(0.0, now_s - asleep_s - SWEEP_S))
            self.sweep(now_s)
            self._plane.pool.sweep(now_s)
