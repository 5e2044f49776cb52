"""Real SGLang engines on the CPU behind the router, with pages of 16 tokens and of 1: `make test-sglang`."""

from collections.abc import Iterator

import pytest

from engines.starters.sglang import SglangOptions
from loadtest.demo.router_process import LocalRouter
from router.core.types import BLOCK_TOKENS
from tests.e2e.cluster import until
from tests.live.conftest import Routers
from tests.live.loads import CHAT, TEXT, Ask, cached_share, ceiling, crowded, decision, forecasts, play, prefix_groups, problems
from tests.live.places import Places
from tests.live.recording import ask
from tests.live.stage import EventEngine, await_exact, leave_in_mid_answer, row_of, start_engines

CACHE_TOKENS = {16: 16_384, 1: 2048}  # by page size; the second evicts under `crowded`


@pytest.fixture(scope="module")
def engines(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EventEngine]]:
    """One with pages of 16 tokens, one with pages of 1."""
    options = [
        SglangOptions(places.sglang, places.model, "tiny", page_tokens=page, context_tokens=1024, cache_tokens=cache)
        for page, cache in CACHE_TOKENS.items()
    ]
    both = start_engines(options, tmp_path_factory.mktemp("sglang"))
    yield both
    for sglang in both:
        sglang.engine.stop()


@pytest.fixture(params=[0, 1], ids=["page 16", "page 1"])
def sglang(request: pytest.FixtureRequest, engines: list[EventEngine]) -> EventEngine:
    chosen: EventEngine = engines[request.param]
    forget(chosen)
    return chosen


@pytest.fixture
def router(sglang: EventEngine, routers: Routers) -> LocalRouter:
    return routers.start([sglang.spec])


def page_of(sglang: EventEngine) -> int:
    assert isinstance(sglang.options, SglangOptions)
    return sglang.options.page_tokens


def forget(sglang: EventEngine) -> None:
    """Empties the engine's cache as soon as it is idle."""
    until(lambda: ask(sglang.url, "/flush_cache", b"").status == 200, "the cache is flushed")


async def test_answers_and_cached_tokens(sglang: EventEngine, router: LocalRouter) -> None:
    """Chats and texts, streamed and not, come through whole; cached tokens are whole pages, the last token never."""
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    question = {"model": "tiny", "messages": [{"role": "user", "content": "Say something about hedgehogs. " * 20}]}
    for path, body in (
        (CHAT, {**question, "max_tokens": 6, "temperature": 0}),
        (CHAT, {**question, "max_tokens": 6, "temperature": 0, **usage}),
        (TEXT, {"model": "tiny", "prompt": list(range(500, 600)), "max_tokens": 5, "temperature": 0, **usage}),
    ):
        cold, warm = await play([router], [Ask(path, body, "one")] * 2, clients=1)
        assert not problems([cold, warm]) and warm.text == cold.text and warm.prompt_tokens
        page = page_of(sglang)
        assert warm.cached_tokens == (warm.prompt_tokens - 1) // page * page
        record = decision(warm)
        assert (record["actual_cached_tokens"], record["prompt_tokens"]) == (warm.cached_tokens, warm.prompt_tokens)


def test_facts_are_learnt(sglang: EventEngine, router: LocalRouter) -> None:
    """Page size, cache size and model come from the engine; load from /v1/loads."""
    row = row_of(router, sglang.url)
    page = page_of(sglang)
    assert (row["models"], row["block_tokens"], row["capacity_tokens"]) == (["tiny"], page, CACHE_TOKENS[page])
    assert row["running"] == row["waiting"] == row["waiting_tokens"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves(router: LocalRouter, stream: bool) -> None:
    """A client that closes in mid-answer frees the router's count at once and, some seconds later, the engine."""
    leave_in_mid_answer(router, "tiny", stream=stream)
    until(lambda: sum(row["running"] for row in router.workers()) == 0, "the engine stops", 15.0)


async def test_predictions_are_exact(sglang: EventEngine, router: LocalRouter) -> None:
    """At least 99 % of predictions are what the engine then reports, with groups that fit its cache and with too many.

    A router's keys are of 16 tokens: where pages are smaller, what is cached behind the last whole block is not predicted.
    """
    await_exact(router)
    groups = await play([router], prefix_groups("tiny", groups=3, each=6, prefix_words=60), clients=1, pause_s=0.05)
    crowd = await play([router], crowded("tiny", count=60, prefixes=12, prefix_tokens=240), clients=1, pause_s=0.05)
    assert not problems([*groups, *crowd])
    found = forecasts([*groups, *crowd])
    equal, right = found.equal_share(), found.right_share(BLOCK_TOKENS)
    print(f"{equal:.3f} of {len(found.pairs)} predictions equal, {right:.3f} to whole blocks of {BLOCK_TOKENS} tokens")
    assert (equal if page_of(sglang) >= BLOCK_TOKENS else right) >= 0.99, found.misses()


async def test_each_group_is_computed_once(engines: list[EventEngine], routers: Routers) -> None:
    """Groups of chats from two clients through two routers: the cached share is the ceiling of pages of 16, to two points."""
    sglang = engines[0]
    forget(sglang)
    both = [routers.start([sglang.spec]), routers.start([sglang.spec])]
    await_exact(*both)
    asks = prefix_groups("tiny", groups=4, each=6)
    answers = await play(both, asks, clients=2)
    assert not problems(answers)
    prompts = [
        ask(sglang.url, "/tokenize", {"model": "tiny", "messages": one.body["messages"]}).json()["tokens"] for one in asks
    ]
    share, best = cached_share(answers), ceiling(prompts, page_of(sglang))
    print(f"cached share {share:.4f}, ceiling {best:.4f}")
    assert share >= best - 0.02


async def test_flush_and_restart(engines: list[EventEngine], routers: Routers) -> None:
    """After /flush_cache and after a restart nothing is predicted of before; a restart is another generation."""
    sglang = engines[1]
    router = routers.start([sglang.spec])
    await_exact(router)
    prompt = Ask(TEXT, {"model": "tiny", "prompt": list(range(700, 900)), "max_tokens": 2, "temperature": 0}, "one")
    warm = (await play([router], [prompt] * 2, clients=1))[1]
    assert decision(warm)["predicted_cached_tokens"] > 0
    before = row_of(router, sglang.url)["generation"]
    sglang.start_again()
    until(lambda: row_of(router, sglang.url)["generation"] != before, "the router sees another generation", 20.0)
    until(lambda: row_of(router, sglang.url)["lifecycle"] == "ready", "the engine is back", 20.0)
    (after,) = await play([router], [prompt], clients=1)
    assert not problems([after]) and (after.cached_tokens, decision(after)["predicted_cached_tokens"]) == (0, 0)
    await_exact(router)
    (warm,) = await play([router], [prompt], clients=1)
    assert warm.cached_tokens == 199 and decision(warm)["predicted_cached_tokens"] == 199 // BLOCK_TOKENS * BLOCK_TOKENS
    forget(sglang)
    until(lambda: row_of(router, sglang.url)["blocks_held"] == 0, "the flush is told")
    (flushed,) = await play([router], [prompt], clients=1)
    assert (flushed.cached_tokens, decision(flushed)["predicted_cached_tokens"]) == (0, 0)
