"""Engines that live tests share, and what tests ask of them and their router."""

import json
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engines.launch import EngineOptions, LocalEngine, free_port, launch, launch_all
from engines.process import ChildProcess
from engines.starters.deepspeed import BackEndOptions
from engines.starters.mii import MiiOptions
from engines.starters.sglang import SglangOptions
from engines.starters.vllm import VllmOptions
from loadtest.demo.router_process import LocalRouter
from loadtest.redis_server import RedisServer, redis_server
from tests.e2e.cluster import until
from tests.live.loads import CHAT
from tests.live.places import Places

START_DEADLINE_S = 240.0
EXACT_DEADLINE_S = 20.0
EventOptions = VllmOptions | SglangOptions


class EventEngine:
    """An engine with KV events that can be started again on its addresses."""

    def __init__(self, engine: LocalEngine, options: EventOptions, log: Path) -> None:
        self.engine = engine
        self.options = replace(options, port=engine.port)
        self._log = log

    @property
    def url(self) -> str:
        return self.engine.url

    @property
    def spec(self) -> str:
        """As `--engine` takes it."""
        return f"{self.options.kind}={self.url},events={self.options.events},replay={self.options.replay}"

    def start_again(self, **changes: Any) -> None:
        """Ends it and starts it with some options changed."""
        self.engine.stop()
        self.options = replace(self.options, **changes)
        self.engine = launch(self.options, self._log, START_DEADLINE_S)


def start_engines(options: Sequence[EventOptions], folder: Path) -> list[EventEngine]:
    """All side by side, each with event and replay addresses below `folder`."""
    named = [
        (replace(one, events=f"ipc://{folder}/{number}-events", replay=f"ipc://{folder}/{number}-replay", topic=f"kv@{number}"),
         folder / f"{number}.log")
        for number, one in enumerate(options)
    ]  # fmt: skip
    engines = launch_all(named, START_DEADLINE_S)
    return [EventEngine(engine, one, log) for engine, (one, log) in zip(engines, named, strict=True)]


@dataclass(frozen=True)
class DeepSpeed:
    """MII's server and the back end behind it."""

    server: LocalEngine
    back_end: LocalEngine

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def spec(self) -> str:
        return f"deepspeed={self.url},metrics={self.back_end.url}/metrics"

    def stop(self) -> None:
        self.server.stop()
        self.back_end.stop()


def deepspeed_options(places: Places, folder: Path, max_waiting: int) -> list[tuple[EngineOptions, Path]]:
    """The back end and MII's server, in that order, for `launch_all`."""
    back_end = BackEndOptions(places.deepspeed, places.model, grpc_port=free_port(), max_waiting=max_waiting)
    server = MiiOptions(places.deepspeed, places.named("tiny"), back_end.address)
    return [(back_end, folder / "deepspeed.log"), (server, folder / "mii.log")]


def row_of(router: LocalRouter, url: str) -> dict[str, Any]:
    """The admin port's row of an engine."""
    (row,) = [row for row in router.workers() if row["url"] == url]
    return row


def leave_in_mid_answer(router: LocalRouter, model: str, *, stream: bool) -> None:
    """A client that closes as soon as an engine works on its request; returns when the router counts nothing any more."""
    question = {"model": model, "messages": [{"role": "user", "content": "On and on"}], "max_tokens": 900, "ignore_eos": True}
    body = json.dumps({**question, "stream": stream}).encode()
    address = urlsplit(router.url)
    with socket.create_connection((address.hostname, address.port or 0), timeout=10) as client:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: sum(row["running"] or 0 for row in router.workers()) == 1, "an engine works on it")
    until(lambda: all(row["in_flight"] == 0 for row in router.workers()), "the count is given back", 2.0)


def await_exact(*routers: LocalRouter) -> None:
    """Until every router follows the events of every worker and the self-tests were passed."""
    for router in routers:
        until(
            lambda router=router: all(row["truth"] == "exact" for row in router.workers()),  # type: ignore[misc]
            "the truth of every worker is exact",
            EXACT_DEADLINE_S,
        )


@contextmanager
def shared_pool(specs: Sequence[str], folder: Path) -> Iterator[RedisServer]:
    """A Redis, and a sidecar process for each engine that tells it of its cache."""
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        for number, spec in enumerate(specs):
            argv = [sys.executable, "-m", "router.cli", "sidecar", "--redis", redis.url, "--engine", spec]
            sidecar = ChildProcess(argv, folder / f"sidecar-{number}.log")
            stack.callback(sidecar.stop, deadline_s=10.0)
        yield redis
