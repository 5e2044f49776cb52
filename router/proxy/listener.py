"""Client connections: the order of answers, time limits, back-pressure, closing."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from router.errors import BadFraming, RequestTimeout, RouterError
from router.proxy.exchange import Exchange
from router.proxy.reader import InputEnded, RequestReader
from router.proxy.request import IncomingRequest
from router.wire.http_head import CONTINUE

if TYPE_CHECKING:
    from router.proxy.plane import DataPlane

log = logging.getLogger("warmline.proxy")
MAX_PIPELINED = 16  # whole requests waiting behind the one being answered; then reading stops
LINGER_S = 2.0  # time an erring client gets to read its answer before the connection is cut
EOF_PROBES_S = (0.05, 0.5)
SWEEP_S = 0.25  # how late a time limit may be noticed

# What a connection waits for; decides what its deadline means.
IDLE: Final = 0  # nothing of a request yet
HEAD: Final = 1
BODY: Final = 2
ANSWER: Final = 3  # an answer is being made, or the client does not read those before it
LINGER: Final = 4  # last answer sent, input is thrown away


class ClientConnection:
    """One client: an asyncio protocol. At most one exchange at a time; pipelined requests wait and are answered in order.

    It does not inherit from asyncio.Protocol, which would keep mypyc from making its attributes fast.
    """

    __slots__ = (
        "_choosing_next",
        "_listener",
        "_paused",
        "_plane",
        "_probes",
        "_reader",
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
        self._reader = RequestReader(plane.limits, plane.stats, plane.clock)
        self._paused = False
        self._choosing_next = False
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
        reader = self._reader
        reader.feed(data)
        if self.exchange is None:
            self._next()
        elif len(reader.waiting) >= MAX_PIPELINED or reader.fatal is not None:
            self._pause_reading()

    def eof_received(self) -> bool:
        """A client that has sent all it wants may still read: keep the connection while an answer is due."""
        self.half_closed = True
        if self.phase == LINGER:
            return False
        reader = self._reader
        if reader.incoming is not None and reader.fatal is None:
            reader.fatal = BadFraming("the request ended before its body was complete")
        if self.exchange is None:
            self._next()
        else:
            self._probe_eof()
        return True  # closing is up to `_next` and the end of the exchange

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.write = write_nowhere
        self._listener.forget(self)
        self._reader.close()
        if self.exchange is not None:
            exchange, self.exchange = self.exchange, None
            exchange.client_gone()

    def pause_writing(self) -> None:
        """The client does not read: take in no more requests of its, and nothing more of the answer."""
        self.writable = False
        self._pause_reading()
        if self.exchange is not None:
            self.exchange.pause()

    def resume_writing(self) -> None:
        self.writable = True
        if self.exchange is not None:
            self.exchange.resume()
        else:
            self._next()

    # The order of answers

    def _next(self) -> None:
        """Answer whole requests, one after another, while the client reads; then see what the connection waits for.

        A loop, as answers of the router's own end at once: a thousand pipelined ones must not nest.
        """
        if self._choosing_next:
            return
        self._choosing_next = True
        waiting = self._reader.waiting
        while waiting and self.exchange is None and self.writable and self._is_open():
            self.phase = ANSWER
            exchange = Exchange(self._plane, self, waiting.popleft())
            self.exchange = exchange
            exchange.start()
        self._choosing_next = False
        if self.exchange is None and self._is_open():
            self._await_more()

    def _is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing() and self.phase != LINGER

    def _await_more(self) -> None:
        """No answer is being made: wait for the client to read, for the rest of a request, or for the next one."""
        reader, limits, now_s = self._reader, self._plane.limits, self._plane.clock()
        if not self.writable:
            self.phase = ANSWER
            self.deadline_s = now_s + limits.client_write_timeout_s
        elif reader.fatal is not None:
            self._refuse(reader.fatal)
        elif self.half_closed:
            self.close_after_answer()
        else:
            self._resume_reading()
            if reader.incoming is not None:
                self._await_rest(reader.incoming, now_s)
            elif self.phase == ANSWER:
                self.phase = IDLE
                self.deadline_s = now_s + limits.keepalive_timeout_s

    def _await_rest(self, incoming: IncomingRequest, now_s: float) -> None:
        """A request has begun: its head has a clock of its own, its body one that each read winds up again."""
        limits = self._plane.limits
        if not incoming.in_body:
            if self.phase != HEAD:
                self.phase = HEAD
                self.deadline_s = now_s + limits.header_timeout_s
            return
        self.phase = BODY
        total_s = incoming.started_s + self._plane.timeouts.total_timeout_s
        self.deadline_s = min(now_s + limits.body_timeout_s, total_s)
        if incoming.expects_continue:
            incoming.expects_continue = False
            self.write(CONTINUE)

    def exchange_done(self, keep_alive: bool) -> None:
        """Called by the exchange once its answer is written whole (or as much of it as there will be)."""
        self.exchange = None
        if self.transport is None:
            return
        if not keep_alive or self._plane.draining:
            self.close_after_answer()
        else:
            self._next()

    def _refuse(self, error: RouterError) -> None:
        """Answer an error that ends the connection. The request it belongs to was never whole."""
        self._reader.drop_incoming()
        if not isinstance(error, InputEnded):
            self._plane.refuse(self, error)
        self.close_after_answer()

    def close_after_answer(self) -> None:
        """Send what is buffered, then FIN; throw input away for a moment so that the answer is not lost to a reset."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self._reader.close()
        self.phase = LINGER
        limits, now_s = self._plane.limits, self._plane.clock()
        if self.half_closed:
            self.deadline_s = now_s + limits.client_write_timeout_s
            transport.close()
            return
        self._resume_reading()
        buffered = transport.get_write_buffer_size() > 0
        self.deadline_s = now_s + (limits.client_write_timeout_s if buffered else LINGER_S)
        transport.write_eof()

    def abort(self) -> None:
        """Cut the connection: the client must see that its answer is not whole."""
        if self.transport is not None:
            self.transport.abort()

    def owes_answer(self) -> bool:
        """Whether a request is being read or answered, or bytes of an answer still wait to be sent."""
        if self.exchange is not None or self._reader.incoming is not None or self._reader.waiting:
            return True
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def _pause_reading(self) -> None:
        if not self._paused and self._is_open():
            self._paused = True
            self.transport.pause_reading()  # type: ignore[union-attr]

    def _resume_reading(self) -> None:
        if self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    # Time

    def on_deadline(self, now_s: float) -> None:
        """Called by the sweep once `deadline_s` has passed."""
        self.deadline_s = now_s + 3600.0
        if self.exchange is not None:
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
        exchange = self.exchange
        if exchange is None or self.transport is None:
            return
        probe = exchange.eof_probe()
        if probe:
            self.write(probe)
        elif not exchange.answer_started:
            self.abort()  # an HTTP/1.0 client takes no interim answer: its EOF counts as going
            return
        if self._probes < len(EOF_PROBES_S):
            asyncio.get_running_loop().call_later(EOF_PROBES_S[self._probes], self._probe_eof)
            self._probes += 1


def write_nowhere(data: bytes) -> None:
    """Stands for the transport of a client that is gone."""


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
            try:
                connection.on_deadline(now_s)
            except Exception:  # one connection must not stop the clock of all
                self._plane.surprised("ending a late request")
                connection.abort()

    def close_idle(self) -> None:
        """At shutdown: connections without a request close, the others after their answer."""
        for connection in list(self._connections):
            if connection.phase == IDLE:
                connection.close_after_answer()

    def owes_answers(self) -> bool:
        """Whether any client still has something coming."""
        return any(connection.owes_answer() for connection in self._connections)

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
