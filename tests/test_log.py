"""Log lines: what is in them, what never is, and that neither log ever holds a request up."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.stats import Stats
from router.core.types import KeyForm
from router.log import (
    ACCESS_DELAY_S,
    MAX_TEXT,
    AccessEntry,
    AccessLog,
    JsonFormatter,
    MessageLog,
    TextFormatter,
    access_fields,
    access_json,
    access_text,
    quoted,
    setup_logging,
    time_text,
)
from router.settings import LogSettings

FULL = AccessEntry(
    at_s=1_700_000_000.25,
    request_id="req-1",
    method="POST",
    path="/v1/chat/completions",
    client="127.0.0.1:4000",
    status=200,
    outcome="ok",
    model="llama",
    worker="10.0.0.1:8000",
    policy="warm",
    choice="warm_prefix",
    keys=KeyForm.TOKENS,
    prompt_tokens=512,
    predicted_cached_tokens=480,
    actual_cached_tokens=496,
    ttft_s=0.01234,
    duration_s=0.5,
    request_bytes=2048,
    response_bytes=300,
    retries=1,
)
BARE = AccessEntry(1_700_000_000.25, "req-2", "GET", "/x", "127.0.0.1:4000", None, "client_gone")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """(reading end, writing end)"""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_text_line() -> None:
    """One line of key=value words with all that is known, times in milliseconds."""
    assert access_text(FULL) == (
        b"time=2023-11-14T22:13:20.250Z id=req-1 method=POST path=/v1/chat/completions status=200 outcome=ok model=llama "
        b"worker=10.0.0.1:8000 policy=warm choice=warm_prefix keys=tokens prompt_tokens=512 predicted_cached=480 "
        b"actual_cached=496 ttft_ms=12.34 duration_ms=500.00 bytes_in=2048 bytes_out=300 client=127.0.0.1:4000 retries=1\n"
    )


def test_text_line_leaves_out_what_is_unknown() -> None:
    """Unknown is absent, never 0 or None."""
    assert access_text(BARE) == (
        b"time=2023-11-14T22:13:20.250Z id=req-2 method=GET path=/x outcome=client_gone duration_ms=0.00 bytes_in=0 "
        b"bytes_out=0 client=127.0.0.1:4000 retries=0\n"
    )


def test_json_line_has_every_field() -> None:
    """A JSON line is one object with all fields, null where unknown: columns do not come and go."""
    full, bare = json.loads(access_json(FULL)), json.loads(access_json(BARE))
    assert list(full) == list(bare)
    assert full["ttft_ms"] == 12.34 and full["actual_cached"] == 496 and full["keys"] == "tokens"
    assert bare["status"] is bare["worker"] is bare["ttft_ms"] is None
    assert access_json(FULL).endswith(b"}\n")


def test_text_and_json_agree() -> None:
    """Both forms have the same fields under the same names, in the same order."""
    words = [word.partition("=")[0] for word in access_text(FULL).decode().split()]
    assert words == list(access_fields(FULL))


def test_query_is_not_logged() -> None:
    """A query may hold a key."""
    entry = FULL._replace(path="/v1/models?api_key=secret")
    assert b"secret" not in access_text(entry) + access_json(entry)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("plain/word:1", "plain/word:1"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "x"', r'"say \"x\""'),
        ("back\\slash", r'"back\\slash"'),
        ("zwölf", '"zwölf"'),
        ("a\nb", r'"a\nb"'),
        ("\x1b[31m", r'"\u001b[31m"'),
        ("\x9b31m", r'"\u009b31m"'),
        ("\ud800", r'"\ud800"'),
    ],
)
def test_words_are_quoted_when_needed(text: str, word: str) -> None:
    """What a client sends can neither forge a field or a line nor steer a terminal."""
    assert quoted(text) == word


@given(st.text(), st.text(), st.text())
def test_any_text_is_one_line(path: str, model: str, request_id: str) -> None:
    """Whatever a client sends, both forms give exactly one line, and quoted words read back."""
    entry = FULL._replace(path=path, model=model, request_id=request_id)
    assert len(access_text(entry).decode().splitlines()) == 1
    line = access_json(entry)
    assert line.count(b"\n") == 1
    assert json.loads(line)["model"] == model


def test_lone_surrogates_are_logged() -> None:
    r"""`"\ud800"` is a name a client's JSON can hold; it has no UTF-8 and still makes a line."""
    entry = FULL._replace(model="\ud800")
    assert json.loads(access_json(entry))["model"] == "?"
    access_text(entry).decode()


def test_time_is_utc_with_milliseconds() -> None:
    """Times sort as text and need no zone."""
    assert time_text(0.0005) == "1970-01-01T00:00:00.000Z"
    assert time_text(1_700_000_000.999) == "2023-11-14T22:13:20.999Z"


def access_log(fd: int, stats: Stats | None = None, **settings: Any) -> tuple[AccessLog, list[float]]:
    """(a log, the delays after which it asked to be flushed)"""
    asked: list[float] = []
    later = lambda delay_s, call: asked.append(delay_s)  # noqa: E731
    return AccessLog(LogSettings(**settings), stats or Stats(), fd, later), asked


@pytest.mark.parametrize("form", ["text", "json"])
def test_access_log_writes_its_form(form: str, pipe: tuple[int, int]) -> None:
    """`log_format` chooses the form; `close` writes everything."""
    log, asked = access_log(pipe[1], log_format=form)
    log.write(FULL)
    log.write(BARE)
    assert (log.waiting, asked) == (2, [ACCESS_DELAY_S])
    log.close()
    render = access_json if form == "json" else access_text
    assert os.read(pipe[0], 65536) == render(FULL) + render(BARE)
    assert log.waiting == 0


