"""Two routers, two real engines each with a sidecar process, one real Redis."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from engines.launch import LlamaCppOptions, LocalEngine, launch
from engines.process import ChildProcess
from loadtest.demo.router_process import LocalRouter, start_router
from loadtest.redis_server import RedisServer, redis_server
from tests.e2e.cluster import MODEL, READY_DEADLINE_S, until


class Pool:
    def __init__(
        self, redis: RedisServer, engines: list[LocalEngine], sidecars: list[ChildProcess], routers: list[LocalRouter]
    ) -> None:
        self.redis = redis
        self.engines = engines
        self.sidecars = sidecars
        self.routers = routers

    def lifecycles(self, router: int = 0) -> dict[str, str]:
        return {row["url"]: row["lifecycle"] for row in self.routers[router].workers()}

    def ask(self, text: str, router: int = 0) -> str:
        """The request's id; it is answered."""
        with openai.OpenAI(base_url=self.routers[router].url + "/v1", api_key="none", max_retries=0, timeout=60) as sdk:
            raw = sdk.completions.with_raw_response.create(model=MODEL, prompt=text, max_tokens=1)
            return raw.headers["x-request-id"]


@pytest.fixture
def pool(options: LlamaCppOptions, tmp_path: Path) -> Iterator[Pool]:
    """The routers know no engine but through Redis."""
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        engines = [stack.enter_context(launch(options, tmp_path / f"engine-{number}.log")) for number in range(2)]
        sidecars = []
        for number, engine in enumerate(engines):
            argv = [sys.executable, "-m", "router.cli", "sidecar", "--redis", redis.url, "--engine", f"llama.cpp={engine.url}"]
            sidecars.append(ChildProcess(argv, tmp_path / f"sidecar-{number}.log"))
            stack.callback(sidecars[-1].stop, deadline_s=10.0)
        routers = []
        for number in range(2):
            routers.append(stack.enter_context(start_router([], tmp_path / f"router-{number}.log", "--redis", redis.url)))
        for router in routers:
            router.await_workers(2, READY_DEADLINE_S)
        yield Pool(redis, engines, sidecars, routers)


def test_routers_find_engines_through_redis(pool: Pool) -> None:
    """Both routers serve; both send the same new prompt to the same engine, though neither told the other of it."""
    text = "A prompt of some length that nobody has seen before, again and again. " * 12
    workers = {pool.routers[router].decision(pool.ask(text, router))["worker"] for router in (0, 1)}
    assert len(workers) == 1
    assert all(row["report_age_s"] < 3.0 for row in pool.routers[0].workers())


def test_redis_may_go(pool: Pool) -> None:
    """Without Redis requests are answered as before; when it is back, so is the state, in a Redis that came back empty."""
    pool.redis.kill()
    for router in (0, 1):
        for _ in range(5):
            pool.ask("while Redis is gone", router)
    pool.redis.start()
    until(lambda: all(row["report_age_s"] < 1.0 for row in pool.routers[0].workers()) or None, "reports come again", 5.0)
    assert set(pool.lifecycles().values()) == {"ready"}


def test_sidecar_that_stops_drains_its_engine(pool: Pool) -> None:
    """SIGTERM to a sidecar: its engine gets no new requests, then counts as lost; the other one goes on."""
    pool.sidecars[0].stop(deadline_s=10.0)
    first = pool.engines[0].url
    until(lambda: pool.lifecycles()[first] != "ready" or None, "the engine drains", 2.0)
    for number in range(4):
        worker = pool.routers[0].decision(pool.ask(f"prompt {number}"))["worker"]
        assert worker == pool.engines[1].url.partition("//")[2]
    until(lambda: pool.lifecycles()[first] == "down" or None, "the engine is lost", 6.0)


def test_killed_sidecar_is_noticed(pool: Pool) -> None:
    """A sidecar that dies says nothing; within the report's time its engine is down for both routers."""
    pool.sidecars[1].kill()
    second = pool.engines[1].url
    until(lambda: pool.lifecycles(0)[second] == pool.lifecycles(1)[second] == "down" or None, "its engine is down", 6.0)
    for router in (0, 1):
        pool.ask("to the other one", router)
