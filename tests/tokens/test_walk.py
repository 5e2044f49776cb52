"""A walk over a text: whatever the pieces, the keys are those of the whole text tokenised at once."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.keys import chain
from router.core.token_tally import TokenTally
from router.core.types import KeyForm
from router.tokens.book import TokenizerEntry
from router.tokens.memo import SPAN_BYTES, PrefixMemo
from router.tokens.pre_tokenizers import GPT2, LLAMA3
from router.tokens.walk import Walk
from tests.tokens.vocabularies import byte_level, chat_like_text, entry_of, prose, sentencepiece_like, with_affixes

ENTRIES = {
    "plain": entry_of(byte_level((r"\p{N}", GPT2))),
    "affixes": entry_of(with_affixes(byte_level((LLAMA3,)))),
    "long-affix": entry_of(with_affixes(byte_level((LLAMA3,)), " ".join(["<s>"] * 20) + " $A </s> </s>")),
    "indivisible": entry_of(with_affixes(sentencepiece_like("first"), "<s> $A")),
}
ROOT = 77


def whole(entry: TokenizerEntry, text: str, affixed: bool) -> tuple[list[int], int]:
    """Keys and token count of the text in one go."""
    tokens = entry.encode(text)
    if affixed:
        tokens = entry.prefix + tokens + entry.suffix
    return list(chain(tokens, ROOT)), len(tokens) // 4


def walk_over(entry: TokenizerEntry, memo: PrefixMemo, text: str, affixed: bool = True) -> Walk:
    return Walk(entry, memo, 1, ROOT, text, affixed)


def advance(walk: Walk, entry: TokenizerEntry, rng: random.Random) -> None:
    """One commit's worth of feeding, with pieces of random sizes, in one of the two ways there are."""
    chars = rng.choice((1, 20, 300, 3000))
    if rng.random() < 0.5:
        for piece in walk.next_pieces(rng.choice((1, 500, 9000)), chars):
            walk.feed(entry.encode(piece), len(piece))
    else:
        end = walk.next_piece(chars)
        walk.feed(entry.encode(walk.text[walk.at : end]), end - walk.at)
    walk.commit()


text_of_chat = st.lists(chat_like_text, min_size=1, max_size=3).map(lambda parts: (" word" * 30 + "<|im_start|>").join(parts))


@given(
    st.sampled_from(sorted(ENTRIES)),
    st.lists(text_of_chat, min_size=1, max_size=4),
    st.booleans(),
    st.randoms(use_true_random=False),
    st.integers(1, 40),
)
def test_keys_are_those_of_the_whole_text(name: str, turns: list[str], affixed: bool, rng: random.Random, room: int) -> None:
    """Over growing texts and a memo of any size: the walk ends with the keys and tokens of full tokenisation."""
    entry = ENTRIES[name]
    memo = PrefixMemo(room * SPAN_BYTES)
    text = ""
    for turn in turns:
        text += turn
        walk = walk_over(entry, memo, text, affixed)
        keys, tokens = whole(entry, text, affixed)
        while not walk.done:
            assert keys[: len(walk.keys)] == list(walk.keys)
            advance(walk, entry, rng)
        if text:
            assert (list(walk.keys), walk.tokens) == (keys, tokens)
        assert memo.used_bytes <= memo.limit_bytes


@settings(max_examples=30)
@given(st.integers().map(random.Random), st.integers(1, 60))
def test_two_walks_share_a_memo(rng: random.Random, room: int) -> None:
    """Walks that go on in turns, one evicting what the other stands on, still end with the right keys."""
    entry = ENTRIES["plain"]
    memo = PrefixMemo(room * SPAN_BYTES)
    shared = prose(rng, 6000)
    texts = [shared + prose(rng, 4000) for _ in range(3)] + [shared]
    walks = [walk_over(entry, memo, text) for text in texts]
    while open_walks := [walk for walk in walks if not walk.done]:
        advance(rng.choice(open_walks), entry, rng)
    assert [list(walk.keys) for walk in walks] == [whole(entry, text, True)[0] for text in texts]


def test_a_known_text_is_done_at_once() -> None:
    """The same text again needs no tokenizer; one that goes on starts where the last cut of the first was."""
    entry, memo = ENTRIES["affixes"], PrefixMemo(2**20)
    text = prose(random.Random(1), 10_000)
    walk = walk_over(entry, memo, text)
    while not walk.done:
        advance(walk, entry, random.Random(2))
    again = walk_over(entry, memo, text)
    assert again.done
    assert (again.keys, again.tokens) == (walk.keys, walk.tokens)
    longer = walk_over(entry, memo, text + " and more")
    assert len(text) - 4100 < longer.at <= len(text)
    assert Walk(entry, memo, 1, ROOT + 1, text, True).at == 0, "another namespace"
    assert Walk(entry, memo, 2, ROOT, text, True).at == 0, "another seed"
    assert Walk(entry, memo, 1, ROOT, text, False).at == 0, "other affixes"


def test_prompt_keys_tell_what_is_missing() -> None:
    """Tokens are exact once all is read and estimated before; further prompts count but have no keys."""
    entry, memo = entry_of(byte_level((GPT2,))), PrefixMemo(2**20)
    text = prose(random.Random(1), 4000)
    walk = Walk(entry, memo, 1, ROOT, text, False, 400)
    before = walk.prompt_keys()
    assert (before.complete, before.exact_tokens, len(before.keys), before.form) == (False, False, 0, KeyForm.TOKENS)
    assert before.prompt_tokens == entry.estimate(len(text) + 400)
    while not walk.done:
        advance(walk, entry, random.Random(1))
    after = walk.prompt_keys()
    assert (after.complete, after.exact_tokens) == (True, False)
    assert after.prompt_tokens == walk.tokens + entry.estimate(400)
    alone = Walk(entry, memo, 1, ROOT, text, False).prompt_keys()
    assert (alone.complete, alone.exact_tokens, alone.prompt_tokens) == (True, True, walk.tokens)
    assert len(before.keys) == 0, "an answer given stays as it was"


def test_a_text_that_cannot_be_cut_on_is_done_before_its_end() -> None:
    """Behind the last cut nothing is read: the keys end there, no suffix follows, and tokens stay an estimate."""
    entry, memo = ENTRIES["affixes"], PrefixMemo(2**20)
    text = "word " * 20 + "<|im_start|>" + "1" * 100_000
    walk = walk_over(entry, memo, text)
    while not walk.done:
        advance(walk, entry, random.Random(1))
    assert walk.end == 100
    keys = walk.prompt_keys()
    assert (keys.complete, keys.exact_tokens) == (True, False)
    assert keys.prompt_tokens > 1000
    assert walk.tokens == len(entry.prefix + entry.encode("word " * 20)) // 4


def test_lone_surrogates_are_refused() -> None:
    """No tokenizer takes one: the caller falls back to text keys."""
    with pytest.raises(UnicodeEncodeError):
        walk_over(ENTRIES["plain"], PrefixMemo(1000), "a\ud800")


def test_a_tally_goes_with_an_exact_count_only() -> None:
    """Before the end, and with further texts, the count is an estimate: nothing to compare with the engine's."""
    entry, tally = ENTRIES["plain"], TokenTally()
    for more_chars, expected in ((0, tally), (10, None)):
        walk = Walk(entry, PrefixMemo(2**20), 1, ROOT, "one two " * 500, True, more_chars, tally)
        assert walk.prompt_keys().tally is None
        while not walk.done:
            advance(walk, entry, random.Random(1))
        assert walk.prompt_keys().tally is expected
