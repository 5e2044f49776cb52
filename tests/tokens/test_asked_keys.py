"""Keys by asking: the engine's own tokens, remembered, and the turn before until it has answered."""

import asyncio
import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.keys import chain, tokens_le
from router.core.stats import Stats
from router.core.types import KeyForm, PromptKeys, WorkerId
from router.tokens.asked_keys import ASKED, TAIL_BLOCKS, AskedKeys
from router.tokens.direct_keys import root_of
from router.tokens.key_sources import ShapeKeys
from router.tokens.keying import Keying
from router.tokens.memo import PrefixMemo
from router.tokens.pre_tokenizers import GPT2
from router.wire.openai_request import ChatPrompt, Family, ModelCall, TextPrompt, UnkeyedReason
from tests.tokens.test_keyer import Workers, conversation
from tests.tokens.vocabularies import byte_level, entry_of, prose

ENTRY = entry_of(byte_level((GPT2,)))
WORKERS = (WorkerId("a"), WorkerId("b"))
OnDone = Callable[["array[int] | None"], None]


def engine_ids(prompt: ChatPrompt | TextPrompt) -> "array[int]":
    """What the engine makes of it: by a template of its own, which opens the answer in another way than it writes it."""
    if isinstance(prompt, TextPrompt):
        text = prompt.texts[0]
    else:
        text = "".join(f"[{message['role']}] {message['content']}\n" for message in prompt.messages) + "[assistant] <think>\n"
    return array("I", memoryview(ENTRY.encode(text)).cast("I"))


class FakeEngine:
    """Answers when told to; `refuses` gives the reason why it cannot be asked at all."""

    def __init__(self) -> None:
        self.asked: list[tuple[ChatPrompt | TextPrompt, OnDone]] = []
        self.refuses: UnkeyedReason | None = None
        self.workers: tuple[WorkerId, ...] = ()

    def ask(
        self, workers: tuple[WorkerId, ...], model: str | None, prompt: ChatPrompt | TextPrompt, on_done: OnDone
    ) -> UnkeyedReason | None:
        assert model == "m"
        if self.refuses is None:
            self.asked.append((prompt, on_done))
            self.workers = workers
        return self.refuses

    def answer(self, told: bool = True) -> None:
        """The oldest question."""
        prompt, on_done = self.asked.pop(0)
        on_done(engine_ids(prompt) if told else None)


class Bench:
    def __init__(self, memo_bytes: int = 2**24) -> None:
        self.engine = FakeEngine()
        self.stats = Stats()
        self.shape = ShapeKeys()
        self.shape.askable = WORKERS
        self.memo = PrefixMemo(memo_bytes)
        self.source = AskedKeys(self.memo, 7, self.engine, self.stats, 4)

    def start(self, prompt: ChatPrompt | TextPrompt, is_held: Callable[["array[int]"], bool] = lambda keys: True) -> Keying:
        return self.source.start(call_of(prompt), prompt, ENTRY, self.shape, is_held, by_text)


def call_of(prompt: ChatPrompt | TextPrompt) -> ModelCall:
    return ModelCall(Family.CHAT, "m", prompt=prompt)


def by_text(reason: str) -> PromptKeys:
    return PromptKeys(array("Q", [1, 2]), 2, KeyForm.TEXT, True, False, reason)


def full(prompt: ChatPrompt | TextPrompt) -> "array[int]":
    return chain(tokens_le(engine_ids(prompt)), root_of(call_of(prompt), KeyForm.TOKENS))


def chat(*texts: str) -> ChatPrompt:
    roles = ("user", "assistant")
    return ChatPrompt([{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)])


LONG = chat(prose(random.Random(1), 4000))
NEXT = chat(*(str(m["content"]) for m in LONG.messages), "yes", prose(random.Random(2), 2000))


async def told(bench: Bench, prompt: ChatPrompt | TextPrompt) -> PromptKeys:
    keying = bench.start(prompt)
    if keying.waiting is not None:
        bench.engine.answer()
        await keying.waiting
    return keying.keys


