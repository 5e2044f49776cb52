"""A `warmline serve` process for demos and tests: start it on free ports, ask its admin port, stop it."""

import json
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from engines.process import ChildProcess

LISTENING = re.compile(r"listening on (http://[\w.\[\]:-]+), admin on (http://[\w.\[\]:-]+)")
POLL_INTERVAL_S = 0.05
ADMIN_TIMEOUT_S = 5.0


class RouterStartError(Exception):
    """A router that did not get ready; the text says what happened and ends with its last log lines."""


class LocalRouter:
    """A running router; a context manager that stops it."""

    def __init__(self, process: ChildProcess, url: str, admin_url: str) -> None:
        self.process = process
        self.url = url
        self.admin_url = admin_url

    def admin(self, path: str, timeout_s: float = ADMIN_TIMEOUT_S) -> Any:
        """The JSON of an admin route, of its error answers too. Raises OSError when the router does not answer."""
        try:
            with urllib.request.urlopen(self.admin_url + path, timeout=timeout_s) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)

    def decision(self, request_id: str) -> dict[str, Any]:
        """Why the request went where it went."""
        found: dict[str, Any] = self.admin("/decisions/" + urllib.parse.quote(request_id, safe=""))
        return found

    def workers(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.admin("/workers")["workers"]
        return rows

    def ready_workers(self) -> int:
        return sum(row["lifecycle"] == "ready" for row in self.workers())

    def await_workers(self, count: int, deadline_s: float) -> None:
        """Returns when `count` workers are ready. Raises RouterStartError after `deadline_s`."""
        ends_at = time.monotonic() + deadline_s
        while self.ready_workers() < count:
            if time.monotonic() > ends_at:
                rows = "; ".join(f"{row['id']} {row['lifecycle']}" for row in self.workers())
                raise RouterStartError(f"not {count} ready workers after {deadline_s:g} s: {rows}")
            time.sleep(POLL_INTERVAL_S)

    def stop(self) -> None:
        self.process.stop(deadline_s=10.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def start_router(engines: Sequence[str], log_path: Path, *flags: str, deadline_s: float = 60.0) -> LocalRouter:
    """Start a router for `engines` (`KIND=URL` each) and return when both its ports are bound.

    Ports are free ones unless `flags` name others. The first start with a GGUF tokenizer takes seconds: it is converted.
    Raises RouterStartError when the router ends or is not listening after `deadline_s`; nothing is left running then.
    """
    argv = [
        sys.executable,
        *(["-P"] if sys.flags.safe_path else []),
        "-m",
        "router.cli",
        "serve",
        "--port",
        "0",
        "--admin-port",
        "0",
        *flags,
    ]
    for engine in engines:
        argv += ["--engine", engine]
    already = log_path.stat().st_size if log_path.exists() else 0
    process = ChildProcess(argv, log_path)
    ends_at = time.monotonic() + deadline_s
    try:
        while (found := LISTENING.search(read_from(log_path, already))) is None:
            if not process.is_running:
                raise RouterStartError(f"the router ended with {process.exit_code}:\n{process.log_tail()}")
            if time.monotonic() > ends_at:
                raise RouterStartError(f"the router does not listen after {deadline_s:g} s:\n{process.log_tail()}")
            time.sleep(POLL_INTERVAL_S)
    except BaseException:
        process.kill()
        raise
    return LocalRouter(process, found[1], found[2])


def read_from(path: Path, offset: int) -> str:
    with path.open("rb") as log:
        log.seek(offset)
        return log.read().decode(errors="replace")
