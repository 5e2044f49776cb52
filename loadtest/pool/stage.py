"""What measurements of a pool have in common: a real Redis, child processes, a folder; all gone in the end."""

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from engines.process import ChildProcess
from loadtest.bench.servers import clean_environment
from loadtest.redis_server import RedisServer, redis_server

T = TypeVar("T")
REPORT_S: Final = 20.0


class Failed(Exception):
    """A measurement that did not run to its end."""


class Stage:
    """A context manager. `redis` runs within it."""

    def __init__(self, *redis_options: str) -> None:
        self._redis_options = redis_options
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmline-pool-")))
            self.redis: RedisServer = stack.enter_context(redis_server(*self._redis_options))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def enter(self, part: contextlib.AbstractContextManager[T]) -> T:
        """Open until the end of the stage."""
        return self._stack.enter_context(part)

    def started(self, command: Sequence[str], name: str, *, reports: bool = False) -> tuple[ChildProcess, str]:
        """A running child, and the line it reported where it `reports`. Raises Failed."""
        child = ChildProcess(command, self.folder / f"{name}.log", reports=reports, env=clean_environment())
        self._stack.callback(child.stop)
        line = child.read_report(REPORT_S) if reports else ""
        if line is None:
            raise Failed(f"{name} did not start:\n{child.log_tail()}")
        return child, line
