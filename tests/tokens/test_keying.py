"""Keys in the making: as deep as caches go before the choice, the rest after it, within bounds, and never wrong."""

import asyncio
import random
import threading
from array import array

import pytest

from router.core.keys import chain
from router.core.stats import Stats
from router.core.types import KeyForm, PromptKeys
from router.tokens.book import TokenizerEntry
from router.tokens.encode_lanes import EncodeLanes
from router.tokens.keying import LOOP_TOKENS, PENDING_CHARS, DeepKeying, Keying, TailBounds
from router.tokens.memo import PrefixMemo
from router.tokens.pre_tokenizers import GPT2
from router.tokens.walk import Walk
from tests.tokens.vocabularies import byte_level, entry_of, prose, sentencepiece_like

ROOT = 5
ENTRY = entry_of(byte_level((r"\p{N}", GPT2)))
LONG = prose(random.Random(3), 60_000)
FULL = chain(ENTRY.encode(LONG), ROOT)


class Counting(TokenizerEntry):
    """ENTRY, and the number of tokens asked of it on the loop's thread."""

    def __init__(self) -> None:
        self.__dict__.update(ENTRY.__dict__)
        self.tokens = 0

    def encode(self, text: str) -> bytes:
        packed = super().encode(text)
        if threading.current_thread() is threading.main_thread():
            self.tokens += len(packed) // 4
        return packed


class Broken(Counting):
    def encode(self, text: str) -> bytes:
        raise ValueError("broken")


class Bench:
    """What a keying needs, and a count of what the tokenizer was given."""

    def __init__(self, entry: TokenizerEntry = ENTRY, max_tails: int = 8) -> None:
        self.entry = entry
        self.stats = Stats()
        self.lanes = EncodeLanes(1)
        self.memo = PrefixMemo(2**24)
        self.bounds = TailBounds(max_tails, self.stats)

    def keying(self, text: str, held_blocks: int, min_blocks: int = 0) -> DeepKeying:
        walk = Walk(self.entry, self.memo, 1, ROOT, text, False)
        keying = DeepKeying(walk, self.entry, lambda keys: len(keys) <= held_blocks, self.lanes, self.bounds)
        keying.look(min_blocks)
        return keying


async def finished(keying: Keying) -> PromptKeys:
    """The keys that `finish` comes back with."""
    done: asyncio.Future[PromptKeys] = asyncio.get_running_loop().create_future()
    keying.finish(done.set_result)
    return await asyncio.wait_for(done, 10)


@pytest.mark.parametrize("min_blocks", [0, 16])
async def test_nobody_holds_it(min_blocks: int) -> None:
    """An unseen prompt is keyed to min_blocks, and a look further where there are none, without waiting."""
    bench = Bench()
    keying = bench.keying(LONG, 0, min_blocks)
    assert keying.waiting is None
    assert max(1, min_blocks) <= len(keying.keys.keys) <= min_blocks + 12
    assert not keying.keys.complete
    assert keying.keys.keys == FULL[: len(keying.keys.keys)]
    keys = await finished(keying)
    assert (keys.keys, keys.complete, keys.exact_tokens) == (FULL, True, True)
    assert (bench.bounds.tails, bench.bounds.chars) == (0, 0)
    bench.lanes.close()


@pytest.mark.parametrize("held_blocks", [1, 5, 20, 200, 900, 10**9])
async def test_as_deep_as_anyone_holds(held_blocks: int) -> None:
    """Keys reach past what is held, so that the choice is that of full tokenisation; long ones are waited for."""
    bench = Bench()
    keying = bench.keying(LONG, held_blocks, 4)
    if keying.waiting is not None:
        await asyncio.wait_for(keying.waiting, 10)
    else:
        assert held_blocks * 16 <= 2 * LOOP_TOKENS
    keys = keying.keys
    assert len(keys.keys) > held_blocks or keys.complete
    assert keys.keys == FULL[: len(keys.keys)]
    assert len(keys.keys) < held_blocks + 520, "a slice too many"
    bench.lanes.close()


async def test_a_choice_that_did_not_wait_gets_the_rest_later() -> None:
    """After the deadline the keys known so far are used; `finish` turns the work into a tail and `waiting` still ends."""
    bench = Bench()
    keying = bench.keying(LONG, 10**9)
    assert keying.waiting is not None
    early = keying.keys
    assert not early.complete
    assert early.prompt_tokens > 0
    keys = await finished(keying)
    assert (keys.keys, early.keys) == (FULL, FULL[: len(early.keys)])
    await keying.waiting
    bench.lanes.close()


async def test_finish_after_the_keys_became_complete() -> None:
    """If they were complete in time `on_done` is called at once, and only once."""
    bench = Bench()
    keying = bench.keying(LONG, 10**9)
    assert keying.waiting is not None
    await keying.waiting
    calls: list[PromptKeys] = []
    keying.finish(calls.append)
    keying.finish(calls.append)
    assert [keys.keys for keys in calls] == [FULL]
    bench.lanes.close()


