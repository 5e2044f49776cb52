"""Who is asked for tokens, how many at a time, and what becomes of an engine that is silent."""

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from router.core.stats import Stats
from router.core.types import WorkerId
from router.tokens.asking import SILENCE_S, Asking
from router.tokens.pre_tokenizers import GPT2
from router.wire.engine_tokens import NoTokens
from router.wire.openai_request import TextPrompt
from tests.tokens.token_engine import TokenEngine
from tests.tokens.vocabularies import byte_level, entry_of

ENTRY = entry_of(byte_level((GPT2,)))
A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
PROMPT = TextPrompt(("Once upon a time",))


class Bench:
    def __init__(self, limit: int = 4) -> None:
        self.now_s = 100.0
        self.stats = Stats()
        self.engines = {worker: TokenEngine(ENTRY) for worker in (A, B)}
        self.asking = Asking(limit, self.stats, lambda: self.now_s)
        self.answers: list[array[int] | None] = []

    def ask(self, *workers: WorkerId) -> str | None:
        return self.asking.ask(workers or (A, B), "m", PROMPT, self.answers.append)

    async def settled(self) -> None:
        while self.asking.in_flight:  # noqa: ASYNC110 - one turn of the loop each
            await asyncio.sleep(0)

    def asked(self) -> dict[WorkerId, int]:
        return {worker: len(engine.asked) for worker, engine in self.engines.items()}


@asynccontextmanager
async def bench(limit: int = 4) -> AsyncIterator[Bench]:
    made = Bench(limit)
    async with asyncio.TaskGroup() as group:
        made.asking.open(group, made.engines.get)
        yield made
        made.asking.close()


async def test_workers_take_turns() -> None:
    """Questions are spread, and the answer is the engine's ids."""
    async with bench() as made:
        for _ in range(4):
            assert made.ask() is None
        await made.settled()
        assert made.asked() == {A: 2, B: 2}
        expected = memoryview(ENTRY.encode(PROMPT.texts[0])).cast("I").tolist()
        assert [ids.tolist() if ids else None for ids in made.answers] == [expected] * 4
        assert made.engines[A].models == ["m", "m"]
        assert made.stats.token_asks == {"told": 4}


async def test_a_silent_engine_is_left_alone_for_a_while() -> None:
    """Another one answers at once, and the silent one is not asked again before its time."""
    async with bench() as made:
        made.engines[A].mood = NoTokens("no answer", lasting=False)
        for _ in range(6):
            made.ask()
            await made.settled()
        assert made.asked() == {A: 1, B: 6} and None not in made.answers
        assert made.ask(A) == "engine_failed"
        made.now_s += SILENCE_S
        made.engines[A].mood = None
        assert made.ask(A) is None
        await made.settled()
        assert made.asked()[A] == 2


async def test_a_refused_prompt_says_nothing_of_the_engine() -> None:
    """An engine that does not take a prompt is asked for the next one."""
    async with bench() as made:
        made.engines[A].mood = NoTokens("refused", lasting=True)
        made.ask(A)
        await made.settled()
        assert made.answers == [None] and made.stats.token_asks == {"failed": 1}
        made.engines[A].mood = None
        assert made.ask(A) is None
        await made.settled()


async def test_a_forgotten_worker_has_no_past() -> None:
    """A removed worker that comes back is asked like a new one."""
    async with bench() as made:
        made.engines[A].mood = NoTokens("no answer", lasting=False)
        made.ask(A)
        await made.settled()
        made.asking.forget(A)
        assert made.ask(A) is None
        await made.settled()


async def test_the_number_is_bounded() -> None:
    """Beyond the limit nothing is begun, and that is counted."""
    async with bench(limit=2) as made:
        assert [made.ask() for _ in range(3)] == [None, None, "asks_full"]
        assert made.asking.in_flight == made.asking.limit == 2
        await made.settled()
        assert made.stats.token_asks == {"told": 2, "refused": 1}


async def test_nobody_there() -> None:
    """Before it is opened, after it is closed, and for workers that are gone, there is no answer."""
    made = Bench()
    assert made.ask() == "engine_failed"
    async with bench() as made:
        assert made.ask(C) is None
        await made.settled()
        assert made.answers == [None]
        made.asking.close()
        assert made.ask() == "engine_failed"
        assert made.ask() == "engine_failed"


async def test_a_surprise_ends_only_its_own_question(caplog: pytest.LogCaptureFixture) -> None:
    """An exception nobody expected, from the engine's side or the asker's, is logged and goes no further."""
    async with bench() as made:
        made.engines[A].mood = RuntimeError("surprise")
        made.ask(A)
        await made.settled()
        made.engines[A].mood = None

        def breaks(ids: "array[int] | None") -> None:
            raise RuntimeError("surprise")

        made.asking.ask((A,), "m", PROMPT, breaks)
        await made.settled()
        assert [record.getMessage() for record in caplog.records] == ["surprise while asking a for tokens"] * 2
        made.ask(A)
        await made.settled()
        assert made.answers[-1] is not None


async def test_questions_end_with_the_group() -> None:
    """Closing cancels what is under way, so that nothing keeps the process."""
    async with bench() as made:
        made.ask()
        made.asking.close()
        await made.settled()
        assert made.answers == []
