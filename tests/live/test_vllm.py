"""Two real vLLM engines on the CPU behind the router: `make test-vllm`."""

import asyncio
import itertools
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from engines.starters.vllm import VllmOptions
from loadtest.demo.router_process import LocalRouter
from tests.e2e.cluster import post, until
from tests.live.conftest import Routers
from tests.live.loads import (
    CHAT,
    TEXT,
    Answered,
    Ask,
    cached_share,
    ceiling,
    crowded,
    decision,
    forecasts,
    play,
    prefix_groups,
    problems,
)
from tests.live.places import Places
from tests.live.recording import ask
from tests.live.stage import EventEngine, await_exact, leave_in_mid_answer, row_of, shared_pool, start_engines

BLOCK_TOKENS = 32
SMALL_CACHE_BLOCKS = 64  # six prefixes of `crowded`
SEEDS = itertools.count(100)  # of prompts that no engine has seen


@pytest.fixture(scope="module")
def pair(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EventEngine]]:
    plain = VllmOptions(places.vllm, places.model, "tiny", context_tokens=1024, developer=True)
    both = start_engines([plain, plain], tmp_path_factory.mktemp("vllm"))
    yield both
    for vllm in both:
        vllm.engine.stop()


@pytest.fixture
def router(pair: list[EventEngine], routers: Routers) -> LocalRouter:
    return routers.start([vllm.spec for vllm in pair])


def forget(vllm: EventEngine) -> None:
    """Empties the engine's cache, so that a test begins cold."""
    assert ask(vllm.url, "/reset_prefix_cache", b"").json() == {"success": True}


def chat(text: str, **more: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 6, "temperature": 0, **more}


async def test_answers_are_the_engines_own(pair: list[EventEngine], router: LocalRouter) -> None:
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
        engine = next(vllm for vllm in pair if row_of(router, vllm.url)["id"] == second["worker"])
        direct = json.loads(post(engine.url + path, json.dumps({**body, "stream": False, "stream_options": None}).encode())[2])
        choice = direct["choices"][0]
        assert warm.text == (choice["text"] if path == TEXT else choice["message"]["content"])


def test_facts_are_learnt(pair: list[EventEngine], router: LocalRouter) -> None:
    """Models, block size and capacity come from the engines; /v1/models lists the model once."""
    for row in (row_of(router, vllm.url) for vllm in pair):
        assert (row["models"], row["block_tokens"], row["lifecycle"]) == (["tiny"], BLOCK_TOKENS, "ready")
        assert row["capacity_tokens"] > 100_000 and row["kv_used_ratio"] == row["running"] == row["waiting"] == 0
    assert [entry["id"] for entry in ask(router.url, "/v1/models").json()["data"]] == ["tiny"]


def test_errors_pass_through(router: LocalRouter) -> None:
    """A refusal of the engine reaches the client as it is and is not held against the worker."""
    status, _, body = post(router.url + TEXT, json.dumps({"model": "tiny", "prompt": list(range(300, 1500))}).encode())
    assert status == 400 and "maximum context length is 1024 tokens" in json.loads(body)["error"]["message"]
    assert router.ready_workers() == 2


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves(router: LocalRouter, stream: bool) -> None:
    """A client that closes in mid-answer, streamed or not, frees the router's count and stops the engine's work."""
    leave_in_mid_answer(router, "tiny", stream=stream)
    until(lambda: sum(row["running"] for row in router.workers()) == 0, "the engine stops", 3.0)


