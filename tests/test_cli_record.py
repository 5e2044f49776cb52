"""`warmline record` against a small admin port that sends what a test wants: why it ends, and that the file is whole."""

import gzip
import io
import json
import os
import signal
import threading
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from rich.console import Console

from router import cli_record
from router.cli import main
from router.cli_record import RecordLimits, read_duration, read_limits, shown_progress, size_text
from router.errors import SettingsError

HEAD = {"warmline_recording": 1, "block_tokens": 16, "policy": "warm", "recorded_at": "2026-12-01T06:00Z", "workers": []}


def request(*keys: int) -> dict[str, Any]:
    packed = b64encode(b"".join(key.to_bytes(8, "little") for key in keys)).decode()
    return {"timestamp": 1.0, "input_length": 40, "keys": packed, "key_form": "tokens", "reason": "session", "outcome": "ok"}


STATE = {"state": {"timestamp": 5.0, "dropped": 0}}
Script = Callable[[BinaryIO], None]


def sending(*lines: Any) -> Script:
    def script(out: BinaryIO) -> None:
        for line in lines:
            out.write(json.dumps(line).encode() + b"\n")

    return script


@dataclass
class FakeRouter:
    """Answers /recording with what `script` writes, and is then gone."""

    url: str = ""
    script: Script = field(default_factory=sending)
    status: int = 200
    ended: threading.Event = field(default_factory=threading.Event)

    def goes_on(self, *lines: Any) -> Script:
        """Sends these, then the last again and again until the listener leaves."""

        def script(out: BinaryIO) -> None:
            sending(*lines)(out)
            while not self.ended.wait(0.01):
                sending(lines[-1])(out)

        return script


@pytest.fixture
def fake() -> Iterator[FakeRouter]:
    made = FakeRouter()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(made.status if self.path == "/recording" else 404)
            self.end_headers()
            try:
                made.script(self.wfile)  # type: ignore[arg-type]
            except ConnectionError:
                made.ended.set()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield made
        made.ended.set()
        server.shutdown()
        serving.join()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "t.jsonl.gz"


def lines_in(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]


def lines_on_disk(out: Path) -> int:
    """Those that others can read while the file is being written."""
    return zlib.decompressobj(wbits=31).decompress(out.read_bytes()).count(b"\n")


def record(fake: FakeRouter, out: Path, *flags: str) -> int:
    return main(["record", "--admin", fake.url, "--out", str(out), *flags])


def ending(out: Path) -> tuple[str, int]:
    """(why it ended, requests) of a file that is whole: a head, that many requests, an end."""
    head, *requests, end = lines_in(out)
    assert head["warmline_trace"] == end["warmline_trace_end"] == 1 and end["requests"] == len(requests)
    return end["ended"], len(requests)


