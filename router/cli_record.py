"""`warmline record`: follows a router's `GET /recording` into a trace file until it is told, or has reason, to end."""

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from router.cli_show import AdminError, admin_errors, asked, base_url, fail
from router.errors import SettingsError
from router.options import SIZE_UNITS, read_size
from router.trace_file import TraceFile
from router.trace_lines import NotARecording, TraceLines

SILENCE_S: Final = 10.0  # the router says something each second
MAX_LINE_BYTES: Final = 32 * 1024 * 1024
FLUSH_S: Final = 5.0  # what a recorder that is killed loses
RESERVE_BYTES: Final = 4096  # besides the workers in the last line
MIN_FILE_BYTES: Final = 64 * 1024
DURATION_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
ENDINGS: Final = {  # as the file tells them, and in words
    "interrupted": "stopped",
    "duration": "--duration is over",
    "max_requests": "--max-requests is reached",
    "max_bytes": "--max-bytes is reached",
    "router_stopped": "the router stopped",
    "router_lost": "the connection to the router broke",
    "router_silent": f"the router said nothing for {SILENCE_S:g} s",
    "not_a_recording": "the router sent what is no recording",
}
WANTED: Final = frozenset(("interrupted", "duration", "max_requests", "max_bytes"))


@dataclass(frozen=True)
class RecordLimits:
    """When to end, None: not for that. `max_blocks` bounds memory: about 120 bytes each."""

    duration_s: float | None
    max_bytes: int
    max_requests: int | None
    max_blocks: int


def read_limits(duration: str | None, max_bytes: str, max_requests: str | None, max_blocks: str) -> RecordLimits:
    """From flags as they were written. Raises SettingsError naming the flag, its value and what is allowed."""
    return RecordLimits(
        None if duration is None else read_duration(duration),
        read_count("max_bytes", max_bytes, MIN_FILE_BYTES),
        None if max_requests is None else read_count("max_requests", max_requests, 1),
        read_count("max_blocks", max_blocks, 1024),
    )


def read_duration(text: str) -> float:
    matched = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)", text.lower())
    if matched is None or not float(matched[1]) > 0:
        raise SettingsError(f"duration: {text!r} is not a time such as 90s, 10m or 2h")
    return float(matched[1]) * DURATION_UNITS[matched[2]]


def read_count(name: str, text: str, low: int) -> int:
    try:
        value = read_size(text)
    except ValueError:
        value = -1
    if value < low:
        raise SettingsError(f"{name}: {text!r} is not a number such as 65536, 64k or 2g, at least {low}")
    return value


def record(admin: str, out: Path, limits: RecordLimits) -> int:
    """Writes `out`, which must not exist. Returns the exit status: 0 when it ended as it was to, 1 when the router went."""
    try:
        with Interrupts() as interrupts, TraceFile(out, limits.max_bytes) as file:
            try:
                recorder = Recorder(file, limits, interrupts)
                base = base_url(admin)
                with admin_errors(base):
                    answer = asked(base + "/recording", "application/x-ndjson", SILENCE_S)
                with answer:
                    ended = recorder.run(answer)
            except AdminError:
                out.unlink()  # nothing came, so nothing is left
                raise
    except AdminError as error:
        return fail(error)
    except OSError as error:
        return fail(AdminError(f"--out {out}: {error.strerror or error}"))
    print(f"{out}: {recorder.summary()}; {ENDINGS[ended]}")
    return 0 if ended in WANTED else 1


class Stopped(Exception):
    """SIGINT or SIGTERM came."""


class Interrupts:
    """SIGINT and SIGTERM end the wait for the next line, and nothing else: no line is ever written by half.

    A context manager that puts the old handlers back. Handlers belong to the main thread.
    """

    def __init__(self) -> None:
        self.asked = False
        self._waits = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._waits:
            self._waits = False
            raise Stopped

    def wait(self, read: Callable[[], bytes]) -> bytes:
        """What `read` returns. Raises Stopped instead if a signal came before or comes meanwhile."""
        self._waits = True
        try:
            if self.asked:
                raise Stopped
            return read()
        finally:
            self._waits = False