@pytest.fixture(params=["embedded", "redis"])
def starts(
    request: pytest.FixtureRequest, pair: list[EventEngine], routers: Routers, tmp_path: Path
) -> Iterator[Callable[[], LocalRouter]]:
    """Starts routers that follow the engines themselves, or that hear of them from sidecars through Redis."""
    specs = [vllm.spec for vllm in pair]
    with ExitStack() as stack:
        if request.param == "embedded":
            yield lambda: routers.start(specs)
        else:
            redis = stack.enter_context(shared_pool(specs, tmp_path))
            yield lambda: routers.start([], "--redis", redis.url, ready=len(specs))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_each_group_is_computed_once(pair: list[EventEngine], starts: Callable[[], LocalRouter], stream: bool) -> None:
    """Six groups of eight chats from four clients through two routers, three times over: the cached share is the ceiling,
    to two points."""
    both = [starts(), starts()]
    await_exact(*both)
    answers, prompts = [], []
    for _ in range(3):
        asks = prefix_groups("tiny", seed=next(SEEDS), stream=stream)
        some = await play(both, asks, clients=4)
        assert not problems(some)
        told = [
            ask(pair[0].url, "/tokenize", {"model": "tiny", "messages": one.body["messages"]}).json()["tokens"] for one in asks
        ]
        assert [len(prompt) for prompt in told] == [one.prompt_tokens for one in some]
        print(f"cached share {cached_share(some):.4f}, ceiling {ceiling(told, BLOCK_TOKENS):.4f}")
        answers += some
        prompts += told
    share, best = cached_share(answers), ceiling(prompts, BLOCK_TOKENS)
    print(f"together {share:.4f}, ceiling {best:.4f}")
    assert share >= best - 0.02


async def test_a_new_prefix_is_placed_alike(pair: list[EventEngine], routers: Routers, tmp_path: Path) -> None:
    """Two routers that meet a prefix within 30 ms, before the engine has answered any of it, send it to the same engine; but
    for a few, where to wait for all of its prefill costs as much as to compute it on the idle one."""
    specs = [vllm.spec for vllm in pair]
    with shared_pool(specs, tmp_path) as redis:
        both = [routers.start([], "--redis", redis.url, ready=len(specs)) for _ in range(2)]
        await_exact(*both)
        asks = prefix_groups("tiny", groups=15, each=2, seed=next(SEEDS))
        pairs = [[one for one in asks if one.group == name] for name in sorted({one.group for one in asks})]
        together = 0
        for first, second in pairs:
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(play(both[:1], [first], clients=1))
                await asyncio.sleep(0.03)
                (late,) = await play(both[1:], [second], clients=1)
            (early,) = sending.result()
            assert not problems([early, late])
            together += decision(early)["worker"] == decision(late)["worker"]
    print(f"{together} of {len(pairs)} prefixes on one engine")
    assert together >= 0.8 * len(pairs)


async def test_a_router_that_starts_late_is_right_at_once(pair: list[EventEngine], routers: Routers, tmp_path: Path) -> None:
    """A router that joins has the whole index from the snapshots before it listens, and its first decision is right."""
    specs = [vllm.spec for vllm in pair]
    with shared_pool(specs, tmp_path) as redis:
        early = routers.start([], "--redis", redis.url, ready=len(specs))
        await_exact(early)
        asks = prefix_groups("tiny", seed=next(SEEDS))
        assert not problems(await play([early], asks, clients=4))
        early.stop()
        began_s = time.monotonic()
        late = routers.start([], "--redis", redis.url, ready=0)
        listens_s = time.monotonic() - began_s
        (first,) = await play([late], asks[:1], clients=1)
        held = {row["id"]: (row["truth"], row["blocks_held"]) for row in late.workers()}
    caught_up = re.search(r"picture of the pool after (\d+\.\d+) s", late.process.log_tail())
    assert caught_up is not None
    print(f"listens after {listens_s:.2f} s, of these {caught_up[1]} s for the picture: {held}")
    assert float(caught_up[1]) < 1.0
    assert {truth for truth, _ in held.values()} == {"exact"} and not problems([first])
    assert first.cached_tokens and decision(first)["predicted_cached_tokens"] == first.cached_tokens


async def test_restart_is_another_generation(pair: list[EventEngine], routers: Routers) -> None:
    """An engine killed and started again has a new generation, and nothing is predicted of what it held before."""
    vllm = pair[1]
    router = routers.start([vllm.spec])
    prompt = Ask(TEXT, {"model": "tiny", "prompt": list(range(700, 900)), "max_tokens": 2, "temperature": 0}, "one")
    warm = (await play([router], [prompt] * 2, clients=1))[1]
    assert decision(warm)["predicted_cached_tokens"] > 0
    before = row_of(router, vllm.url)["generation"]
    vllm.engine.kill()
    until(lambda: row_of(router, vllm.url)["lifecycle"] == "down", "the router sees it gone", 10.0)
    vllm.start_again(cache_blocks=SMALL_CACHE_BLOCKS)
    until(lambda: row_of(router, vllm.url)["lifecycle"] == "ready", "the engine is back", 10.0)
    row = row_of(router, vllm.url)
    assert row["generation"] != before and row["capacity_tokens"] == SMALL_CACHE_BLOCKS * BLOCK_TOKENS
    (after,) = await play([router], [prompt], clients=1)
    assert not problems([after]) and after.cached_tokens == 0
    assert decision(after)["predicted_cached_tokens"] == 0


