"""An engine's answer on its way to the client: framing, whole events, and what is read in passing."""

from router.core.types import Usage
from router.wire.answer import TAIL_BYTES, has_first_token, read_usage, whole_events
from router.wire.http_head import LAST_CHUNK, AnswerFacts, add_line, chunk

COMMENT = b":\n\n"
KEPT_BYTES = 8 * TAIL_BYTES  # before the front of the tail is dropped
MAX_HELD_BYTES = 1024 * 1024  # an event larger than this is passed on in parts


class Relay:
    """Turns body pieces into bytes for the client; payload bytes are never changed.

    Of an event stream only whole events are passed on, so that an error event can follow at any time: engines send
    an event in one write, so nothing waits in practice.
    """

    __slots__ = (
        "_chunked",
        "_event_stream",
        "_head",
        "_held",
        "_readable",
        "_seeks_token",
        "_sized",
        "_tail",
        "_tail_bytes",
        "bytes_out",
        "found_first_token",
        "has_no_body",
        "keep_alive",
        "status",
    )

    def __init__(
        self,
        facts: AnswerFacts,
        status: int,
        reason: bytes,
        request_id: bytes,
        *,
        head_only: bool,
        accepts_chunks: bool,
        keep_alive: bool,
    ) -> None:
        self.status = status
        self.has_no_body = head_only or status in (204, 304)
        self._sized = sized = facts.content_length is not None and not facts.chunked
        self._chunked = not sized and accepts_chunks and not self.has_no_body
        self.keep_alive = keep_alive and (sized or self._chunked or self.has_no_body)
        self._readable = not facts.encoded
        self._event_stream = facts.event_stream and self._readable
        self._seeks_token = self._event_stream and status == 200
        self._held = b""
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self.bytes_out = 0
        self.found_first_token = False
        parts = [b"HTTP/1.1 %d %s\r\n" % (status, reason), *facts.lines]
        if not facts.request_id:
            add_line(parts, b"X-Request-Id", request_id)
        if sized:
            parts.append(b"Content-Length: %d\r\n" % (facts.content_length or 0))
        elif self._chunked:
            parts.append(b"Transfer-Encoding: chunked\r\n")
        if not self.keep_alive:
            parts.append(b"Connection: close\r\n")
        elif not accepts_chunks:
            parts.append(b"Connection: keep-alive\r\n")
        parts.append(b"\r\n")
        self._head = b"".join(parts)

    def pass_on(self, pieces: list[bytes], ended: bool) -> bytes:
        """Bytes to write now; b"" while an event is incomplete.

        The head of an event stream waits for the first event: some engines send it as soon as they take the request,
        and until a byte went to the client another worker may still answer.
        """
        if self.has_no_body:
            pieces = []
        if pieces and self._event_stream:
            pieces = self._whole(pieces, ended)
        elif ended and self._held:
            pieces, self._held = [self._held], b""
        if self._event_stream and not pieces and not ended:
            return b""
        head, self._head = self._head, b""
        for piece in pieces:
            self._look(piece)
        if self._chunked:
            output = head + chunk(pieces) if pieces else head
            if ended:
                output += LAST_CHUNK
        elif head or len(pieces) != 1:
            output = b"".join((head, *pieces))
        else:
            output = pieces[0]
        self.bytes_out += len(output)
        return output

    def takes_chunk(self, data: bytes) -> bool:
        """Account for a chunk of whole events that goes to the client as it is; False when it must go through `pass_on`."""
        if not self._event_stream or not self._chunked or self._held or self._head:
            return False
        self._look(data)
        self.bytes_out += len(data)
        return True

    def _whole(self, pieces: list[bytes], ended: bool) -> list[bytes]:
        """The pieces up to the end of the last whole event; the rest is held for the next call."""
        last = pieces[-1]
        if not self._held and last.endswith(b"\n\n"):
            return pieces
        data = b"".join((self._held, *pieces))
        end = len(data) if ended or len(data) > MAX_HELD_BYTES else whole_events(data)
        self._held = data[end:]
        return [data[:end]] if end else []

    def _look(self, piece: bytes) -> None:
        """Notice the first token, and keep the last bytes for `usage`."""
        if not self._readable:
            return
        if self._seeks_token and has_first_token(piece):
            self._seeks_token = False
            self.found_first_token = True
        self._tail.append(piece)
        self._tail_bytes += len(piece)
        if self._tail_bytes > KEPT_BYTES:
            self._trim()

    def _trim(self) -> None:
        kept = b"".join(self._tail)[-TAIL_BYTES:]
        self._tail, self._tail_bytes = [kept], len(kept)

    def usage(self) -> Usage | None:
        """What the answer said about tokens; None while it said nothing, or was compressed."""
        if not self._tail or self.status != 200:
            return None
        return read_usage(b"".join(self._tail)[-TAIL_BYTES:])

    def comment(self) -> bytes:
        """An SSE comment as it may stand between two events; b"" in other answers."""
        if not self._event_stream or self._sized:
            return b""
        return chunk([COMMENT]) if self._chunked else COMMENT

    def broken(self, event: bytes) -> bytes | None:
        """Bytes that end an answer whose source failed, or None when only cutting the connection tells the client.

        An event stream gets `event` and a proper end: the event, not the framing, says that it failed.
        """
        self._held = b""
        if not self._event_stream or self._sized:
            return None
        self.keep_alive = False
        return chunk([event]) + LAST_CHUNK if self._chunked else event
