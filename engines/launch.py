"""Starts a local llama.cpp engine in a process of its own and says when it is ready; for demos and tests.

Everything is on 127.0.0.1. Engines end with their parent (see `engines.process`).
"""

import http.client
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from engines.process import ChildProcess

HEALTH_INTERVAL_S = 0.05
HEALTH_TIMEOUT_S = 2.0


class EngineStartError(Exception):
    """An engine that did not get ready; the text names it, says what happened and ends with its last log lines."""


@dataclass(frozen=True)
class LlamaCppOptions:
    """What one llama.cpp engine is started with. Its cache holds `slots * slot_context_tokens` tokens in separate slots."""

    model_path: Path
    alias: str
    port: int = 0  # 0 takes a free one
    slots: int = 4
    slot_context_tokens: int = 4096
    threads: int = 1
    cache_ram_mib: int = 0
    unified_kv: bool = False

    def argv(self) -> list[str]:
        return [
            *(sys.executable, "-m", "engines.llama_cpp_server"),
            *("--model", str(self.model_path), "--alias", self.alias, "--port", str(self.port)),
            *("--slots", str(self.slots), "--slot-context-tokens", str(self.slot_context_tokens)),
            *("--threads", str(self.threads), "--cache-ram-mib", str(self.cache_ram_mib)),
            *(("--unified-kv",) if self.unified_kv else ()),
        ]


class LocalEngine:
    """A running engine; a context manager that stops it."""

    def __init__(self, options: LlamaCppOptions, url: str, process: ChildProcess) -> None:
        self.options = options
        self.url = url
        self.process = process

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        """SIGKILL, as a crash would look to its clients."""
        self.process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def launch(options: LlamaCppOptions, log_path: Path, deadline_s: float = 60.0) -> LocalEngine:
    """Start an engine and return when its /health answers 200.

    Blocks for the time the model takes to load. Raises EngineStartError when the engine ends (file missing, port
    taken) or is not ready after `deadline_s`; nothing is left running then.
    """
    if not options.model_path.is_file():
        raise EngineStartError(f"engine {options.alias}: no model file at {options.model_path}")
    ends_at = time.monotonic() + deadline_s
    process = ChildProcess(options.argv(), log_path, reports=True)
    try:
        report = process.read_report(deadline_s)
        if report is None:
            raise EngineStartError(failure(options, process, deadline_s))
        url = str(json.loads(report)["url"])
        while not is_healthy(url):
            if time.monotonic() > ends_at or not process.is_running:
                raise EngineStartError(failure(options, process, deadline_s))
            time.sleep(HEALTH_INTERVAL_S)
    except BaseException:
        process.kill()
        raise
    return LocalEngine(options, url, process)


def is_healthy(url: str) -> bool:
    """Whether the engine's /health answers 200 within two seconds; llama.cpp says 503 while it loads."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def failure(options: LlamaCppOptions, process: ChildProcess, deadline_s: float) -> str:
    """Why the engine is not ready, for people. A child that just closed its pipe gets a moment to end."""
    try:
        what = f"ended with exit code {process.wait(0.5)}"
    except TimeoutError:
        what = f"was not ready after {deadline_s:g} s"
    return f"engine {options.alias} (port {options.port or 'any'}) {what}; its last log lines:\n{process.log_tail()}"
