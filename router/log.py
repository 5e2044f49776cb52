"""Log lines: messages of the program on standard error, one line per request on standard output.

Neither ever blocks the event loop (see line_writer.py), and neither shows prompts, headers or keys.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

import orjson

from router.core.stats import Stats
from router.line_writer import LineWriter
from router.settings import LogSettings

ACCESS_DELAY_S = 0.1  # lines of this long go out in one write
BATCH_LINES = 256  # made at once: half a millisecond
LINE = (
    "time=%s.%03dZ id=%s method=%s path=%s%s outcome=%s%s%s%s%s"
    " duration_ms=%.2f bytes_in=%d bytes_out=%d client=%s retries=%d\n"
)
CHOSEN = " worker=%s policy=%s choice=%s keys=%s prompt_tokens=%s predicted_cached=%s"
MAX_TEXT = 256  # longest client-chosen text kept in a line


class AccessEntry(NamedTuple):
    """One answered request. None is unknown or does not apply; times in seconds, `at_s` on the wall clock."""

    at_s: float
    request_id: str
    method: str
    path: str  # shown without its query, which may hold a secret
    client: str  # address of the client
    status: int | None  # None: the client went before any answer
    outcome: str  # ok, client_gone, or the reason of an error
    model: str | None = None
    worker: str | None = None
    policy: str | None = None
    choice: str | None = None  # why this worker: Decision.reason
    keys: str | None = None  # form of the keys
    prompt_tokens: int | None = None
    predicted_cached_tokens: int | None = None
    actual_cached_tokens: int | None = None
    ttft_s: float | None = None
    duration_s: float = 0.0
    request_bytes: int = 0
    response_bytes: int = 0
    retries: int = 0


def call_later(delay_s: float, call: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, call)


class AccessLog:
    """Entries are kept for a moment, made into lines together on the event loop, and written by a thread in one piece.

    On streams at 118/s a line cost 30 us: its code was cold, and the writing thread took the interpreter lock for
    each. Lines made by the thread cost the loop 11 us a request for that lock.
    """

    def __init__(
        self, settings: LogSettings, stats: Stats, fd: int = 1, later: Callable[[float, Callable[[], None]], None] = call_later
    ) -> None:
        self._stats = stats
        self._render = access_json if settings.log_format == "json" else access_text
        self._later = later
        self._batch_lines = min(BATCH_LINES, max(1, settings.max_log_lines // 2))
        self._entries: list[AccessEntry] = []
        self._writer = LineWriter(fd, settings.max_log_lines, self._count_drop, "access-log")

    @property
    def waiting(self) -> int:
        """Lines not yet written."""
        return len(self._entries) + self._writer.waiting

    def write(self, entry: AccessEntry) -> None:
        """Keeps an entry for the next batch. Holds no more than a line's worth of text."""
        if len(entry.path) > MAX_TEXT or len(entry.request_id) > MAX_TEXT or (entry.model and len(entry.model) > MAX_TEXT):
            entry = shortened(entry)
        self._entries.append(entry)
        waiting = len(self._entries)
        if waiting >= self._batch_lines:
            self.flush()
        elif waiting == 1:
            self._later(ACCESS_DELAY_S, self.flush)

    def flush(self) -> None:
        """Hands what waits to the writing thread; where too much waits there it is dropped and counted."""
        entries, self._entries = self._entries, []
        lines: list[bytes] = []
        for entry in entries:
            try:
                lines.append(self._render(entry))
            except Exception:  # one odd entry must not cost the others their lines
                self._count_drop(1)
        if lines:
            self._writer.write(b"".join(lines), len(lines))

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what waits, for at most `timeout_s`."""
        self.flush()
        self._writer.close(timeout_s)

    def _count_drop(self, lines: int) -> None:
        self._stats.log_lines_dropped += lines


def shortened(entry: AccessEntry) -> AccessEntry:
    model = entry.model and entry.model[:MAX_TEXT]
    return entry._replace(path=entry.path[:MAX_TEXT], request_id=entry.request_id[:MAX_TEXT], model=model)


@lru_cache(maxsize=16)
def second_text(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def time_text(at_s: float) -> str:
    """ISO 8601 in UTC with milliseconds."""
    milliseconds = int(at_s * 1000)
    return f"{second_text(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)


PLAIN_WORD = re.compile(r"[!#-<>-\[\]-~]+").fullmatch  # printable ASCII but space, quote, = and backslash


def quoted(text: str) -> str:
    """Text as one word of a key=value line: in quotes when it holds spaces, quotes, `=` or anything unprintable."""
    if PLAIN_WORD(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


quoted_again = lru_cache(maxsize=1024)(quoted)  # for words that repeat: paths, models, methods


def access_fields(entry: AccessEntry) -> dict[str, object]:
    """The fields of a line under their names in the log, in order."""
    return {
        "time": time_text(entry.at_s),
        "id": entry.request_id,
        "method": entry.method,
        "path": entry.path.partition("?")[0],
        "status": entry.status,
        "outcome": entry.outcome,
        "model": entry.model,
        "worker": entry.worker,
        "policy": entry.policy,
        "choice": entry.choice,
        "keys": entry.keys,
        "prompt_tokens": entry.prompt_tokens,
        "predicted_cached": entry.predicted_cached_tokens,
        "actual_cached": entry.actual_cached_tokens,
        "ttft_ms": milliseconds(entry.ttft_s),
        "duration_ms": milliseconds(entry.duration_s),
        "bytes_in": entry.request_bytes,
        "bytes_out": entry.response_bytes,
        "client": entry.client,
        "retries": entry.retries,
    }


def access_text(entry: AccessEntry) -> bytes:
    """`key=value …`; what is unknown is left out. One template for all of it: 1 us where f-strings took 3."""
    milliseconds = int(entry.at_s * 1000)
    status = "" if entry.status is None else f" status={entry.status}"
    model = "" if entry.model is None else " model=" + quoted_again(entry.model)
    chosen = "" if entry.worker is None else CHOSEN % (quoted_again(entry.worker), *entry[9:14])  # to predicted_cached_tokens
    actual = "" if entry.actual_cached_tokens is None else f" actual_cached={entry.actual_cached_tokens}"
    ttft = "" if entry.ttft_s is None else " ttft_ms=%.2f" % (entry.ttft_s * 1000)
    line = LINE % (
        second_text(milliseconds // 1000),
        milliseconds % 1000,
        quoted(entry.request_id),
        quoted_again(entry.method),
        quoted_again(entry.path.partition("?")[0]),
        status,
        entry.outcome,
        model,
        chosen,
        actual,
        ttft,
        entry.duration_s * 1000,
        entry.request_bytes,
        entry.response_bytes,
        entry.client,
        entry.retries,
    )
    return line.encode()


def access_json(entry: AccessEntry) -> bytes:
    """One object with every field; what is unknown is null."""
    return json_line(access_fields(entry))


def json_line(fields: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError:  # lone surrogates
        clean = {k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for k, v in fields.items()}
        return orjson.dumps(clean, option=orjson.OPT_APPEND_NEWLINE)


def one_line(text: str) -> str:
    """Text of others (an engine's error, say) can neither start a line of its own nor steer a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z INFO warmline.fleet worker is ready`; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{time_text(record.created)} {record.levelname} {record.name} {one_line(record.getMessage())}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": time_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json_line(fields).decode().rstrip("\n")


class MessageLog(logging.Handler):
    """Handler that formats where it is called (messages are rare) and leaves writing to a thread."""

    def __init__(self, settings: LogSettings, stats: Stats, fd: int = 2) -> None:
        super().__init__()
        self._stats = stats
        self.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
        self._writer = LineWriter(fd, settings.max_log_lines, self._count_drop, "message-log")

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.write(encoded(self.format(record)))
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Called by logging at exit too: what waits is written, for at most two seconds."""
        self._writer.close()
        super().close()

    def _count_drop(self, lines: int) -> None:
        self._stats.log_lines_dropped += lines


def encoded(line: str) -> bytes:
    return line.encode("utf-8", "replace") + b"\n"


def setup_logging(settings: LogSettings, stats: Stats, fd: int = 2) -> MessageLog:
    """Sends all loggers to `fd`; the caller closes the returned handler last. Replaces what an earlier call set."""
    handler = MessageLog(settings, stats, fd)
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, MessageLog)]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(settings.log_level.upper())
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    return handler
