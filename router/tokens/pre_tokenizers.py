"""How byte-level BPE vocabularies split text before merging: the patterns behind GGUF's `tokenizer.ggml.pre`.

The patterns are llama.cpp's (src/llama-vocab.cpp). They also tell where a text may be cut: see `divides_safely`.
"""

from collections.abc import Sequence
from typing import NamedTuple

CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + REST
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SLASH_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def cased(upper: str, lower: str, contractions: str) -> str:
    """Words that begin with capitals and go on in small letters, of GPT-4o and Tekken."""
    first = r"[^\r\n\p{L}\p{N}]?"
    return f"{first}{upper}*{lower}+{contractions}|{first}{upper}+{lower}*{contractions}"


UPPER, LOWER = r"((?=[\p{L}])([^a-z]))", r"((?=[\p{L}])([^A-Z]))"  # llama.cpp's reading of those below: no marks
AUTHORS_UPPER, AUTHORS_LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = rf"{cased(UPPER, LOWER, CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{SLASH_REST}"
TEKKEN = rf"{cased(UPPER, LOWER, '')}|\p{{N}}|{SLASH_REST}"
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)


class PreTokenizer(NamedTuple):
    """Patterns applied one after the other, each to what the one before left in one piece."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token is taken whole
    adds_bos: bool = False  # unless the file says otherwise


_families: tuple[tuple[tuple[str, ...], PreTokenizer], ...] = (
    (
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        PreTokenizer((LLAMA3,), ignore_merges=True, adds_bos=True),
    ),
    (("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), PreTokenizer((LLAMA3,))),
    (("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"), PreTokenizer((QWEN2,))),
    (("qwen35",), PreTokenizer((QWEN35,))),
    (("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"), PreTokenizer((GPT2,))),
    (
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
        PreTokenizer((r"\p{N}", GPT2)),
    ),
    (("default",), PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))),
    (("gpt-4o", "llama4"), PreTokenizer((GPT4O,))),
    (("tekken",), PreTokenizer((TEKKEN,), ignore_merges=True, adds_bos=True)),
    (("deepseek-v3", "hunyuan-dense"), PreTokenizer(DEEPSEEK3)),
)
PRE_TOKENIZERS = {name: pre for names, pre in _families for name in names}

# The same as their authors wrote them in tokenizer.json files.
_I_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_authors_cased = (
    rf"{cased(AUTHORS_UPPER, AUTHORS_LOWER, CONTRACTIONS + '?')}|\p{{N}}{{1,3}}|{SLASH_REST}",
    rf"{cased(AUTHORS_UPPER, AUTHORS_LOWER, '')}|\p{{N}}|{SLASH_REST}",
)
_words = (LLAMA3, QWEN2, QWEN35, GPT4O, TEKKEN, *_authors_cased, GPT2, DEEPSEEK3[2])
WORD_PATTERNS = frozenset(
    (*_words, *(pattern.replace(CONTRACTIONS, _I_CONTRACTIONS) for pattern in _words), GPT2.removesuffix(r"|\s+"))
)
"""Patterns that part any text at every position of `router.tokens.cuts.safe_cut`: none matches across such a position,
looks behind, or looks further ahead than one character past its match."""

OTHER_PATTERNS = frozenset(pattern for pre in PRE_TOKENIZERS.values() for pattern in pre.patterns) - WORD_PATTERNS | {
    r"[0-9]",
    r"\d",
}
"""Patterns that match within words, numbers or punctuation only: harmless beside one of WORD_PATTERNS, useless alone."""


def divides_safely(patterns: Sequence[str]) -> bool:
    """True if texts may be cut at safe cuts under these patterns, applied in any order. Line ends may be spelled either way."""
    spelled = [pattern.replace("\r", "\\r").replace("\n", "\\n") for pattern in patterns]
    return any(pattern in WORD_PATTERNS for pattern in spelled) and all(
        pattern in WORD_PATTERNS or pattern in OTHER_PATTERNS for pattern in spelled
    )
