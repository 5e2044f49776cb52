"""HTTP/1.1 heads as bytes: what a proxy drops, keeps and adds (RFC 9110 §7.6, RFC 9112)."""

from collections.abc import Iterable, Sequence
from typing import Final

Header = tuple[bytes, bytes]

# RFC 9110 §7.6.1 and the headers that describe one connection; Content-Length and Transfer-Encoding are re-made here.
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    )
)
DROPPED_FROM_ANSWER = HOP_BY_HOP | {b"content-length"}
DROPPED_FROM_REQUEST = HOP_BY_HOP | {b"expect", b"content-length", b"host"}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
LF: Final = 10
CR: Final = 13

REASONS = {
    200: b"OK",
    400: b"Bad Request",
    404: b"Not Found",
    405: b"Method Not Allowed",
    408: b"Request Timeout",
    413: b"Content Too Large",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    502: b"Bad Gateway",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
}


def named_by_connection(value: bytes) -> set[bytes]:
    """Header names, lower-case, that a Connection header makes hop-by-hop."""
    return {token for part in value.split(b",") if (token := part.strip().lower())}


def request_head(
    method: bytes,
    target: bytes,
    headers: Iterable[tuple[bytes, bytes, bytes]],
    *,
    host: bytes,
    body_bytes: int | None,
    dropped: frozenset[bytes] | set[bytes] = DROPPED_FROM_REQUEST,
    added: Sequence[Header] = (),
) -> bytes:
    """Head of the request to a worker. `headers` are (lower-case name, name, value); those in `dropped` stay behind.

    `body_bytes` None means the client sent no body framing, so none is made up.
    """
    parts = [method, b" ", target, b" HTTP/1.1\r\nHost: ", host, b"\r\n"]
    for lower, name, value in headers:
        if lower not in dropped:
            add_line(parts, name, value)
    for name, value in added:
        add_line(parts, name, value)
    if body_bytes is not None:
        parts.append(b"Content-Length: %d\r\n" % body_bytes)
    parts.append(b"\r\n")
    return b"".join(parts)


def add_line(parts: list[bytes], name: bytes, value: bytes) -> None:
    """Appends a header line in pieces: joining all pieces at the end costs half of formatting each line."""
    parts.append(name)
    parts.append(b": ")
    parts.append(value)
    parts.append(b"\r\n")


def response_head(status: int, reason: bytes, headers: Iterable[Header], added: Sequence[Header] = ()) -> bytes:
    """Head of an interim answer to a client, without the worker's hop-by-hop headers."""
    lines = [b"HTTP/1.1 %d %s" % (status, reason)]
    lines += [b"%s: %s" % header for header in headers if header[0].lower() not in HOP_BY_HOP]
    lines += [b"%s: %s" % header for header in added]
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


class AnswerFacts:
    """What the head of a worker's answer says about framing, in one pass over its headers.

    `lines` are the end-to-end header lines in pieces, to be joined by nothing; Content-Length and Transfer-Encoding are
    not among them.
    `content_length` is None when absent or not a number.
    """

    __slots__ = ("chunked", "content_length", "encoded", "event_stream", "lines", "request_id")

    def __init__(self, headers: Sequence[Header]) -> None:
        self.content_length: int | None = None
        self.chunked = self.event_stream = self.encoded = False
        self.request_id = False
        self.lines: list[bytes] = []
        dropped: set[bytes] | frozenset[bytes] = DROPPED_FROM_ANSWER
        for name, value in headers:
            if name.lower() == b"connection" and value.lower() not in (b"keep-alive", b"close"):
                dropped = dropped | named_by_connection(value)
        for name, value in headers:
            lower = name.lower()
            if lower in dropped:
                if lower == b"content-length":
                    self.content_length = int(value) if value.isdigit() else None
                elif lower == b"transfer-encoding":
                    self.chunked = value.lower().endswith(b"chunked")
                continue
            if lower == b"content-type":
                self.event_stream = value.lower().startswith(b"text/event-stream")
            elif lower == b"content-encoding":
                self.encoded = value.lower() != b"identity"
            elif lower == b"x-request-id":
                self.request_id = True
            add_line(self.lines, name, value)


def local_answer(
    status: int,
    body: bytes,
    *,
    request_id: bytes,
    content_type: bytes = b"application/json",
    close: bool = False,
    head_only: bool = False,
    retry_after_s: int | None = None,
) -> bytes:
    """A whole answer made by the router itself."""
    lines = [
        b"HTTP/1.1 %d %s" % (status, REASONS.get(status, b"Unknown")),
        b"Content-Type: " + content_type,
        b"Content-Length: %d" % len(body),
        b"X-Request-Id: " + request_id,
    ]
    if retry_after_s is not None:
        lines.append(b"Retry-After: %d" % retry_after_s)
    if close:
        lines.append(b"Connection: close")
    lines.append(b"\r\n")
    return b"\r\n".join(lines) + (b"" if head_only else body)


def chunk(pieces: Sequence[bytes]) -> bytes:
    """One chunk of a chunked body holding all pieces; b"" when they are empty, which would end the body."""
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def is_event_chunk(data: bytes) -> bool:
    """Whether `data` is exactly one chunk without extensions whose payload ends with a blank line, as events do."""
    length = len(data)
    if length < 7 or data[length - 1] != LF or data[length - 2] != CR or data[length - 3] != LF or data[length - 4] != LF:
        return False
    size = at = 0
    while at < 8:
        byte = data[at]
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= byte <= 102:
            digit = byte - 87
        elif 65 <= byte <= 70:
            digit = byte - 55
        else:
            break
        size = size * 16 + digit
        at += 1  # never beyond the end: its last bytes are no digits
    return at > 0 and length == at + size + 4 and data[at] == CR and data[at + 1] == LF


def origin_path(target: bytes) -> tuple[bytes, bytes]:
    """(path, origin-form target) of a request target, which may be in absolute form (RFC 9112 §3.2.2)."""
    if not target.startswith(b"/"):
        scheme, separator, rest = target.partition(b"://")
        if separator and scheme.lower() in (b"http", b"https"):
            slash = rest.find(b"/")
            target = rest[slash:] if slash >= 0 else b"/"
    return target.partition(b"?")[0], target


def clean_request_id(value: bytes) -> bytes | None:
    """A client's X-Request-Id if it is safe to echo and log: 1–128 visible ASCII characters, no quotes or `=`; else None."""
    if 0 < len(value) <= 128 and value.isascii():
        text = value.decode("ascii")
        if text.isprintable() and not set(text) & set(' "=\\<>'):
            return value
    return None
