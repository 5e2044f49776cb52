"""The loop over the fleet: who is asked when, about which models, and what else is keyed alike."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from router.core.fleet import Fleet, Worker
from router.core.types import Lifecycle, Truth, WorkerId
from router.settings import FleetSettings, TokenSettings
from router.tokens import parity_watch
from router.tokens.book import TokenizerBook
from router.tokens.key_sources import KeySource, KeySources
from router.tokens.parity import Witness
from router.tokens.parity_watch import CHECKS_PER_ROUND, FIRST_RETRY_S, LONGEST_RETRY_S, ParityWatch
from router.tokens.pre_tokenizers import GPT2
from router.wire.engine_tokens import EngineTokens, NoTokens
from router.wire.openai_request import ChatPrompt, TextPrompt
from tests.core.builders import report, spec
from tests.tokens.token_engine import TokenEngine
from tests.tokens.vocabularies import CHATML, byte_level, entry_of, write_folder

WORDS = byte_level((GPT2,))
SAME = entry_of(WORDS)
OTHER = entry_of(WORDS, CHATML.replace("<|im_end|>' + '\n'", "<|im_end|>'"))


class Bench:
    """A fleet, an engine for each of its workers, and a watch over them."""

    def __init__(self, folder: Path, *names: str) -> None:
        """`names` have tokenizers; "" is the one for all others."""
        given = []
        for name in names:
            made = write_folder(folder / (name or "others"), WORDS, chat_template=CHATML)
            given.append(f"{name}={made}" if name else str(made))
        settings = TokenSettings(tokenizer=tuple(given))
        self.now_s = 100.0
        self.surprises: list[Exception] = []
        self.fleet = Fleet(FleetSettings())
        self.sources = KeySources(TokenizerBook(settings))
        self.engines: dict[WorkerId, TokenEngine] = {}
        self.watch = ParityWatch(settings, self.fleet, self.sources, self.engines.get, self.clock)

    def clock(self) -> float:
        if self.surprises:
            raise self.surprises.pop()
        return self.now_s

    def add(self, engine: TokenEngine | None, *models: str, adapters: tuple[str, ...] | None = None) -> Worker:
        """A ready worker that lists these models; without an engine its kind has no route."""
        worker = self.fleet.add(spec(len(self.fleet) + 1), self.now_s)
        if engine is not None:
            self.engines[worker.id] = engine
        self.tell(worker, models=models or None, adapters=adapters)
        return worker

    def tell(self, worker: Worker, lifecycle: Lifecycle = Lifecycle.READY, **facts: object) -> None:
        self.now_s += 1.0
        self.fleet.apply(report(worker, self.now_s, lifecycle, **facts), self.now_s)

    def source(self, model: str | None) -> KeySource | None:
        keys = self.sources.of(model)
        return None if keys is None else keys.chat.source

    def asked(self, *workers: Worker) -> list[int]:
        return [len(self.engines[worker.id].asked) for worker in workers]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, "")


async def test_a_ready_worker_is_asked_once(bench: Bench) -> None:
    """Not before it is ready, then once, and not again in later rounds."""
    await bench.watch.round()
    worker = bench.fleet.add(spec(1), 0.0)
    engine = bench.engines[worker.id] = TokenEngine(OTHER)
    bench.tell(worker, Lifecycle.LOADING)
    await bench.watch.round()
    assert not engine.asked and bench.watch.verdict_on(worker) == (None, "not compared yet")
    bench.tell(worker)
    await bench.watch.round()
    asked = len(engine.asked)
    assert asked > 5 and set(engine.models) == {"m"}
    assert bench.source("m") is KeySource.ENGINE and bench.source("unlisted") is KeySource.TOKENIZER
    await bench.watch.round()
    assert len(engine.asked) == asked
    matches, why = bench.watch.verdict_on(worker)
    assert matches is False and why.startswith("the chat template differs")


async def test_a_restart_is_another_question(bench: Bench) -> None:
    """A new generation is asked again, and a model that matches again is keyed by the tokenizer again."""
    worker = bench.add(TokenEngine(OTHER), "m")
    await bench.watch.round()
    assert bench.source("m") is KeySource.ENGINE
    bench.engines[worker.id] = TokenEngine(SAME)
    bench.tell(worker, generation="g2")
    assert bench.source("m") is KeySource.ENGINE
    await bench.watch.round()
    assert bench.source("m") is KeySource.TOKENIZER
    assert bench.watch.verdict_on(worker) == (True, "")


async def test_silence_is_asked_again_later_and_later(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """An engine that does not answer is tried again, each time after twice as long; it holds up nobody else."""
    silent, good = TokenEngine(SAME), TokenEngine(OTHER)
    silent.mood = NoTokens("no answer", lasting=False)
    worker, other = bench.add(silent, "m"), bench.add(good, "n")
    times: list[float] = []
    for _ in range(400):
        await bench.watch.round()
        if len(silent.asked) > len(times):
            times.append(bench.now_s)
        bench.now_s += 1.0
    pauses = [late - early for early, late in pairwise(times)]
    assert pauses[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S] and max(pauses) <= LONGEST_RETRY_S
    assert bench.source("n") is KeySource.ENGINE and bench.asked(other)[0] < 20
    silent.mood = RuntimeError("surprise")
    bench.tell(worker, generation="g2")
    await bench.watch.round()
    assert "surprise while comparing tokens" in caplog.text
    silent.mood = None
    bench.now_s += FIRST_RETRY_S
    await bench.watch.round()
    assert bench.watch.verdict_on(worker)[0] is True


async def test_an_engine_that_hangs_has_a_deadline(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker's questions all together end in time."""
    monkeypatch.setattr(parity_watch, "CHECK_DEADLINE_S", 0.02)

    class Hanging(TokenEngine):
        async def tokens(self, *args: object) -> None:  # type: ignore[override]
            await asyncio.Event().wait()

    worker = bench.add(Hanging(SAME), "m")
    await asyncio.wait_for(bench.watch.round(), 5)
    assert bench.watch.verdict_on(worker)[0] is None