async def test_short_rests_are_keyed_on_the_loop() -> None:
    """A short text is complete at once though nobody holds it: a thread would cost more than the tokens."""
    bench = Bench()
    keying = bench.keying(LONG[:300], 0)
    assert keying.waiting is None
    assert keying.keys.complete
    assert keying.keys.keys == chain(ENTRY.encode(LONG[:300]), ROOT)
    bench.lanes.close()


async def test_text_of_unknown_density_does_not_hold_the_loop_up() -> None:
    """Text that is not ASCII starts with small pieces, as a character may be several tokens."""
    bench = Bench()
    text = "日本語のテスト、文章。" * 2000
    counting = Counting()
    walk = Walk(bench.entry, bench.memo, 1, ROOT, text, False)
    keying = DeepKeying(walk, counting, lambda keys: True, bench.lanes, bench.bounds)
    keying.look(16)
    assert keying.waiting is not None
    assert 256 <= counting.tokens <= 2 * LOOP_TOKENS
    await asyncio.wait_for(keying.waiting, 20)
    assert keying.keys.keys == chain(ENTRY.encode(text), ROOT)
    bench.lanes.close()


async def test_text_that_cannot_be_cut_goes_to_a_thread() -> None:
    """A tokenizer cut at special tokens only takes a long message in one piece, off the loop, held or not."""
    entry = entry_of(sentencepiece_like("first"))
    bench = Bench(entry)
    keying = bench.keying(LONG, 0, 16)
    assert keying.waiting is not None
    await asyncio.wait_for(keying.waiting, 10)
    assert keying.keys.keys == chain(entry.encode(LONG), ROOT)
    bench.lanes.close()


async def test_tails_are_bounded() -> None:
    """Beyond max_pending_tails a tail is dropped and counted; the others are finished and their places are free again."""
    bench = Bench(max_tails=2)
    keyings = [bench.keying(prose(random.Random(seed), 9000), 0) for seed in range(4)]
    done: list[PromptKeys] = []
    ends = [asyncio.ensure_future(finished(keying)) for keying in keyings[:2]]
    await asyncio.sleep(0)
    for keying in keyings[2:]:
        keying.finish(done.append)
    await asyncio.gather(*ends)
    assert bench.stats.tails_dropped == 2
    assert not done
    assert (bench.bounds.tails, bench.bounds.chars) == (0, 0)
    assert (await finished(bench.keying(prose(random.Random(9), 9000), 0))).complete
    assert not bench.bounds.admit(PENDING_CHARS + 1)
    bench.lanes.close()


async def test_cancel_stops_the_work() -> None:
    """A client that left costs nothing more, whether its keys were waited for, are a tail, or were dropped already."""
    bench = Bench()
    deep, tail, idle = bench.keying(LONG, 10**9), bench.keying(LONG + " x", 0), bench.keying(LONG + " y", 0)
    calls: list[PromptKeys] = []
    tail.finish(calls.append)
    for keying in (deep, tail, idle):
        keying.cancel()
        keying.finish(calls.append)
    assert deep.waiting is not None
    assert deep.waiting.done()
    assert (await finished(bench.keying(LONG[:20_000], 0))).complete
    assert not calls
    assert (bench.bounds.tails, bench.bounds.chars) == (0, 0)
    bench.lanes.close()


async def test_a_waiting_future_may_be_cancelled() -> None:
    """asyncio.wait_for cancels what it waited for in vain; the tail comes all the same."""
    bench = Bench()
    keying = bench.keying(LONG, 10**9)
    assert keying.waiting is not None
    keying.waiting.cancel()
    assert (await finished(keying)).keys == FULL
    bench.lanes.close()


async def test_a_tokenizer_that_fails_in_a_thread() -> None:
    """The keys stay what they were; whoever waits goes on; a tail is given up."""
    bench = Bench()
    keying = bench.keying(LONG, 10**9)
    bench.entry = Broken()
    walk = Walk(bench.entry, PrefixMemo(1000), 1, ROOT, "1" * 60_000, False)
    failing = DeepKeying(walk, bench.entry, lambda keys: True, bench.lanes, bench.bounds)
    failing.look(0)
    assert failing.waiting is not None
    calls: list[PromptKeys] = []
    failing.finish(calls.append)
    await asyncio.wait_for(failing.waiting, 10)
    assert not calls
    assert (bench.bounds.tails, bench.bounds.chars) == (0, 0)
    assert (await finished(keying)).keys == FULL
    bench.lanes.close()


def test_complete_keys_have_nothing_to_do() -> None:
    """A keying without tokenizer needs no loop: it answers, and finish and cancel do nothing."""
    keys = PromptKeys(array("Q"), 0, KeyForm.NONE)
    keying = Keying(keys)
    keying.finish(lambda keys: pytest.fail("called"))
    keying.cancel()
    assert keying.keys is keys
    assert keying.waiting is None