async def test_the_engines_tokens_are_waited_for_and_remembered() -> None:
    """An unknown prompt waits for the engine; a second time its keys are there at once, with the count to compare."""
    bench = Bench()
    keying = bench.start(LONG)
    assert keying.waiting is not None and bench.engine.workers == WORKERS
    bench.engine.answer()
    await keying.waiting
    again = bench.start(LONG)
    assert again.waiting is None and not bench.engine.asked
    for keys in (keying.keys, again.keys):
        assert (keys.keys, keys.prompt_tokens) == (full(LONG), len(engine_ids(LONG)))
        assert (keys.form, keys.complete, keys.exact_tokens) == (KeyForm.TOKENS, True, True)
        assert (keys.unkeyed_reason, keys.tally) == (ASKED, bench.shape.asked)
    assert bench.stats.key_forms == {"tokens": 1}  # the keyer counts the second
    assert bench.stats.token_asks == {"remembered": 1}
    keying.finish(lambda keys: pytest.fail("they were whole when the choice was made"))


async def test_a_late_answer_follows_after_dispatch() -> None:
    """At the deadline the text serves, and says why; the tokens come after it and are remembered."""
    bench = Bench()
    keying = bench.start(LONG)
    assert keying.keys == by_text("engine_late") and keying.keys is keying.keys
    done: list[PromptKeys] = []
    keying.finish(done.append)
    bench.engine.answer()
    assert [keys.keys for keys in done] == [full(LONG)]
    assert keying.keys is done[0]
    assert bench.stats.key_forms == {"text": 1} and bench.stats.unkeyed == {"engine_late": 1}
    assert bench.start(LONG).keys.keys == full(LONG)


async def test_an_answer_between_choice_and_dispatch_follows_at_once() -> None:
    """While a connection is made the answer may come: it is passed on when the request is sent."""
    bench = Bench()
    keying = bench.start(LONG)
    assert keying.keys.form is KeyForm.TEXT
    bench.engine.answer()
    done: list[PromptKeys] = []
    keying.finish(done.append)
    keying.finish(done.append)
    assert [keys.keys for keys in done] == [full(LONG)]


async def test_no_answer() -> None:
    """An engine that fails ends the waiting; the text serves and nothing follows."""
    bench = Bench()
    keying = bench.start(LONG)
    assert keying.waiting is not None
    bench.engine.answer(told=False)
    assert keying.waiting.done()
    assert keying.keys == by_text("engine_failed")
    keying.finish(lambda keys: pytest.fail("there are none"))


@pytest.mark.parametrize("reason", ["asks_full", "engine_failed"])
async def test_nobody_to_ask(reason: UnkeyedReason) -> None:
    """Where no question can be begun nobody waits."""
    bench = Bench()
    bench.engine.refuses = reason
    keying = bench.start(LONG)
    assert keying.waiting is None
    assert keying.keys == by_text(reason)
    keying.finish(lambda keys: pytest.fail("nobody was asked"))
    assert bench.stats.unkeyed == {reason: 1}


async def test_the_turn_before_serves_meanwhile() -> None:
    """The next turn is known by the keys of the one before but for its tail; the choice waits if somebody holds them."""
    bench = Bench()
    await told(bench, LONG)
    known = full(LONG)[:-TAIL_BLOCKS]
    keying = bench.start(NEXT)
    assert keying.waiting is not None and keying.waiting.done() is False
    guess = keying.keys
    assert (guess.keys, guess.complete, guess.exact_tokens, guess.unkeyed_reason) == (known, False, False, ASKED)
    assert guess.tally is None and guess.prompt_tokens == pytest.approx(len(engine_ids(NEXT)), rel=0.3)
    done: list[PromptKeys] = []
    keying.finish(done.append)
    bench.engine.answer()
    assert [keys.keys for keys in done] == [full(NEXT)]


async def test_what_nobody_holds_is_not_waited_for() -> None:
    """If no worker has the turn before, nothing behind it matters to the choice: the engine is asked after dispatch."""
    bench = Bench()
    await told(bench, LONG)
    keying = bench.start(NEXT, lambda keys: False)
    assert keying.waiting is None and not bench.engine.asked
    assert keying.keys.keys == full(LONG)[:-TAIL_BLOCKS]
    done: list[PromptKeys] = []
    keying.finish(done.append)
    bench.engine.answer()
    assert [keys.keys for keys in done] == [full(NEXT)]
    full_now = bench.start(NEXT, lambda keys: False)
    assert full_now.keys.complete


async def test_after_dispatch_nobody_can_be_asked() -> None:
    """Then the request keeps the keys of the turn before."""
    bench = Bench()
    await told(bench, LONG)
    keying = bench.start(NEXT, lambda keys: False)
    bench.engine.refuses = "asks_full"
    keying.finish(lambda keys: pytest.fail("nobody was asked"))
    assert keying.keys.keys == full(LONG)[:-TAIL_BLOCKS]


