"""Two real vLLM engines on the CPU behind the router: `make test-vllm`."""

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from engines.launch import LocalEngine, launch, launch_all
from engines.starters.vllm import VllmOptions
from loadtest.demo.router_process import LocalRouter
from tests.e2e.cluster import post, until
from tests.live.conftest import Routers
from tests.live.loads import CHAT, TEXT, Ask, cached_share, ceiling, crowded, decision, forecasts, play, prefix_groups, problems
from tests.live.places import Places
from tests.live.recording import ask

START_DEADLINE_S = 240.0
BLOCK_TOKENS = 32
SMALL_CACHE_BLOCKS = 64  # six prefixes of `crowded`


class Vllm:
    """One engine that can be started again on its addresses."""

    def __init__(self, engine: LocalEngine, options: VllmOptions, log: Path) -> None:
        self.engine = engine
        self.options = replace(options, port=engine.port)
        self._log = log

    @property
    def url(self) -> str:
        return self.engine.url

    @property
    def spec(self) -> str:
        return f"vllm={self.url},events={self.options.events},replay={self.options.replay}"

    @property
    def is_small(self) -> bool:
        return self.options.cache_blocks == SMALL_CACHE_BLOCKS

    def start_small(self) -> None:
        """Again, with a cache that soon evicts."""
        self.engine.stop()
        self.options = replace(self.options, cache_blocks=SMALL_CACHE_BLOCKS)
        self.engine = launch(self.options, self._log, START_DEADLINE_S)


@pytest.fixture(scope="module")
def pair(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Vllm]]:
    """Two engines, each with a port, an event address and a replay address."""
    folder = tmp_path_factory.mktemp("vllm")
    plain = VllmOptions(places.vllm, places.model, "tiny", context_tokens=1024, developer=True)
    options = [
        replace(plain, events=f"ipc://{folder}/{name}-events", replay=f"ipc://{folder}/{name}-replay", topic=f"kv@{name}@tiny")
        for name in "ab"
    ]
    logs = [folder / f"{name}.log" for name in "ab"]
    engines = launch_all(list(zip(options, logs, strict=True)), START_DEADLINE_S)
    both = [Vllm(*parts) for parts in zip(engines, options, logs, strict=True)]
    yield both
    for vllm in both:
        vllm.engine.stop()


@pytest.fixture
def router(pair: list[Vllm], routers: Routers) -> LocalRouter:
    return routers.start([vllm.spec for vllm in pair])


def row_of(router: LocalRouter, vllm: Vllm) -> dict[str, Any]:
    (row,) = [row for row in router.workers() if row["url"] == vllm.url]
    return row


def forget(vllm: Vllm) -> None:
    """Empties the engine's cache, so that a test begins cold."""
    assert ask(vllm.url, "/reset_prefix_cache", b"").json() == {"success": True}


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 6, "temperature": 0, **more}