async def test_a_restart_while_it_is_asked(bench: Bench) -> None:
    """What was told belongs to the life that ended: it is not taken, and the engine is asked again."""

    class Restarting(TokenEngine):
        async def tokens(self, prompt: ChatPrompt | TextPrompt, model: str | None) -> EngineTokens:
            if worker.generation == "g1":
                bench.tell(worker, generation="g2")
                await bench.watch.round()
                witness.append(bench.watch.models["m"].witnesses[worker.id])
                witness[0].probed = {}
            return await super().tokens(prompt, model)

    witness: list[Witness] = []
    worker = bench.add(Restarting(OTHER), "m")
    await bench.watch.round()
    assert bench.source("m") is KeySource.ENGINE  # told by the round within
    assert witness[0].probed == {}  # and not by the one around it


async def test_truth_counts_when_it_changes(bench: Bench) -> None:
    """A differing worker whose cache becomes known exactly has the engine's tokens asked for, though another one matches."""
    exact = bench.add(TokenEngine(OTHER), "m")
    bench.add(TokenEngine(SAME), "m")
    assert bench.watch.verdict_on(exact) == (None, "")
    await bench.watch.round()
    assert bench.source("m") is KeySource.TOKENIZER
    exact.in_sync = True
    bench.tell(exact, truth=Truth.EXACT)
    await bench.watch.round()
    assert bench.source("m") is KeySource.ENGINE


async def test_a_few_workers_per_round(bench: Bench) -> None:
    """A large fleet is asked over many rounds, so that the questions take little of the loop."""
    workers = [bench.add(TokenEngine(SAME), "m") for _ in range(2 * CHECKS_PER_ROUND + 1)]
    for expected in (CHECKS_PER_ROUND, 2 * CHECKS_PER_ROUND, 2 * CHECKS_PER_ROUND + 1):
        await bench.watch.round()
        assert sum(count > 0 for count in bench.asked(*workers)) == expected


async def test_a_kind_without_routes(bench: Bench) -> None:
    """It is unknown and says so; counts are all there is."""
    worker = bench.add(None, "m")
    await bench.watch.round()
    assert bench.watch.verdict_on(worker) == (None, "engines of its kind have no route that tells tokens")
    keys = bench.sources.of("m")
    assert keys is not None
    for _ in range(20):
        keys.chat.counted.note(worker.id, 5, 6)
    await bench.watch.round()
    assert bench.source("m") is KeySource.TEXT


async def test_models_have_verdicts_of_their_own(bench: Bench) -> None:
    """One tokenizer for all may fit one model and not another."""
    fits, differs = bench.add(TokenEngine(SAME), "a"), bench.add(TokenEngine(OTHER), "b")
    await bench.watch.round()
    assert (bench.source("a"), bench.source("b")) == (KeySource.TOKENIZER, KeySource.ENGINE)
    assert sorted(bench.watch.models) == ["a", "b"]
    assert bench.watch.verdict_on(fits)[0] is True and bench.watch.verdict_on(differs)[0] is False
    bench.fleet.remove(differs.id)
    await bench.watch.round()
    assert sorted(bench.watch.models) == ["a"]
    assert bench.sources.of("b") is bench.sources.others