def test_access_log_counts_drops() -> None:
    """Lines that cannot be written, and lines after the end, are counted in the metrics."""
    stats = Stats()
    full = os.open("/dev/full", os.O_WRONLY)
    log, _ = access_log(full, stats)
    log.write(FULL)
    log.close()
    log.write(FULL)
    log.flush()
    os.close(full)
    assert stats.log_lines_dropped == 2


async def test_access_log_flushes_itself(pipe: tuple[int, int]) -> None:
    """A line comes out a tenth of a second after it was made, without another one behind it; then the next batch begins."""
    log = AccessLog(LogSettings(), Stats(), pipe[1])
    for entry in (FULL, BARE):
        log.write(entry)
        assert await asyncio.to_thread(os.read, pipe[0], 65536) == access_text(entry)
    log.close()


def test_full_batch_is_written_before_its_time(pipe: tuple[int, int]) -> None:
    """A burst does not wait for the end of the batch time, so that a small bound is no reason to drop."""
    stats = Stats()
    log, _ = access_log(pipe[1], stats, max_log_lines=8)
    for _ in range(5):
        log.write(BARE)
    assert os.read(pipe[0], 65536) == access_text(BARE) * 4
    log.close()
    assert os.read(pipe[0], 65536) == access_text(BARE)
    assert stats.log_lines_dropped == 0


def test_entry_that_cannot_be_made_a_line(pipe: tuple[int, int]) -> None:
    """One odd entry costs its own line only."""
    stats = Stats()
    log, _ = access_log(pipe[1], stats)
    for entry in (FULL, FULL._replace(at_s=float("inf")), BARE):
        log.write(entry)
    log.close()
    assert os.read(pipe[0], 65536) == access_text(FULL) + access_text(BARE)
    assert stats.log_lines_dropped == 1


def test_long_texts_are_cut_before_they_wait(pipe: tuple[int, int]) -> None:
    """Waiting lines hold a bounded amount of memory, however long a path or a model's name is."""
    log, _ = access_log(pipe[1], log_format="json")
    long = "x" * 50_000
    log.write(FULL._replace(path="/" + long, model=long, request_id=long))
    log.close()
    line = json.loads(os.read(pipe[0], 65536))
    assert {len(line[name]) for name in ("path", "model", "id")} == {MAX_TEXT}


@pytest.fixture
def messages(pipe: tuple[int, int]) -> Iterator[MessageLog]:
    root = logging.getLogger()
    level = root.level
    handler = setup_logging(LogSettings(log_level="info"), Stats(), pipe[1])
    yield handler
    handler.close()
    root.removeHandler(handler)
    root.setLevel(level)


def test_messages_at_their_level(messages: MessageLog, pipe: tuple[int, int]) -> None:
    """Messages of all loggers go out as one line each; those below the level do not."""
    logging.getLogger("warmline.fleet").info("worker %s is %s", "a", "ready")
    logging.getLogger("warmline.fleet").debug("not shown")
    messages.close()
    assert os.read(pipe[0], 65536).decode().split(" ", 1)[1] == "INFO warmline.fleet worker a is ready\n"


def test_second_setup_replaces_the_first(messages: MessageLog, pipe: tuple[int, int]) -> None:
    """Setting up twice does not double lines."""
    again = setup_logging(LogSettings(log_format="json"), Stats(), pipe[1])
    logging.getLogger("x").warning("once")
    again.close()
    logging.getLogger().removeHandler(again)
    (line,) = os.read(pipe[0], 65536).decode().splitlines()
    assert json.loads(line) | {"time": ""} == {"time": "", "level": "warning", "logger": "x", "message": "once"}


def failure() -> logging.LogRecord:
    try:
        raise ValueError("broken")
    except ValueError:
        return logging.LogRecord("x", logging.ERROR, "", 0, "failed\nhere \x1b[31m", (), sys.exc_info())


def test_tracebacks_are_kept() -> None:
    """A message about an exception carries it: on further lines of text, in a field of JSON."""
    text = TextFormatter().format(failure())
    assert r"ERROR x failed\nhere \x1b[31m" in text.splitlines()[0]
    assert text.splitlines()[-1] == "ValueError: broken"
    fields = json.loads(JsonFormatter().format(failure()))
    assert fields["message"] == "failed\nhere \x1b[31m"
    assert fields["exception"].endswith("ValueError: broken")


def test_message_that_cannot_be_formatted(pipe: tuple[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    """A logging call with wrong arguments is reported by logging itself and ends nothing."""
    handler = MessageLog(LogSettings(), Stats(), pipe[1])
    handler.emit(logging.LogRecord("x", logging.ERROR, "", 0, "%d", ("not a number",), None))
    handler.emit(logging.LogRecord("x", logging.ERROR, "", 0, "next", (), None))
    handler.close()
    assert os.read(pipe[0], 65536).decode().endswith("ERROR x next\n")
    assert "Logging error" in capsys.readouterr().err


def test_messages_that_cannot_be_written_are_counted() -> None:
    """A full disk behind standard error is counted like any lost line."""
    stats = Stats()
    full = os.open("/dev/full", os.O_WRONLY)
    handler = MessageLog(LogSettings(), stats, full)
    handler.emit(failure())
    handler.close()
    os.close(full)
    assert stats.log_lines_dropped == 1