class Recorder:
    """One recording, from its first line to the last of the file."""

    def __init__(self, file: TraceFile, limits: RecordLimits, interrupts: Interrupts) -> None:
        self._file = file
        self._limits = limits
        self._interrupts = interrupts
        self._lines = TraceLines(limits.max_blocks)
        self._reserve_bytes = 0
        self._began_s = time.monotonic()
        self._flushed_s = self._began_s

    def run(self, answer: HTTPResponse) -> str:
        """Writes all of the file; why it ended, one of ENDINGS. Raises AdminError where no recording begins."""
        try:
            head = self._next(answer)
            if not head:
                raise NotARecording("nothing came")
            self._file.write(self._lines.header(head))
        except (NotARecording, TimeoutError) as error:
            raise AdminError(f"the admin port does not answer like that of Warmline: {error}") from None
        except Stopped:
            raise AdminError("stopped before anything was recorded") from None
        self._file.flush()
        self._keep_reserve()
        with shown_progress(Console(stderr=True)) as show:
            ended = self._follow(answer, show)
        self._file.write(self._lines.footer(ended))
        return ended

    def _follow(self, answer: HTTPResponse, show: Callable[[str], None]) -> str:
        limits = self._limits
        while True:
            try:
                sent = self._next(answer)
                ended = self._take(sent) if sent is not None else "router_lost"
            except Stopped:
                return "interrupted"
            except NotARecording:
                return "not_a_recording"
            except TimeoutError:
                return "router_silent"
            if ended is not None:
                return ended
            now_s = time.monotonic()
            if limits.duration_s is not None and now_s - self._began_s >= limits.duration_s:
                return "duration"
            if now_s - self._flushed_s >= FLUSH_S:
                self._flushed_s = now_s
                self._file.flush()
            if sent is not None and "state" in sent:
                show(self.summary())

    def _next(self, answer: HTTPResponse) -> dict[str, Any] | None:
        """The next line; None at the end of the answer, however it came. Raises Stopped, TimeoutError, NotARecording."""
        try:
            data = self._interrupts.wait(lambda: answer.readline(MAX_LINE_BYTES))
        except TimeoutError:
            raise
        except (OSError, HTTPException):
            return None
        if not data.endswith(b"\n"):
            if len(data) >= MAX_LINE_BYTES:
                raise NotARecording("a line is too long")
            return None
        try:
            sent = json.loads(data)
        except (ValueError, RecursionError):
            sent = None
        if not isinstance(sent, dict):
            raise NotARecording("a line is no JSON object")
        return sent

    def _take(self, sent: dict[str, Any]) -> str | None:
        """Writes what one line means; why that was the last, or None."""
        if "end" in sent:
            return "router_stopped"
        if "state" in sent:
            self._lines.state(sent["state"])
            self._keep_reserve()
            return None
        text = self._lines.request(sent)
        if not self._file.has_room(text, self._reserve_bytes):
            self._lines.requests -= 1
            return "max_bytes"
        self._file.write(text)
        return "max_requests" if self._lines.requests == self._limits.max_requests else None

    def _keep_reserve(self) -> None:
        self._reserve_bytes = RESERVE_BYTES + len(self._lines.footer("")) if self._lines.workers else RESERVE_BYTES

    def summary(self) -> str:
        """How much there is so far, in words."""
        lines = self._lines
        dropped = f", {lines.dropped:,} dropped" if lines.dropped else ""
        requests = "1 request" if lines.requests == 1 else f"{lines.requests:,} requests"
        return f"{requests}{dropped}, {size_text(self._file.size_bytes)}, {time.monotonic() - self._began_s:.0f} s"


def size_text(size_bytes: int) -> str:
    for unit in ("g", "m", "k"):
        if size_bytes >= SIZE_UNITS[unit]:
            return f"{size_bytes / SIZE_UNITS[unit]:.1f} {unit.upper()}B"
    return f"{size_bytes} bytes"


@contextmanager
def shown_progress(screen: Console) -> Iterator[Callable[[str], None]]:
    """To be called with the latest summary; a line that changes on a terminal, nothing elsewhere."""
    if not screen.is_terminal:
        yield lambda summary: None
        return
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        live.update(Text("recording … Ctrl-C ends"), refresh=True)
        yield lambda summary: live.update(Text(f"recording: {summary}; Ctrl-C ends"), refresh=True)
