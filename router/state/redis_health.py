"""Whether Redis works: one log line when it stops and one when it is back, and what went wrong how often."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from redis.exceptions import AskError as Redirected
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeout
from redis.exceptions import TryAgainError as TryAgain

from router.redis_url import MASK, RedisAddress

LOG = logging.getLogger("warmline.state")
PROBE_S: Final = 1.0  # between two tries to write, by those who else only read
BACK_AFTER_S: Final = 1.5  # without a failure, so that a server that takes no writes is not back between two tries
MAX_WORDS: Final = 300
# What an exchange may fail with. ValueError: a name that no resolver takes.
LINK_ERRORS: Final = (RedisError, OSError, TimeoutError, EOFError, ValueError)
# Errors of single commands that no other command would be spared
STORE_WIDE: Final = frozenset(("auth", "denied", "full", "read_only", "loading", "cluster"))


def kind_of(error: BaseException) -> str:
    """The label of its counter."""
    for kind, types in KINDS.items():
        if isinstance(error, types):
            return kind
    if str(error).startswith("MISCONF"):  # it cannot save to its disk and is configured to refuse writes then
        return "read_only"
    return "reply" if isinstance(error, ResponseError) else "connection"


KINDS: Final[dict[str, tuple[type[BaseException], ...]]] = {
    "timeout": (RedisTimeout, TimeoutError, asyncio.TimeoutError),
    "auth": (AuthenticationError, AuthorizationError),
    "denied": (NoPermissionError,),
    "full": (OutOfMemoryError,),
    "read_only": (ReadOnlyError,),
    "loading": (BusyLoadingError,),
    "cluster": (ClusterError, Redirected, TryAgain),
}


def is_outage(error: Exception) -> bool:
    """Whether there was no answer; what was asked may be done or not."""
    return kind_of(error) in ("timeout", "connection")


def is_wide(error: Exception) -> bool:
    """Whether it is about Redis as a whole, or a node of it, rather than about one command."""
    return is_outage(error) or kind_of(error) in STORE_WIDE


class RedisHealth:
    """Shared by all parts of a process that use the same Redis; lost while any of them fails."""

    def __init__(self, address: RedisAddress, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._clock = clock
        self.is_lost = False
        self.errors: Counter[str] = Counter()  # by kind
        self._good_s: dict[str, float] = {}
        self._failing_s: dict[str, float] = {}  # part → its last failure
        self._lost_since_s = 0.0

    @property
    def is_up(self) -> bool:
        """Whether Redis has answered, and no part has failed since."""
        return bool(self._good_s) and not self.is_lost

    def stale_s(self, part: str) -> float | None:
        """Seconds since the part's last good exchange; None before the first."""
        good_s = self._good_s.get(part)
        return None if good_s is None else self._clock() - good_s

    def good(self, part: str) -> None:
        now_s = self._good_s[part] = self._clock()
        failed_s = self._failing_s.get(part)
        if failed_s is None or now_s - failed_s < BACK_AFTER_S:
            return
        del self._failing_s[part]
        if not self._failing_s:
            self.is_lost = False
            LOG.info("Redis at %s is back after %.1f s", self._address.shown, now_s - self._lost_since_s)

    def rest(self, part: str) -> None:
        """The part has nothing to do with Redis for now."""
        if part in self._failing_s:
            self.good(part)

    def count(self, error: BaseException) -> None:
        self.errors[kind_of(error)] += 1

    def bad(self, part: str, error: BaseException) -> None:
        """Every failure is counted, the first one logged."""
        self.count(error)
        now_s = self._failing_s[part] = self._clock()
        if not self.is_lost:
            self.is_lost = True
            self._lost_since_s = now_s
            LOG.warning("Redis at %s: %s; going on with what is known", self._address.shown, self.words(error))

    def words(self, error: BaseException) -> str:
        """What went wrong, for people. No secret: a server may quote what it did not understand."""
        kind = kind_of(error)
        if kind == "timeout":
            return f"no answer within {self._timeout_s:g} s"
        text = str(error).partition(", with args")[0][:MAX_WORDS].rstrip(". ") or type(error).__name__
        for secret in (self._address.password, self._address.sentinel_password):
            text = text.replace(secret, MASK) if secret else text
        if kind == "auth":
            who = f"user {self._address.user!r}" if self._address.user else "the default user"
            return f"{who} is not let in ({text})"
        return f"it takes no writes ({text})" if kind in ("full", "read_only") else text
