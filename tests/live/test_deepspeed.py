"""Real DeepSpeed on the CPU behind MII's real server and the router: `make test-deepspeed`."""

from collections.abc import Iterator

import pytest

from engines.launch import launch_all
from loadtest.demo.router_process import LocalRouter
from tests.e2e.cluster import until
from tests.live.conftest import Routers
from tests.live.loads import CHAT, TEXT, Ask, decision, play, problems
from tests.live.places import Places
from tests.live.recording import ask, under_load
from tests.live.stage import START_DEADLINE_S, DeepSpeed, deepspeed_options, row_of

MAX_WAITING = 4


@pytest.fixture(scope="module")
def deepspeed(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeepSpeed]:
    back_end, server = launch_all(deepspeed_options(places, tmp_path_factory.mktemp("ds"), MAX_WAITING), START_DEADLINE_S)
    running = DeepSpeed(server, back_end)
    yield running
    running.stop()


@pytest.fixture
def router(deepspeed: DeepSpeed, routers: Routers) -> LocalRouter:
    return routers.start([deepspeed.spec])


def question(text: str, **more: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 6, "temperature": 0, **more}


async def test_answers_come_through(deepspeed: DeepSpeed, router: LocalRouter) -> None:
    """Chats and texts, streamed and not; a stream says what the plain answer says."""
    asks = [Ask(CHAT, question("Hello there"), "chat"), Ask(CHAT, question("Hello there", stream=True), "stream")]
    text = {"model": "tiny", "prompt": "one two three", "max_tokens": 5, "temperature": 0}
    asks += [Ask(TEXT, text, "text"), Ask(TEXT, {**text, "stream": True}, "text stream")]
    answers = await play([router], asks, clients=1)
    assert not problems(answers) and all(one.text for one in answers)
    assert answers[0].text == answers[1].text and answers[2].text == answers[3].text
    assert answers[0].completion_tokens == 6
    assert row_of(router, deepspeed.url)["models"] == ["tiny"]


async def test_no_cache_credit_ever(deepspeed: DeepSpeed, router: LocalRouter) -> None:
    """It reuses nothing: truth is none, and a prompt sent again and again is never predicted to be cached."""
    answers = await play([router], [Ask(CHAT, question("The same words once more. " * 30), "one")] * 4, clients=1)
    assert not problems(answers)
    for record in map(decision, answers):
        assert record["predicted_cached_tokens"] == 0 and not record["actual_cached_tokens"]
    assert row_of(router, deepspeed.url)["truth"] == "none"


def test_queue_depth_is_visible(deepspeed: DeepSpeed, router: LocalRouter) -> None:
    """Requests that the back end holds show as running and waiting, and are gone when they are answered."""
    with under_load(deepspeed.server, CHAT, [question("Go on and on", max_tokens=120)] * 4):
        until(lambda: (row_of(router, deepspeed.url)["running"] or 0) >= 1, "one runs")
        until(lambda: (row_of(router, deepspeed.url)["waiting"] or 0) >= 1, "others wait")
    until(lambda: row_of(router, deepspeed.url)["running"] == row_of(router, deepspeed.url)["waiting"] == 0, "all is done")


def test_full_queue_refuses(deepspeed: DeepSpeed, router: LocalRouter) -> None:
    """Beyond its queue the back end refuses; the client gets an error and the worker stays ready."""
    with under_load(deepspeed.server, CHAT, [question("Go on and on", max_tokens=200)] * (MAX_WAITING + 4)):
        until(lambda: row_of(router, deepspeed.url)["waiting"] == MAX_WAITING, "the queue is full")
        assert ask(router.url, CHAT, question("One too many")).status >= 500
    assert row_of(router, deepspeed.url)["lifecycle"] == "ready"


def test_dead_back_end_is_seen(deepspeed: DeepSpeed, router: LocalRouter) -> None:
    """MII's own health goes on saying ok; the router sees by the page of metrics that nothing generates any more."""
    deepspeed.back_end.kill()
    assert ask(deepspeed.url, "/health").status == 200
    until(lambda: row_of(router, deepspeed.url)["lifecycle"] == "down", "the router sees it down")