class Load:
    """Requests that go on until `stop`: their decisions, and `later` those of them that were sent after `mark`."""

    def __init__(self, router: LocalRouter, asks: list[Ask]) -> None:
        self.mark = threading.Event()
        self.stop = threading.Event()
        self.decisions: list[dict[str, Any]] = []
        self.later: list[dict[str, Any]] = []
        self._router = router
        self._asks = itertools.cycle(asks)

    def run(self) -> list[Answered]:
        answers: list[Answered] = []
        while not self.stop.is_set():
            is_later = self.mark.is_set()
            some = asyncio.run(play([self._router], list(itertools.islice(self._asks, 20)), clients=4, pause_s=0.1))
            answers += some
            records = [decision(one) for one in some if not one.problem]
            self.decisions += records
            self.later += records if is_later else []
        return answers


def test_restart_under_load(pair: list[EventEngine], starts: Callable[[], LocalRouter]) -> None:
    """An engine dies and comes back while requests go on: all are answered, and nothing is predicted of what it had held."""
    router = starts()
    await_exact(router)
    vllm = pair[1]
    before = row_of(router, vllm.url)["generation"]
    asks = prefix_groups("tiny", groups=12, each=20, seed=next(SEEDS))
    warm_up = asyncio.run(play([router], asks[:120], clients=4))
    assert {decision(one)["worker"] for one in warm_up} == {row["id"] for row in router.workers()}
    load = Load(router, asks[120:])
    with ThreadPoolExecutor(1) as thread:
        loading = thread.submit(load.run)
        try:
            vllm.engine.kill()
            killed_s = time.time()
            vllm.start_again()
            until(lambda: row_of(router, vllm.url)["generation"] != before, "its first report", 20.0)
            load.mark.set()
            until(lambda: len(load.later) >= 80, "requests go on", 60.0)
        finally:
            load.stop.set()
        answers = loading.result()
    worker = row_of(router, vllm.url)["id"]
    fresh = asyncio.run(play([router], prefix_groups("tiny", seed=next(SEEDS)), clients=4))
    later = load.later + [decision(one) for one in fresh]
    own = [record for record in later if record["worker"] == worker]
    stale = [record for record in own if record["predicted_cached_tokens"] > record["actual_cached_tokens"]]
    at_s = [record["at_s"] for record in load.decisions + own if record["worker"] == worker and record["at_s"] > killed_s]
    first_s = min(at_s, default=math.inf)  # before it the new engine held nothing
    for record in later:
        held = sum(row["matched_tokens"] for row in record["candidates"] if row["worker"] == worker)
        stale += [record] if held and record["at_s"] < first_s else []
    print(f"{len(answers)} requests, {len(own)} of {len(later)} later ones on the new engine, {len(stale)} stale predictions")
    assert not problems([*answers, *fresh])
    assert own and not stale, stale


async def test_predictions_hold_under_eviction(pair: list[EventEngine], routers: Routers) -> None:
    """With a cache that evicts all the time, at least 99 % of predictions are what the engine then reports."""
    vllm = pair[1]
    assert isinstance(vllm.options, VllmOptions)
    if vllm.options.cache_blocks != SMALL_CACHE_BLOCKS:
        vllm.start_again(cache_blocks=SMALL_CACHE_BLOCKS)
    router = routers.start([vllm.spec])
    await_exact(router)
    forget(vllm)
    answers = await play([router], crowded("tiny", count=150, prefixes=12), clients=1, pause_s=0.05)
    assert not problems(answers)
    found = forecasts(answers)
    print(f"{found.equal_share():.3f} of {len(found.pairs)} predictions equal")
    assert found.equal_share() >= 0.99, found.misses()