async def test_answers_are_the_engines_own(pair: list[Vllm], router: LocalRouter) -> None:
    """Chats and texts, streamed and not, come through whole, with usage and the cached tokens that the engine counted."""
    for path, body in (
        (CHAT, chat("Say something about hedgehogs. " * 20)),
        (CHAT, chat("Say something about badgers. " * 20, stream=True, stream_options={"include_usage": True})),
        (TEXT, {"model": "tiny", "prompt": "one two three " * 40, "max_tokens": 5, "temperature": 0}),
        (TEXT, {"model": "tiny", "prompt": list(range(500, 600)), "max_tokens": 5, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}),
    ):  # fmt: skip
        cold, warm = await play([router], [Ask(path, body, "one")] * 2, clients=1)
        assert not problems([cold, warm]) and warm.text == cold.text
        assert warm.prompt_tokens and warm.cached_tokens == (warm.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        first, second = decision(cold), decision(warm)
        assert second["worker"] == first["worker"] and second["prompt_tokens"] == warm.prompt_tokens
        assert second["actual_cached_tokens"] == warm.cached_tokens
        engine = next(vllm for vllm in pair if row_of(router, vllm)["id"] == second["worker"])
        direct = json.loads(post(engine.url + path, json.dumps({**body, "stream": False, "stream_options": None}).encode())[2])
        choice = direct["choices"][0]
        assert warm.text == (choice["text"] if path == TEXT else choice["message"]["content"])


def test_facts_are_learnt(pair: list[Vllm], router: LocalRouter) -> None:
    """Models, block size and capacity come from the engines; /v1/models lists the model once."""
    for row in (row_of(router, vllm) for vllm in pair):
        assert (row["models"], row["block_tokens"], row["lifecycle"]) == (["tiny"], BLOCK_TOKENS, "ready")
        assert row["capacity_tokens"] > 100_000 and row["kv_used_ratio"] == row["running"] == row["waiting"] == 0
    assert [entry["id"] for entry in ask(router.url, "/v1/models").json()["data"]] == ["tiny"]


def test_errors_pass_through(router: LocalRouter) -> None:
    """A refusal of the engine reaches the client as it is and is not held against the worker."""
    status, _, body = post(router.url + TEXT, json.dumps({"model": "tiny", "prompt": list(range(300, 1500))}).encode())
    assert status == 400 and "maximum context length is 1024 tokens" in json.loads(body)["error"]["message"]
    assert router.ready_workers() == 2


def test_client_that_leaves(pair: list[Vllm], router: LocalRouter) -> None:
    """A client that closes in mid-answer, streamed or not, frees the router's count and stops the engine's work."""
    for stream in (True, False):
        body = json.dumps({**chat("On and on"), "max_tokens": 900, "ignore_eos": True, "stream": stream}).encode()
        address = urlsplit(router.url)
        with socket.create_connection((address.hostname, address.port or 0), timeout=10) as client:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            until(lambda: sum(row["running"] or 0 for row in router.workers()) == 1, "an engine works on it")
        until(lambda: all(row["in_flight"] == 0 for row in router.workers()), "the count is given back", 2.0)
        until(lambda: sum(row["running"] for row in router.workers()) == 0, "the engine stops", 3.0)


async def test_each_group_is_computed_once(pair: list[Vllm], routers: Routers) -> None:
    """Six groups of eight chats from four clients through two routers: the cached share is the ceiling, to two points."""
    specs = [vllm.spec for vllm in pair]
    both = [routers.start(specs), routers.start(specs)]
    for vllm in pair:
        forget(vllm)
    asks = prefix_groups("tiny")
    answers = await play(both, asks, clients=4)
    assert not problems(answers)
    prompts = [
        ask(pair[0].url, "/tokenize", {"model": "tiny", "messages": one.body["messages"]}).json()["tokens"] for one in asks
    ]
    assert [len(prompt) for prompt in prompts] == [one.prompt_tokens for one in answers]
    share, best = cached_share(answers), ceiling(prompts, BLOCK_TOKENS)
    print(f"cached share {share:.4f}, ceiling {best:.4f}")
    needs_exact_truth(both[0], pair, f"cached share {share:.4f}, ceiling {best:.4f}")
    assert share >= best - 0.02


async def test_restart_is_another_generation(pair: list[Vllm], routers: Routers) -> None:
    """An engine killed and started again has a new generation, and nothing is predicted of what it held before."""
    vllm = pair[1]
    router = routers.start([vllm.spec])
    prompt = Ask(TEXT, {"model": "tiny", "prompt": list(range(700, 900)), "max_tokens": 2, "temperature": 0}, "one")
    warm = (await play([router], [prompt] * 2, clients=1))[1]
    assert decision(warm)["predicted_cached_tokens"] > 0
    before = row_of(router, vllm)["generation"]
    vllm.engine.kill()
    until(lambda: row_of(router, vllm)["lifecycle"] == "down", "the router sees it gone", 10.0)
    vllm.start_small()
    until(lambda: row_of(router, vllm)["lifecycle"] == "ready", "the engine is back", 10.0)
    row = row_of(router, vllm)
    assert row["generation"] != before and row["capacity_tokens"] == SMALL_CACHE_BLOCKS * BLOCK_TOKENS
    (after,) = await play([router], [prompt], clients=1)
    assert not problems([after]) and after.cached_tokens == 0
    assert decision(after)["predicted_cached_tokens"] == 0


async def test_predictions_hold_under_eviction(pair: list[Vllm], routers: Routers) -> None:
    """With a cache that evicts all the time, at least 99 % of predictions are what the engine then reports."""
    vllm = pair[1]
    if not vllm.is_small:
        vllm.start_small()
    router = routers.start([vllm.spec])
    forget(vllm)
    answers = await play([router], crowded("tiny", count=150, prefixes=12), clients=1, pause_s=0.05)
    assert not problems(answers)
    found = forecasts(answers)
    print(f"{found.equal_share():.3f} of {len(found.pairs)} predictions equal")
    needs_exact_truth(router, [vllm], f"{found.equal_share():.3f} of {len(found.pairs)} predictions equal")
    assert found.equal_share() >= 0.99, found.misses()


def needs_exact_truth(router: LocalRouter, engines: list[Vllm], measured: str) -> None:
    """Skips, saying what was measured, where the router does not follow the engines' events."""
    rows = [row_of(router, vllm) for vllm in engines]
    if any(row["truth"] != "exact" for row in rows):
        pytest.skip(f"{', '.join(row['truth'] + ' ' + row['truth_reason'] for row in rows)}: {measured}")
