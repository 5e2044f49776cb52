"""Starts local engines, each in a process of its own, and says when they are ready; for demos and tests.

llama.cpp, which needs no environment of its own, is described here; the others in `engines.starters`. Everything is on
127.0.0.1. Engines end with their parent (see `engines.process`).
"""

import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import urlsplit

from engines.process import ChildProcess

HEALTH_INTERVAL_S = 0.05
HEALTH_TIMEOUT_S = 2.0
STOP_DEADLINE_S = 15.0  # vLLM's processes take seconds to leave


class EngineStartError(Exception):
    """An engine that did not get ready; the text names it, says what happened and ends with its last log lines."""


class EngineOptions(Protocol):
    """What one engine is started with. A frozen dataclass for each kind."""

    @property
    def kind(self) -> str:
        """As in `--engine KIND=URL`."""

    @property
    def alias(self) -> str:
        """The model's name in requests."""

    @property
    def port(self) -> int:
        """0 takes a free one."""

    @property
    def reports_url(self) -> bool:
        """Whether it writes `{"url": …}` as its first line of output; else it gets a port that was free a moment ago."""

    @property
    def health_path(self) -> str:
        """Answers 200 as soon as the engine is ready, and not before."""

    def argv(self, port: int) -> list[str]: ...

    def environment(self) -> Mapping[str, str]:
        """Variables beside those of this process."""

    def missing(self) -> str | None:
        """What must be on disk and is not, for people."""


@dataclass(frozen=True)
class LlamaCppOptions:
    """What one llama.cpp engine is started with. Its cache holds `slots * slot_context_tokens` tokens in separate slots."""

    model_path: Path
    alias: str
    port: int = 0
    slots: int = 4
    slot_context_tokens: int = 4096
    threads: int = 1
    cache_ram_mib: int = 0
    unified_kv: bool = False
    kind: str = "llama.cpp"
    reports_url: bool = True
    health_path: str = "/health"

    def argv(self, port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "engines.llama_cpp_server"),
            *("--model", str(self.model_path), "--alias", self.alias, "--port", str(port)),
            *("--slots", str(self.slots), "--slot-context-tokens", str(self.slot_context_tokens)),
            *("--threads", str(self.threads), "--cache-ram-mib", str(self.cache_ram_mib)),
            *(("--unified-kv",) if self.unified_kv else ()),
        ]

    def environment(self) -> Mapping[str, str]:
        return {}

    def missing(self) -> str | None:
        return None if self.model_path.is_file() else f"no model file at {self.model_path}"


class LocalEngine:
    """A running engine; a context manager that stops it."""

    def __init__(self, options: EngineOptions, url: str, process: ChildProcess) -> None:
        self.options = options
        self.url = url
        self.process = process

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def stop(self) -> None:
        self.process.stop(STOP_DEADLINE_S)

    def kill(self) -> None:
        """SIGKILL, as a crash would look to its clients."""
        self.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def launch(options: EngineOptions, log_path: Path, deadline_s: float = 60.0) -> LocalEngine:
    """Start an engine and return when its health route answers 200.

    Blocks for the time the model takes to load. Raises EngineStartError when the engine ends (file missing, port
    taken) or is not ready after `deadline_s`; nothing is left running then.
    """
    return launch_all([(options, log_path)], deadline_s)[0]


def launch_all(wanted: Sequence[tuple[EngineOptions, Path]], deadline_s: float = 60.0) -> list[LocalEngine]:
    """Several (options, log path) at once, as loading takes long; in that order. One failure ends all, see `launch`."""
    for options, _ in wanted:
        if (missing := options.missing()) is not None:
            raise EngineStartError(f"engine {options.alias}: {missing}")
    ends_at = time.monotonic() + deadline_s
    started: list[tuple[EngineOptions, ChildProcess, int]] = []
    try:
        for options, log_path in wanted:
            port = options.port if options.port or options.reports_url else free_port()
            environment = {**os.environ, **options.environment()}
            process = ChildProcess(options.argv(port), log_path, reports=options.reports_url, env=environment)
            started.append((options, process, port))
        return [
            await_ready(options, process, port, ends_at, f"was not ready after {deadline_s:g} s")
            for options, process, port in started
        ]
    except BaseException:
        for _, process, _ in started:
            process.kill()
        raise


def await_ready(options: EngineOptions, process: ChildProcess, port: int, ends_at: float, late: str) -> LocalEngine:
    """The engine once it is ready. EngineStartError when it ends first, or with the words `late` at `ends_at` (monotonic)."""
    url = f"http://127.0.0.1:{port}"
    if options.reports_url:
        report = process.read_report(max(ends_at - time.monotonic(), 0.0))
        if report is None:
            raise EngineStartError(failure(options, process, late))
        url = str(json.loads(report)["url"])
    while not is_healthy(url, options.health_path):
        if time.monotonic() > ends_at or not process.is_running:
            raise EngineStartError(failure(options, process, late))
        time.sleep(HEALTH_INTERVAL_S)
    return LocalEngine(options, url, process)


def is_healthy(url: str, path: str = "/health") -> bool:
    """Whether the route answers 200 within two seconds; llama.cpp's /health says 503 while it loads."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def failure(options: EngineOptions, process: ChildProcess, late: str) -> str:
    """Why the engine is not ready, for people. A child that just closed its pipe gets a moment to end."""
    try:
        what = f"ended with exit code {process.wait(0.5)}"
    except TimeoutError:
        what = late
    return f"engine {options.alias} (port {options.port or 'any'}) {what}; its last log lines:\n{process.log_tail()}"