async def test_adapters_are_keyed_like_their_model(bench: Bench) -> None:
    """An adapter is not asked about; it gets what its model has, and is one of the others when it is gone."""
    engine = TokenEngine(OTHER)
    worker = bench.add(engine, "base", "lora", adapters=("lora",))
    await bench.watch.round()
    assert set(engine.models) == {"base"}
    assert bench.source("lora") is KeySource.ENGINE and bench.sources.of("lora") is bench.sources.of("base")
    bench.tell(worker, models=("base",), adapters=())
    await bench.watch.round()
    assert bench.sources.of("lora") is bench.sources.others


async def test_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    """Models without a tokenizer are not asked about, adapters with one are."""
    bench = Bench(tmp_path, "lora")
    engine = TokenEngine(OTHER)
    worker = bench.add(engine, "base", "lora", "lora2", adapters=("lora", "lora2"))
    nothing = bench.add(TokenEngine(OTHER), "base")
    await bench.watch.round()
    assert set(engine.models) == {"lora"} and bench.asked(nothing) == [0]
    assert (bench.source("base"), bench.source("lora"), bench.source("lora2")) == (None, KeySource.ENGINE, None)
    assert bench.watch.verdict_on(nothing) == (None, "")
    bench.fleet.remove(worker.id)
    await bench.watch.round()
    assert bench.source("lora") is KeySource.TOKENIZER and bench.watch.models == {}


async def test_requests_without_a_model(bench: Bench) -> None:
    """They are keyed like the only model there is, and by the tokenizer when there are several."""
    bench.add(TokenEngine(OTHER), "m")
    await bench.watch.round()
    assert bench.source(None) is KeySource.ENGINE
    bench.add(TokenEngine(OTHER), "n")
    await bench.watch.round()
    assert bench.source(None) is KeySource.TOKENIZER


async def test_workers_that_list_no_models(tmp_path: Path) -> None:
    """They are asked without a name, and about every name that has a tokenizer."""
    bench = Bench(tmp_path, "", "named")
    engine = TokenEngine(OTHER)
    worker = bench.add(engine)
    await bench.watch.round()
    assert set(engine.models) == {None, "named"}
    assert [bench.source(name) for name in ("anything", None, "named")] == [KeySource.ENGINE] * 3
    assert bench.watch.models[""].name == "any" and bench.watch.verdict_on(worker)[0] is False


async def test_counts_of_names_that_nobody_lists(bench: Bench) -> None:
    """They are compared where a worker lists none, and forgotten where there is no such worker."""
    others = bench.sources.others
    assert others is not None
    worker = bench.add(TokenEngine(SAME))
    for _ in range(20):
        others.chat.counted.note(worker.id, 5, 6)
    await bench.watch.round()
    assert bench.source("anything") is KeySource.ENGINE
    bench.tell(worker, models=("m",))
    await bench.watch.round()
    assert bench.source("anything") is KeySource.TOKENIZER
    assert bench.sources.others is not None and not bench.sources.others.chat.counted.differences


async def test_the_number_of_models_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it models share the judgement of names that nobody lists."""
    monkeypatch.setattr(parity_watch, "MAX_MODELS", 2)
    monkeypatch.setattr(parity_watch, "MAX_ALIKE", 1)
    worker = bench.add(TokenEngine(OTHER), "a", "b", "c", "x", "y", adapters=("x", "y"))
    await bench.watch.round()
    assert [bench.source(name) for name in "abc"] == [KeySource.ENGINE, KeySource.ENGINE, KeySource.TOKENIZER]
    assert [bench.source(name) for name in "xy"] == [KeySource.ENGINE, KeySource.TOKENIZER]
    assert bench.watch.verdict_on(worker)[0] is False


async def test_the_loop_goes_on_after_a_surprise(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception nobody expected is logged; the next round judges."""
    monkeypatch.setattr(parity_watch, "ROUND_S", 0.001)
    bench.surprises.append(RuntimeError("surprise"))
    bench.add(TokenEngine(OTHER), "m")
    async with asyncio.TaskGroup() as group:
        loop = group.create_task(bench.watch.run())
        async with asyncio.timeout(5):
            while "m" not in bench.watch.models or bench.source("m") is not KeySource.ENGINE:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        loop.cancel()
    assert "surprise while comparing tokens with the engines'" in caplog.text
