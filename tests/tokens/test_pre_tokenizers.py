"""Pre-tokenizer patterns: all compile, and none of them matches across a safe cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, pre_tokenizers

from router.tokens.cuts import safe_cut
from router.tokens.pre_tokenizers import OTHER_PATTERNS, PRE_TOKENIZERS, WORD_PATTERNS, divides_safely
from tests.tokens.vocabularies import byte_level, hard_text

FAMILIES = sorted({pre.patterns for pre in PRE_TOKENIZERS.values()})


def safe_cuts(text: str) -> list[int]:
    found, at = [], safe_cut(text, 0, len(text))
    while at >= 0:
        found.append(at)
        at = safe_cut(text, at + 1, len(text))
    return found


def split_by(pattern: str, texts: list[str]) -> list[str]:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return [piece for text in texts for piece, _ in split.pre_tokenize_str(text)]


orders = st.permutations(sorted(OTHER_PATTERNS)).flatmap(
    lambda others: st.tuples(st.integers(0, 3), st.sampled_from(sorted(WORD_PATTERNS))).map(
        lambda chosen: [*others[: chosen[0]], chosen[1], *others[3 : 3 + chosen[0]]]
    )
)


@given(hard_text, orders)
def test_no_piece_crosses_a_safe_cut(text: str, patterns: list[str]) -> None:
    """Pieces of the parts are the pieces of the whole, for each word pattern between any others, at every safe cut."""

    def pieces(part: str) -> list[str]:
        found = [part]
        for pattern in patterns:
            found = split_by(pattern, found)
        return found

    assert divides_safely(patterns)
    for cut in safe_cuts(text):
        assert pieces(text[:cut]) + pieces(text[cut:]) == pieces(text), cut


@given(hard_text, st.sampled_from(FAMILIES), st.booleans())
def test_no_token_crosses_a_safe_cut(text: str, patterns: tuple[str, ...], nfc: bool) -> None:
    """Tokens of the parts are the tokens of the whole, for whole pre-tokenizers, with and without NFC."""
    tokenizer: Tokenizer = byte_level(patterns, nfc)
    whole = tokenizer.encode(text, add_special_tokens=False).ids
    for cut in safe_cuts(text):
        left, right = (tokenizer.encode(part, add_special_tokens=False).ids for part in (text[:cut], text[cut:]))
        assert left + right == whole, cut


REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST


@pytest.mark.parametrize(
    ("patterns", "safe"),
    [
        ([LLAMA3], True),
        ([LLAMA3.replace("{1,3}", "").replace(r"\r", "\r").replace(r"\n", "\n")], True),
        ([r"\p{N}", LLAMA3], True),
        ([r"\p{N}"], False),
        ([], False),
        ([r"[^\n]+|[\n]+", LLAMA3], False),
        ([r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"], False),
    ],
    ids=["llama3", "qwen2-raw-line-ends", "two", "digits-only", "none", "whole-lines", "joins-letters"],
)
def test_only_known_patterns_divide(patterns: list[str], safe: bool) -> None:
    """Published spellings are known; a pattern never looked at may match across anything, and one must part words."""
    assert divides_safely(patterns) is safe