def test_ends_with_the_router(fake: FakeRouter, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A router that stops says so; the file is whole, and the status tells a script that it ended early."""
    fake.script = sending(
        HEAD, request(1, 2), {"state": {"timestamp": 5.0, "dropped": 3}}, request(1), {"end": "router_stopped"}
    )
    assert record(fake, out) == 1
    assert ending(out) == ("router_stopped", 2) and lines_in(out)[2]["hash_ids"] == [0]
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{out}: 2 requests, 3 dropped, ") and shown.out.endswith("; the router stopped\n")
    assert shown.err == ""


def test_ends_with_the_connection(fake: FakeRouter, out: Path) -> None:
    """A router that dies in the middle of a line leaves all lines before it."""

    def script(to: BinaryIO) -> None:
        sending(HEAD, request(1))(to)
        to.write(b'{"timestamp": 1.0, "inp')

    fake.script = script
    assert record(fake, out) == 1
    assert ending(out) == ("router_lost", 1)


def test_ends_with_a_router_that_is_silent(fake: FakeRouter, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection on which nothing comes is given up: a router says each second that it is there."""
    monkeypatch.setattr(cli_record, "SILENCE_S", 0.2)

    def script(to: BinaryIO) -> None:
        sending(HEAD, request(1))(to)
        fake.ended.wait(30)

    fake.script = script
    assert record(fake, out) == 1
    assert ending(out) == ("router_silent", 1)


@pytest.mark.parametrize("odd", [[1], {"timestamp": "now"}, {"state": 7}, {**request(1), "outcome": "Dear Sir"}])
def test_ends_with_what_is_no_recording(odd: Any, fake: FakeRouter, out: Path) -> None:
    """A line that no router of this version sends ends the recording before it."""
    fake.script = sending(HEAD, request(1), odd, request(2))
    assert record(fake, out) == 1
    assert ending(out) == ("not_a_recording", 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ends_when_told(number: signal.Signals, fake: FakeRouter, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, or a SIGTERM, ends the wait for the next line at once, with status 0 and the old handlers back."""
    monkeypatch.setattr(cli_record, "FLUSH_S", 0.0)
    before = signal.getsignal(number)

    def script(to: BinaryIO) -> None:
        sending(HEAD, request(1))(to)
        deadline_s = time.monotonic() + 10
        while lines_on_disk(out) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        os.kill(os.getpid(), number)
        fake.ended.wait(30)

    fake.script = script
    assert record(fake, out) == 0
    assert ending(out) == ("interrupted", 1)
    assert signal.getsignal(number) is before


def test_ends_after_a_time(fake: FakeRouter, out: Path) -> None:
    """--duration counts from the first line, also while nobody asks anything."""
    fake.script = fake.goes_on(HEAD, STATE)
    assert record(fake, out, "--duration", "0.05s") == 0
    assert ending(out) == ("duration", 0)


def test_ends_after_so_many_requests(fake: FakeRouter, out: Path) -> None:
    """--max-requests is the number in the file."""
    fake.script = fake.goes_on(HEAD, request(1))
    assert record(fake, out, "--max-requests", "7") == 0
    assert ending(out) == ("max_requests", 7)


def test_ends_before_the_file_is_too_large(fake: FakeRouter, out: Path) -> None:
    """--max-bytes is kept, the end of the file included."""
    keys = iter(range(10**9))

    def script(to: BinaryIO) -> None:
        sending(HEAD)(to)
        while True:
            sending(*(request(next(keys), next(keys) // 3) for _ in range(100)))(to)

    fake.script = script
    assert record(fake, out, "--max-bytes", "64k") == 0
    why, requests = ending(out)
    assert why == "max_bytes" and requests > 100 and 50_000 < out.stat().st_size <= 64 * 1024


def test_told_before_anything_came(fake: FakeRouter, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C while the router has not answered yet: nothing was recorded, so nothing is left."""

    def script(to: BinaryIO) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        fake.ended.wait(30)

    fake.script = script
    assert record(fake, out) == 1
    assert capsys.readouterr().err == "warmline: stopped before anything was recorded\n" and not out.exists()


def test_nothing_is_left_where_nothing_was_recorded(fake: FakeRouter, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No router, a refusal or another program at the port: one line, status 1, no file."""
    assert main(["record", "--admin", "http://127.0.0.1:1", "--out", str(out)]) == 1
    assert capsys.readouterr().err.startswith("warmline: no router answers at http://127.0.0.1:1")
    fake.status, fake.script = 409, sending({"error": {"message": "2 recordings go on already"}})
    assert record(fake, out) == 1
    assert "answered 409: 2 recordings go on already" in capsys.readouterr().err
    for script in (sending({"hello": 1}), sending([1]), sending()):
        fake.status, fake.script = 200, script
        assert record(fake, out) == 1
        assert "does not answer like that of Warmline" in capsys.readouterr().err
    assert not out.exists()


def test_a_file_that_is_there_is_kept(fake: FakeRouter, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording never overwrites another, and says which file it did not touch; nor does it ask the router then."""
    out.write_text("precious")
    fake.script = sending(HEAD)
    assert record(fake, out) == 1
    assert capsys.readouterr().err == f"warmline: --out {out}: File exists\n" and out.read_text() == "precious"
    assert record(fake, out.parent / "none" / "t.gz") == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "allowed"),
    [
        ("duration", "soon", "a time such as 90s, 10m or 2h"),
        ("duration", "0", "a time such as 90s, 10m or 2h"),
        ("duration", "-1s", "a time such as 90s, 10m or 2h"),
        ("max_bytes", "1k", "at least 65536"),
        ("max_bytes", "256 MB", "at least 65536"),
        ("max_requests", "0", "at least 1"),
        ("max_blocks", "x", "at least 1024"),
    ],
)
def test_bad_limits_name_the_flag(flag: str, value: str, allowed: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Flag, value and what is allowed; status 2, and no file."""
    assert main(["record", "--out", str(out), f"--{flag.replace('_', '-')}={value}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"warmline: {flag}: {value!r} is not ") and allowed in error and not out.exists()


def test_limits_as_written() -> None:
    """Times take s, m, h and d, sizes and counts k, m and g; what is not given is no limit."""
    assert read_limits("10m", "256M", "1k", "2k") == RecordLimits(600.0, 256 * 1024**2, 1024, 2048)
    assert read_limits(None, "64k", None, "4m").duration_s is read_limits(None, "64k", None, "4m").max_requests is None
    assert [read_duration(text) for text in ("90", "1.5s", "2H", "1d")] == [90.0, 1.5, 7200.0, 86400.0]
    with pytest.raises(SettingsError):
        read_duration("nan")


def test_progress_is_for_terminals() -> None:
    """A terminal shows how much there is and how to end it; a pipe stays empty."""
    screen = io.StringIO()
    with shown_progress(Console(file=screen, force_terminal=True)) as show:
        show("3 requests, 1.0 kB, 2 s")
    assert "recording: 3 requests, 1.0 kB, 2 s; Ctrl-C ends" in screen.getvalue()
    pipe = io.StringIO()
    with shown_progress(Console(file=pipe)) as show:
        show("3 requests")
    assert pipe.getvalue() == ""


def test_sizes_for_people() -> None:
    """In the unit that fits."""
    assert [size_text(size) for size in (12, 2048, 3 * 1024**2, 5 * 1024**3)] == ["12 bytes", "2.0 KB", "3.0 MB", "5.0 GB"]
