"""engines.shared_answers: the ranks of one engine ask it once."""

import asyncio

from engines.fetch import Answer, EngineError, NoAnswer
from engines.shared_answers import SharedAnswers
from engines.vllm import Vllm
from tests.engines.fake_engine import Connected, FakeEngine, Reply


class Clock:
    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


class Engine:
    """Counts what is asked; answers when told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.go_on = asyncio.Event()
        self.fails = False

    async def ask(self) -> Answer:
        self.asked += 1
        await self.go_on.wait()
        if self.fails:
            raise NoAnswer("gone")
        return Answer("/x", 200, {}, b"%d" % self.asked)


async def test_one_question_for_all_that_ask_at_once() -> None:
    """Those who come while it is asked wait for the same answer."""
    shared, engine = SharedAnswers(0.1, Clock()), Engine()
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(shared.get("x", engine.ask)) for _ in range(3)]
        await asyncio.sleep(0)
        engine.go_on.set()
    assert {task.result().body for task in asking} == {b"1"} and engine.asked == 1


async def test_an_answer_serves_for_a_moment() -> None:
    """A little later it is still the answer, afterwards it is asked for anew; other things are other answers."""
    clock, engine = Clock(), Engine()
    shared = SharedAnswers(0.1, clock)
    engine.go_on.set()
    assert (await shared.get("x", engine.ask)).body == b"1"
    clock.now_s += 0.09
    assert (await shared.get("x", engine.ask)).body == b"1"
    assert (await shared.get("y", engine.ask)).body == b"2"
    clock.now_s += 0.02
    assert (await shared.get("x", engine.ask)).body == b"3"


async def test_failures_are_not_kept() -> None:
    """All that waited get the failure; the next one asks again."""
    shared, engine = SharedAnswers(0.1, Clock()), Engine()
    engine.fails = True
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(outcome(shared, engine)) for _ in range(2)]
        await asyncio.sleep(0)
        engine.go_on.set()
    assert all(isinstance(task.result(), NoAnswer) for task in asking) and engine.asked == 1
    engine.fails = False
    assert (await shared.get("x", engine.ask)).body == b"2"


async def test_who_asked_first_may_give_up() -> None:
    """The others are told; giving up while waiting for somebody else's question disturbs nobody."""
    shared, engine = SharedAnswers(0.1, Clock()), Engine()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(shared.get("x", engine.ask))
        await asyncio.sleep(0)
        second, third = (group.create_task(outcome(shared, engine)) for _ in range(2))
        await asyncio.sleep(0)
        third.cancel()
        await asyncio.sleep(0)
        assert not first.done() and not second.done()
        first.cancel()
    assert isinstance(second.result(), NoAnswer)
    engine.go_on.set()
    assert (await shared.get("x", engine.ask)).body == b"2"


async def outcome(shared: SharedAnswers, engine: Engine) -> Answer | EngineError:
    try:
        return await shared.get("x", engine.ask)
    except EngineError as error:
        return error


async def test_ranks_read_their_own_numbers_from_one_page() -> None:
    """Two ranks of an engine scrape; it is asked once, and each finds its series."""
    page = Reply(b'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 5\n')
    shared = SharedAnswers(60.0, Clock())
    async with (
        FakeEngine({"/metrics": page}) as engine,
        Connected(engine, shared=shared, rank=0) as one,
        Connected(engine, shared=shared, rank=1) as other,
    ):
        looks = [await Vllm(http).scrape() for http in (one, other)]
        assert [look.running for look in looks] == [3, 5]
        assert engine.asked == ["/metrics"]