async def test_a_turn_that_begins_otherwise() -> None:
    """A template may write the turn before in another way: then the keys are those told, and remembered as such."""
    bench = Bench()
    await told(bench, LONG)
    keying = bench.start(NEXT)
    ids = array("I", range(5, 900))
    bench.engine.asked.pop()[1](ids)
    assert keying.keys.keys == bench.start(NEXT).keys.keys == chain(tokens_le(ids), root_of(call_of(NEXT), KeyForm.TOKENS))


async def test_few_known_blocks_are_not_enough() -> None:
    """The blocks that choose a home on the ring are waited for whether or not anyone holds them."""
    bench = Bench()
    short = chat("the quick brown fox jumps over the lazy dog " * 8)
    assert TAIL_BLOCKS < len(full(short)) < 4 + TAIL_BLOCKS
    await told(bench, short)
    keying = bench.start(chat(short.messages[0]["content"], "yes", "and more"), lambda keys: False)
    assert keying.waiting is not None


async def test_the_client_went() -> None:
    """Nothing is passed on any more, but the answer is remembered."""
    bench = Bench()
    keying = bench.start(LONG)
    keying.cancel()
    assert keying.waiting is not None and keying.waiting.done()
    keying.finish(lambda keys: pytest.fail("it is over"))
    bench.engine.answer()
    assert bench.start(LONG).keys.keys == full(LONG)


async def test_other_tokens_are_other_answers() -> None:
    """When engines come back with another template nothing of the old answers is used."""
    bench = Bench()
    await told(bench, LONG)
    bench.shape.tokens = 5
    assert bench.start(LONG).waiting is not None
    assert bench.start(NEXT).keys.form is KeyForm.TEXT


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(chat("a\x02user\x03b"), chat("a", "b"), id="messages in a text"),
        pytest.param(chat("a"), chat("a")._replace(add_generation_prompt=False), id="answer not opened"),
        pytest.param(chat("a"), chat("a")._replace(continue_final_message=True), id="continued"),
        pytest.param(chat("a"), chat("a")._replace(tools=[{"x": 1}]), id="tools"),
        pytest.param(chat("a"), chat("a")._replace(template_kwargs={"x": 1}), id="arguments"),
        pytest.param(chat("a"), TextPrompt(("a",)), id="text"),
        pytest.param(TextPrompt(("a",)), TextPrompt(("a\ud800",)), id="lone surrogate"),
    ],
)
async def test_different_prompts_are_never_taken_for_each_other(one: Any, other: Any) -> None:
    """Whatever decides the tokens tells prompts apart."""
    bench = Bench()
    await told(bench, one)
    assert bench.start(other).waiting is not None


async def test_further_texts_are_estimated() -> None:
    """Of several texts the first is asked for; the count is then no exact one and is compared with nothing."""
    bench = Bench()
    text = prose(random.Random(5), 2000)
    keys = await told(bench, TextPrompt((text, text)))
    again = bench.start(TextPrompt((text, text))).keys
    for found in (keys, again):
        assert found.keys == full(TextPrompt((text,)))
        assert (found.exact_tokens, found.tally) == (False, None)
        assert found.prompt_tokens == pytest.approx(2 * len(engine_ids(TextPrompt((text,)))), rel=0.2)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([64 * 1024, 2**20]))
def test_keys_are_the_engines(seed: int, memo_bytes: int) -> None:
    """For any conversations and any memory the final keys are those of the engine's tokens, and what served until then leads
    them or is the text."""
    rng = random.Random(seed)

    async def play() -> None:
        bench = Bench(memo_bytes)
        seen: list[array[int]] = [array("Q")]
        for turn in [turn for turns in (conversation(rng) for _ in range(2)) for turn in turns]:
            prompt = ChatPrompt(turn)
            whole = full(prompt)
            workers = Workers(rng, seen[-3:])
            keying = bench.start(prompt, workers.is_held)
            first = keying.keys
            if first.form is KeyForm.TOKENS:
                assert whole[: len(first.keys)] == first.keys
            done: list[PromptKeys] = []
            keying.finish(done.append)
            while bench.engine.asked:
                bench.engine.answer()
            final = done[0] if done else first
            assert final.keys == whole and final.complete
            assert bench.memo.used_bytes <= memo_bytes
            seen.append(whole)

    asyncio.run(play())
