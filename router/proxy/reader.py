"""Bytes of one client into whole requests, or into the error that ends its input. No I/O."""

from collections import deque
from collections.abc import Callable
from typing import Any

import httptools

from router.core.stats import Stats
from router.errors import BadFraming, BadRequest, BodyTooLarge, HeadTooLarge, RouterError, RouterFull
from router.proxy.request import IncomingRequest, check_head
from router.settings import LimitSettings

OVERHEAD_PER_BODY_BYTE = 16  # chunk sizes and line ends of a body sent byte by byte, and some

HEAD_SLACK_BYTES = 16  # method, version and line ends, which `header_bytes` leaves out


class InputEnded(BadRequest):
    """Ends a connection after the answers that are due, with no answer of its own."""

    reason = "input_ended"


class RequestReader:
    """Feeds a strict parser (llhttp). `waiting` holds whole requests in order; `fatal` what is wrong behind them.

    A body's bytes are counted in `stats.buffered_bytes` until its request is answered or given up. Trailers are read
    and dropped. The parser and this object refer to each other: `close` parts them.
    """

    __slots__ = ("_clock", "_limits", "_parser", "_resumed", "_stats", "fatal", "incoming", "waiting")

    def __init__(self, limits: LimitSettings, stats: Stats, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._stats = stats
        self._clock = clock
        self.incoming: IncomingRequest | None = None  # begun and not whole
        self.waiting: deque[IncomingRequest] = deque()
        self.fatal: RouterError | None = None
        self._resumed: IncomingRequest | None = None
        self._parser: Any = httptools.HttpRequestParser(self)  # None once closed

    def feed(self, data: bytes) -> None:
        """Take in one read. Nothing is read behind what was fatal."""
        if self.fatal is not None or self._parser is None:
            return
        before, whole = self.incoming, len(self.waiting)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._after_upgrade(data, upgrade.args[0])
        except httptools.HttpParserError as error:
            self._fail(BadFraming(f"the request is not valid HTTP: {error}"))
        incoming = self.incoming
        if incoming is None:
            return
        began_here = before is None and len(self.waiting) == whole and not incoming.in_body
        if incoming is before or began_here:  # all of the read belongs to it
            incoming.raw_bytes += len(data)
            self._check_overhead(incoming)

    def close(self) -> None:
        """Give everything back; nothing is read any more."""
        self._parser = None
        self.drop_incoming()
        for request in self.waiting:
            self._stats.buffered_bytes -= request.body_bytes
        self.waiting.clear()

    def drop_incoming(self) -> None:
        """Give up the request that is not whole."""
        for request in (self.incoming, self._resumed):
            if request is not None:
                self._stats.buffered_bytes -= request.body_bytes
        self.incoming = self._resumed = None

    def _fail(self, error: RouterError) -> None:
        """The first thing that is wrong counts; a callback may have found it in the midst of a read."""
        if self.fatal is None:
            self.fatal = error

    def _check_overhead(self, incoming: IncomingRequest) -> None:
        """Bound what a request costs besides its body: a head that does not end, trailers, chunk extensions."""
        limit = self._limits.max_header_bytes
        if not incoming.in_body:
            if max(incoming.header_bytes, incoming.raw_bytes) > limit + HEAD_SLACK_BYTES:
                self._fail(HeadTooLarge(f"the request's head is larger than max_header_bytes ({limit})"))
        elif incoming.raw_bytes - incoming.body_bytes > limit + OVERHEAD_PER_BODY_BYTE * incoming.body_bytes:
            self._fail(BadFraming("the request's body has far more framing than content"))

    def _after_upgrade(self, data: bytes, offset: int) -> None:
        """The parser stops at an offer to upgrade, which is ignored here (RFC 9110 §7.8), but the body that follows is not.

        A fresh parser reads it behind a head that says the same of its framing. A request without a body is whole, and
        what follows it is not HTTP/1.1.
        """
        request = self._resumed
        if request is None:
            self._fail(InputEnded("what follows an offer to upgrade is not read"))
            return
        length = request.header(b"content-length")
        framing = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: " + length
        self._parser = httptools.HttpRequestParser(self)
        self.feed(b"POST / HTTP/1.1\r\nHost: r\r\n" + framing + b"\r\n\r\n" + data[offset:])

    # httptools callbacks

    def on_message_begin(self) -> None:
        if self.fatal is not None:
            return
        if self._resumed is not None:
            self.incoming, self._resumed = self._resumed, None
        else:
            self.incoming = IncomingRequest(self._clock())

    def on_url(self, url: bytes) -> None:
        incoming = self.incoming
        if incoming is not None and not incoming.in_body:
            incoming.target += url
            incoming.header_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        incoming = self.incoming
        if incoming is not None and not incoming.in_body:  # in a body it is a trailer, or the head made up for a rest
            incoming.headers.append((name.lower(), name, value))
            incoming.header_bytes += len(name) + len(value) + 4

    def on_headers_complete(self) -> None:
        incoming, parser = self.incoming, self._parser
        if incoming is None or parser is None or incoming.in_body or self.fatal is not None:
            return
        incoming.in_body = True
        incoming.raw_bytes = 0
        incoming.method = parser.get_method()
        limits = self._limits
        self.fatal = check_head(incoming, parser.get_http_version(), limits.max_header_bytes, limits.max_body_bytes)

    def on_body(self, piece: bytes) -> None:
        incoming = self.incoming
        if incoming is None or self.fatal is not None:
            return
        incoming.body.append(piece)
        incoming.body_bytes += len(piece)
        stats, limits = self._stats, self._limits
        stats.buffered_bytes += len(piece)
        if incoming.body_bytes > limits.max_body_bytes:
            self.fatal = BodyTooLarge(f"the request's body is larger than max_body_bytes ({limits.max_body_bytes})")
        elif stats.buffered_bytes > limits.max_buffered_bytes:
            self.fatal = RouterFull("the router holds too many request bytes; try again shortly")

    def on_message_complete(self) -> None:
        incoming, parser = self.incoming, self._parser
        if incoming is None or parser is None or self.fatal is not None:
            return
        self.incoming = None
        if parser.should_upgrade() and incoming.framed and not incoming.body_follows:
            incoming.body_follows = True
            self._resumed = incoming
            return
        incoming.keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        self.waiting.append(incoming)
