"""One request as it was read from a client."""

from router.errors import BadFraming, BodyTooLarge, HeadTooLarge, RouterError, VersionNotSupported

KEYED_TAIL_BYTES = 64 * 1024
LowerHeader = tuple[bytes, bytes, bytes]  # lower-case name, name, value


class IncomingRequest:
    """Filled while the parser runs. The body is kept as it came, in pieces."""

    __slots__ = (
        "accepts_chunks",
        "body",
        "body_bytes",
        "body_follows",
        "expects_continue",
        "framed",
        "header_bytes",
        "headers",
        "in_body",
        "keep_alive",
        "method",
        "raw_bytes",
        "started_s",
        "target",
    )

    def __init__(self, started_s: float) -> None:
        self.started_s = started_s
        self.method = b""
        self.target = b""
        self.headers: list[LowerHeader] = []
        self.header_bytes = 0
        self.body: list[bytes] = []
        self.body_bytes = 0
        self.framed = False  # a body was announced, if only an empty one
        self.in_body = False
        self.raw_bytes = 0  # of reads that hold nothing but its head, and after that nothing but its body
        self.body_follows = False  # behind an offer to upgrade: see RequestReader
        self.keep_alive = True
        self.expects_continue = False
        self.accepts_chunks = True  # False for HTTP/1.0 clients

    def header(self, lower_name: bytes) -> bytes | None:
        """The first header of that name."""
        for lower, _, value in self.headers:
            if lower == lower_name:
                return value
        return None

    def leading_body(self, limit: int) -> bytes:
        """The whole body; of one above `limit` bytes only its first and last ones, in more than `limit` bytes.

        Joining a body of 20 MB would stall everyone for 5 ms; keys are made from its first bytes, and clients that send
        `model` last put it into the last ones.
        """
        if len(self.body) == 1:
            return self.body[0]
        if self.body_bytes <= limit:
            return b"".join(self.body)
        leading: list[bytes] = []
        size = 0
        for piece in self.body:
            leading.append(piece)
            size += len(piece)
            if size > limit:
                break
        return b"".join((*leading, self.body[-1][-KEYED_TAIL_BYTES:]))


def check_head(request: IncomingRequest, version: str, max_header_bytes: int, max_body_bytes: int) -> RouterError | None:
    """Read the framing headers into `request`; the error to answer, if any.

    llhttp has refused what is ambiguous in itself (both lengths, two lengths, chunked not last); here follow the rules
    it leaves to its user: versions, Host (RFC 9112 §3.2), other transfer codings, sizes.
    """
    if version not in ("1.1", "1.0"):
        return VersionNotSupported(f"HTTP/{version} is not spoken here; use HTTP/1.1")
    if request.header_bytes > max_header_bytes:
        return HeadTooLarge(f"the request's head is larger than max_header_bytes ({max_header_bytes})")
    request.accepts_chunks = version == "1.1"
    hosts = 0
    for lower, _, value in request.headers:
        if lower == b"host":
            hosts += 1
        elif lower == b"content-length":
            request.framed = True
            if int(value) > max_body_bytes:
                return BodyTooLarge(f"the request's body is larger than max_body_bytes ({max_body_bytes})")
        elif lower == b"transfer-encoding":
            request.framed = True
            if value.strip().lower() != b"chunked":
                return BadFraming("transfer codings other than chunked are not supported")
            if version == "1.0":
                return BadFraming("HTTP/1.0 has no transfer codings")
        elif lower == b"expect":
            request.expects_continue = value.lower() == b"100-continue" and version == "1.1"
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return BadFraming(f"a request has one Host header; this one has {hosts}")
    return None
