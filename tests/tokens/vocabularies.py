"""Small tokenizers trained in milliseconds, and texts that are hard to cut: material of the tests here."""

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from router.tokens.book import TokenizerEntry

CORPUS = (
    "The quick brown fox jumps over the lazy dog; it's 12345 o'clock, they'll say, and we've 67 more.\n\n"
    "def function(argument):\n    return argument[0] + 1.5e3  # comment\r\n\tindented\tHTTP/1.1 foo_bar-baz\n"
    "Ünïcode naïve café Straße, ещё один тест. 日本語、テスト。한국어 텍스트 العربية हिन्दी ภาษาไทย "
    "\U0001f600\U0001f44d\U0001f3fd\n"
    "the they them there then this that thing think user assistant system content message token tokens\n"
) * 3

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>")

WORDS = (
    *(
        "the",
        "they'll",
        "It's",
        "don",
        "'t",
        "'S",
        "foo",
        "Bar",
        "naïve",
        "café",
        "cafe\u0301",
        "日本",
        "語",
        "한국",
        "ещё",
        "हिन्दी",
        "ǅ",
        "²",
        "Ⅷ",
    ),
    *(" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", " \n", "\n ", "\u3000", "\u2028"),
    *(
        ".",
        ",",
        ";",
        ":",
        "...",
        ",,",
        "!",
        "?",
        "'",
        "’",
        "/",
        "//",
        "-",
        "_",
        "(",
        ")",
        "=",
        "<",
        ">",
        "<|",
        "|>",
        "、",
        "。",
        "，",
        "…",
    ),
    *(
        "1",
        "12",
        "345",
        "6789",
        "\U0001f600",
        "\U0001f44d\U0001f3fd",
        "\u0301",
        "\u200d",
        "\u0000",
        "a",
        "b",
        "A",
        "s",
        "t",
        "re",
    ),
)
hard_text = st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=40).map("".join)
chat_like_text = st.lists(st.sampled_from((*WORDS, *SPECIAL, "<|im_start|>user\n")) | st.text(max_size=3), max_size=40).map(
    "".join
)


@cache
def byte_level(patterns: tuple[str, ...], nfc: bool = False) -> Tokenizer:
    """A byte-level BPE tokenizer over the given pre-tokenizer patterns, trained on CORPUS."""
    tokenizer = Tokenizer(models.BPE())
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([CORPUS], trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    return tokenizer


@cache
def sentencepiece_like(prepend: str) -> Tokenizer:
    """BPE over words marked with ▁; `prepend` is the scheme of Metaspace, or "normalizer" for the older form."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if prepend == "normalizer":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    return tokenizer


def with_affixes(tokenizer: Tokenizer, single: str = "<s> $A </s>") -> Tokenizer:
    """A copy that puts BOS and EOS around a text."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    special = [(token, copy.token_to_id(token)) for token in ("<s>", "</s>")]
    copy.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    return copy


def entry_of(tokenizer: Tokenizer, template: str | None = CHATML, **config: Any) -> TokenizerEntry:
    """An entry with a copy of the tokenizer."""
    sources = {"default": template} if template else {}
    return TokenizerEntry("test", Tokenizer.from_str(tokenizer.to_str()), config, sources)


def write_folder(folder: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return folder


def prose(rng: random.Random, chars: int, vocabulary: Sequence[str] = tuple(CORPUS.split())) -> str:
    """About `chars` characters of CORPUS words in random order."""
    words: list[str] = []
    size = 0
    while size < chars:
        words.append(rng.choice(vocabulary))
        size += len(words[-1]) + 1
    return " ".join(words)
