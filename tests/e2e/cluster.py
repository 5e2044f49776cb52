"""Engines and a router for end-to-end tests, and what tests ask of them."""

import contextlib
import dataclasses
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from engines.launch import LlamaCppOptions, LocalEngine, free_port, launch
from loadtest.demo.router_process import LocalRouter, start_router

MODEL = "tiny"
READY_DEADLINE_S = 30.0
POLL_INTERVAL_S = 0.02
T = TypeVar("T")


class Cluster:
    """Two engines (some may be missing at first) behind one router."""

    def __init__(
        self, options: LlamaCppOptions, engines: list[LocalEngine], router: LocalRouter, missing_ports: list[int], folder: Path
    ) -> None:
        self.engines = engines
        self.router = router
        self.missing_ports = missing_ports
        self._folder = folder
        self._options = options

    def engine_of(self, request_id: str) -> LocalEngine:
        """The engine that answered, by the router's record of its decision."""
        return self.engine_at(self.decision(request_id)["worker"])

    def engine_at(self, worker_id: str) -> LocalEngine:
        (row,) = [row for row in self.router.workers() if row["id"] == worker_id]
        (engine,) = [engine for engine in self.engines if engine.url == row["url"]]
        return engine

    def worker(self, engine: LocalEngine) -> dict[str, Any]:
        """The admin port's row of an engine."""
        (row,) = [row for row in self.router.workers() if row["url"] == engine.url]
        return row

    def decision(self, request_id: str) -> dict[str, Any]:
        """The finished record of a request: its outcome is written a moment after the last byte went out."""
        return until(lambda: found if (found := self.router.decision(request_id)).get("outcome") else None, "the decision ends")

    def start_missing(self, port: int) -> LocalEngine:
        """An engine on a port that the router knows already: one that was missing or was killed."""
        engine = launch(dataclasses.replace(self._options, port=port), self._folder / f"engine-{port}.log")
        self.engines.append(engine)
        return engine

    def close(self) -> None:
        self.router.stop()
        for engine in self.engines:
            engine.stop()


@contextlib.contextmanager
def open_cluster(options: LlamaCppOptions, folder: Path, *flags: str, missing: int = 0) -> Iterator[Cluster]:
    """Two engines, `missing` of them not running yet, and a router that knows both; returns when those running are ready."""
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(launch(options, folder / f"engine-{number}.log")) for number in range(2 - missing)]
        ports = [free_port() for _ in range(missing)]
        urls = [*(engine.url for engine in engines), *(f"http://127.0.0.1:{port}" for port in ports)]
        tokenizer = ("--tokenizer", str(options.model_path), "--tokenizer-cache", str(options.model_path.parent))
        router = start_router([f"llama.cpp={url}" for url in urls], folder / "router.log", *tokenizer, *flags)
        cluster = Cluster(options, engines, router, ports, folder)
        stack.callback(cluster.close)
        router.await_workers(len(engines), READY_DEADLINE_S)
        yield cluster


def until(ask: Callable[[], T | None], what: str, deadline_s: float = 10.0) -> T:
    """The first answer of `ask` that is true. Other processes give no signal, so this polls; fails after `deadline_s`."""
    ends_at = time.monotonic() + deadline_s
    while not (found := ask()):
        assert time.monotonic() < ends_at, f"{what}: not within {deadline_s:g} s"
        time.sleep(POLL_INTERVAL_S)
    return found


def busy_slots(engine: LocalEngine) -> int:
    """Slots of an engine that work on a request right now."""
    with urllib.request.urlopen(engine.url + "/slots", timeout=10) as answer:
        return sum(slot["is_processing"] for slot in json.load(answer))


def post(url: str, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (names in lower case) and body of one POST of JSON, errors too."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()
