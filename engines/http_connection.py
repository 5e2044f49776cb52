"""One kept connection to an engine, for small questions: an asyncio protocol that asks one thing at a time."""

import asyncio
from typing import Any

import httptools

MAX_HEAD_BYTES = 64 * 1024


class ConnectionGone(Exception):
    """Closed before the answer was whole; `before_answer`: not a byte of it had come."""

    def __init__(self, before_answer: bool) -> None:
        super().__init__("closed")
        self.before_answer = before_answer


class NotHttp(Exception):
    """What came is not an HTTP answer."""


class TooLarge(Exception):
    """The body is longer than the limit."""


class HttpConnection(asyncio.Protocol):
    """Reads one answer of bounded size after each request.

    Through aiohttp's client a look at an engine cost the router half as much again: with six looks a second at each of four
    engines it was a fifth of the CPU of streaming 117 answers a second.
    """

    def __init__(self) -> None:
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[None] | None = None
        self._start(0)

    def _start(self, limit_bytes: int) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._limit_bytes = limit_bytes
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._size = 0
        self._answered = False  # bytes have come
        self._complete = False
        self._until_close = False
        self.status = 0
        self.headers: dict[str, str] = {}

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def ask(self, request: bytes, limit_bytes: int) -> bytes:
        """Sends a whole request and returns the body of its answer; `status` and `headers` (lower case) stand beside it.

        Raises ConnectionGone, NotHttp or TooLarge; after those, and when cancelled, the connection is closed.
        """
        if self._transport is None:
            raise ConnectionGone(before_answer=True)
        self._start(limit_bytes)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None
        pieces, self._pieces = self._pieces, []  # an idle connection holds no answer
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # spoke unasked, or more than it was asked for
            return
        self._answered = True
        in_head = not self.status
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(NotHttp(str(error)))
        if in_head:
            self._head_bytes += len(data) - self._size
            if self._head_bytes > MAX_HEAD_BYTES:
                self._fail(NotHttp("its head is too large"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._until_close and exc is None:
            self._done()
        else:
            self._fail(ConnectionGone(not self._answered))

    # httptools

    def on_message_begin(self) -> None:
        if self._complete:
            self.close()  # a second answer to one question

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._complete:
            return
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
            return
        self.status = status
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        self._until_close = not framed and status not in (204, 304)

    def on_body(self, piece: bytes) -> None:
        if self._complete:
            return
        self._size += len(piece)
        if self._size > self._limit_bytes:
            self._fail(TooLarge())
        else:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        if self.status and not self._complete:
            self._complete = True
            if not self._parser.should_keep_alive():
                self.close()
            self._done()

    def _done(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def _fail(self, error: Exception) -> None:
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
