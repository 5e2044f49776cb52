"""Cuts: exact, the same in texts with a common prefix, and few and cheap whatever the text holds."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.tokens.cuts import DESERT_CHARS, SEGMENT_CHARS, Cutter, could_hide_in, safe_cut
from tests.tokens.vocabularies import CORPUS, byte_level, chat_like_text, entry_of, hard_text, prose, sentencepiece_like

OPENER = "<|im_start|>"


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("one two", 3),
        ("one. Two", 3),
        ("one\n\ntwo", 3),
        ("  12,5", 4),
        ('{"key":"value"}', 5),
        ("语，文", 1),
        ("²\t", 1),
        ("it's", -1),
        ("one", -1),
        (" , ", -1),
        ("a_b</s>", -1),
        ("cafe\u0301 x", -1),
    ],
)
def test_where_words_part(text: str, cut: int) -> None:
    """Behind a letter or number, before a space, line end or plain punctuation; never at an apostrophe or mark."""
    assert safe_cut(text, 0, len(text)) == cut


@given(st.integers(0, 400), st.integers(0, 400), chat_like_text)
def test_cuts_rise_to_the_end(start: int, stop: int, text: str) -> None:
    """Cuts are rising and end with the text where it can be cut."""
    long = (text + CORPUS)[start:] + text * 3 + CORPUS[:stop]
    for cutter in (Cutter(OPENER, True), Cutter(None, True), Cutter(OPENER, False), Cutter(None, False)):
        cuts = cutter.cuts(long)
        assert cuts == sorted(set(cuts))
        assert cuts[-1:] == ([len(long)] if long else [])


@settings(max_examples=40)
@given(st.randoms(use_true_random=False), st.booleans())
def test_a_common_prefix_has_common_cuts(rng: random.Random, divisible: bool) -> None:
    """What two texts share is cut alike, but for the last word of it: so the memo of one serves the other."""
    pieces = [prose(rng, rng.choice((20, 300, 5000))) + rng.choice(("", OPENER, "\n")) for _ in range(6)]
    shared = "".join(pieces[:4])
    one, other = shared + pieces[4], shared + "@" + pieces[5]
    cutter = Cutter(OPENER, divisible)
    limit = len(shared) - len(OPENER)
    assert [cut for cut in cutter.cuts(one) if cut < limit] == [cut for cut in cutter.cuts(other) if cut < limit]


@given(st.lists(chat_like_text, min_size=1, max_size=4).map(lambda parts: "<|im_start|>".join(parts)))
def test_any_tokenizer_parts_at_the_opener(text: str) -> None:
    """Before the opener, tokens of the parts are tokens of the whole: byte-level BPE and sentencepiece forms alike."""
    padded = (" x" * 20).join(text.split(OPENER)[:1]) + OPENER + OPENER.join(text.split(OPENER)[1:])
    cuts = Cutter(OPENER, False).cuts(padded)
    tokenizers = [
        byte_level((r"\p{N}",)),
        *(sentencepiece_like(scheme) for scheme in ("normalizer", "first", "always", "never")),
    ]
    for tokenizer in tokenizers:
        ids: list[int] = []
        for start, end in zip([0, *cuts], cuts, strict=False):
            ids += tokenizer.encode(padded[start:end], add_special_tokens=False).ids
        assert ids == tokenizer.encode(padded, add_special_tokens=False).ids


@given(hard_text, st.integers(1, 60))
def test_steps_are_exact(text: str, chars: int) -> None:
    """Pieces of a part, of any size, give the tokens of the part, and every step goes forward."""
    entry = entry_of(byte_level((r"\p{N}", r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")))
    cutter = Cutter(None, True)
    at, tokens = 0, b""
    while at < len(text):
        end = cutter.step(text, at, chars, len(text))
        assert end > at
        tokens += entry.encode(text[at:end])
        at = end
    assert tokens == entry.encode(text)


def test_a_step_never_passes_the_end_of_its_part() -> None:
    """Where no words part before a part's end, the step goes to that end, whatever stands behind."""
    assert Cutter(None, True).step("one two 111111111111 three four", 0, 9, 20) == 20


@pytest.mark.parametrize(
    "text",
    [OPENER * 170_000, "1" * 2_000_000, "a b" * 700_000, ("1" * 60_000 + " a b ") * 33, "a," * 1_000_000],
    ids=["openers", "digits", "words", "deserts", "commas"],
)
def test_cuts_are_few_whatever_the_text(text: str) -> None:
    """Two megabytes have at most 5,000 cuts, and no part of a divisible text is longer than DESERT_CHARS."""
    cuts = Cutter(OPENER, True).cuts(text)
    assert len(cuts) < 5000
    assert all(end - start <= DESERT_CHARS for start, end in zip([0, *cuts], cuts, strict=False))


def test_long_parts_are_cut_between_words() -> None:
    """A message without special tokens is cut about every SEGMENT_CHARS characters, if words part there at all."""
    text = prose(random.Random(1), 20_000)
    cuts = Cutter(OPENER, True).cuts(text)
    assert all(SEGMENT_CHARS <= end - start <= SEGMENT_CHARS + 200 for start, end in zip([0, *cuts], cuts[:-1], strict=False))
    assert Cutter(OPENER, False).cuts(text) == [len(text)]


def test_a_text_too_long_to_cut_is_given_up_at_the_last_cut() -> None:
    """Cuts end before a desert; there are none if it comes first."""
    desert = "1" * (DESERT_CHARS + 1)
    assert Cutter(OPENER, True).cuts(desert) == []
    assert Cutter(OPENER, True).cuts("x" * 50 + OPENER + desert) == [50]


@pytest.mark.parametrize(
    ("token", "hides"),
    [
        ("<|im_start|>", False),
        ("</s>", False),
        ("<｜User｜>", False),
        ("foo bar", True),
        ("a.", True),
        ("\nx", False),
        ("x\n", True),
        ("[INST]", False),
    ],
)
def test_tokens_that_a_safe_cut_could_part(token: str, hides: bool) -> None:
    """A token with a letter before a separator in it may be cut in two."""
    assert could_hide_in(token) is hides
