"""One log line when Redis is lost, one when it is back, and every failure counted by kind."""

import logging

import pytest
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from router.redis_url import parse_redis
from router.state.redis_health import BACK_AFTER_S, MAX_WORDS, RedisHealth, is_outage, is_wide, kind_of

KINDS = [
    (TimeoutError(), "timeout", True, True),
    (TimeoutError("x"), "timeout", True, True),
    (ConnectionError("refused"), "connection", True, True),
    (OSError(111, "refused"), "connection", True, True),
    (UnicodeError("label too long"), "connection", True, True),
    (AuthenticationError("WRONGPASS"), "auth", False, True),
    (NoPermissionError("x"), "denied", False, True),
    (OutOfMemoryError("x"), "full", False, True),
    (ReadOnlyError("x"), "read_only", False, True),
    (ResponseError("MISCONF cannot save"), "read_only", False, True),
    (BusyLoadingError("x"), "loading", False, True),
    (ClusterDownError("x"), "cluster", False, True),
    (AskError("1 a:1"), "cluster", False, True),
    (TryAgainError("x"), "cluster", False, True),
    (ResponseError("WRONGTYPE"), "reply", False, False),
]


@pytest.mark.parametrize(("error", "kind", "outage", "wide"), KINDS)
def test_kinds(error: Exception, kind: str, outage: bool, wide: bool) -> None:
    """What went wrong, whether the answer is unknown, and whether it is about more than one command."""
    assert (kind_of(error), is_outage(error), is_wide(error)) == (kind, outage, wide)


class Watched:
    """A health whose clock tests set."""

    def __init__(self, url: str = "redis://u:hidden@h") -> None:
        self.now_s = 0.0
        self.health = RedisHealth(parse_redis(url), 0.5, lambda: self.now_s)


def test_one_line_per_change(caplog: pytest.LogCaptureFixture) -> None:
    """However many failures, and however many parts of the process fail."""
    caplog.set_level(logging.INFO)
    at = Watched()
    at.health.good("reading")
    for part in ("reading", "writing", "reading"):
        at.health.bad(part, ConnectionError("refused"))
    at.now_s = 4.0
    at.health.good("reading")
    assert at.health.is_lost, "writing is not back yet"
    at.health.good("writing")
    assert [record.message for record in caplog.records] == [
        "Redis at h:6379: refused; going on with what is known",
        "Redis at h:6379 is back after 4.0 s",
    ]
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.INFO]
    assert at.health.errors == {"connection": 3} and not at.health.is_lost


def test_now_and_then_is_not_back(caplog: pytest.LogCaptureFixture) -> None:
    """One that fails every second exchange stays lost."""
    caplog.set_level(logging.INFO)
    at = Watched()
    for step in range(100):
        at.now_s = step * BACK_AFTER_S / 3
        (at.health.good if step % 2 else lambda part: at.health.bad(part, OutOfMemoryError("x")))("writing")
    assert len(caplog.records) == 1


def test_a_part_with_nothing_to_do_keeps_nobody_lost() -> None:
    """A sidecar whose last worker left no longer knows whether Redis works."""
    at = Watched()
    at.health.rest("writing")
    assert at.health.stale_s("writing") is None
    at.health.bad("writing", ConnectionError())
    at.now_s = 9.0
    at.health.rest("writing")
    assert not at.health.is_lost


def test_up_once_it_has_answered() -> None:
    """Not before anybody asked, and not while a part fails."""
    at = Watched()
    assert not at.health.is_up
    at.health.good("reading")
    assert at.health.is_up
    at.health.bad("writing", ConnectionError())
    assert not at.health.is_up


def test_staleness_is_since_the_last_good_exchange() -> None:
    """Per part; unknown before the first."""
    at = Watched()
    assert at.health.stale_s("reading") is None
    at.health.good("reading")
    at.now_s = 2.5
    at.health.bad("reading", TimeoutError())
    assert at.health.stale_s("reading") == 2.5


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "no answer within 0.5 s"),
        (AuthenticationError("invalid username-password pair"), "user 'u' is not let in (invalid username-password pair)"),
        (OutOfMemoryError("maxmemory"), "it takes no writes (maxmemory)"),
        (ReadOnlyError("replica"), "it takes no writes (replica)"),
        (ConnectionError(), "ConnectionError"),
        (ConnectionError("Connection closed by server."), "Connection closed by server"),
        (ResponseError("unknown command 'AUTH', with args beginning with: 'u' 'hidden'"), "unknown command 'AUTH'"),
        (ResponseError("it is hidden in here"), "it is *** in here"),
    ],
)
def test_words_help_and_hold_no_secret(error: Exception, words: str) -> None:
    """A server may quote what it was sent."""
    assert Watched().health.words(error) == words


def test_words_are_bounded_and_name_the_default_user() -> None:
    """A proxy that answers with a page does not fill the log."""
    at = Watched("redis://h")
    assert len(at.health.words(ConnectionError("x" * 9999))) == MAX_WORDS
    assert at.health.words(AuthenticationError("NOAUTH Authentication required.")).startswith("the default user is not let in")
