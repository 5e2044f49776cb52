"""Token ids from a GGUF file against real llama.cpp: its /tokenize and /apply-template, over real sockets."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.launch import LlamaCppOptions, launch
from engines.tiny_gguf import write_sizes, write_weights
from router.settings import TokenSettings
from router.tokens.book import TokenizerBook, TokenizerEntry
from router.tokens.pre_tokenizers import PRE_TOKENIZERS
from router.wire.openai_request import ChatPrompt
from tests.tokens.test_template import PLAIN
from tests.tokens.vocabularies import CHATML, CORPUS, SPECIAL, WORDS, byte_level, sentencepiece_like

TEXTS = [
    "Hello world",
    "It's 12345 o'clock; they'll say 'x' isn't 'y'. THEY'LL",
    "  leading\n\n\nlines\r\n\ttabs   \n  trailing   ",
    "日本語、テスト。한국어 텍스트 العربية हिन्दी ภาษาไทย ещё",
    "\U0001f600\U0001f44d\U0001f3fd cafe\u0301 ²Ⅷ \u00a0\u3000 \u200d",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b <repo_name>c<file_sep> d",
    CORPUS,
    " ".join(WORDS),
    "".join(WORDS),
    "def f(x):\n\treturn x[0]**2 + 1.5e-3 # ok\n\n\nclass A: pass",
]


@pytest.fixture(scope="module")
def llama_cpp(smollm_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = LlamaCppOptions(smollm_gguf, "smollm2", slots=1, slot_context_tokens=256)
    with launch(options, tmp_path_factory.mktemp("llama") / "log") as engine:
        yield engine.url


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def engine_ids(url: str, text: str) -> list[int]:
    ids: list[int] = post(f"{url}/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]
    return ids


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_text_has_llama_cpps_tokens(llama_cpp: str, smollm: TokenizerEntry, text: str) -> None:
    """The ids are the engine's own, special tokens, odd spaces, scripts and emoji included."""
    ours = memoryview(smollm.prefix + smollm.encode(text) + smollm.suffix).cast("I").tolist()
    assert ours == engine_ids(llama_cpp, text)


def test_chat_has_llama_cpps_tokens(llama_cpp: str, smollm: TokenizerEntry) -> None:
    """Template and tokenizer together give what the engine makes of the same messages."""
    for messages in (PLAIN, PLAIN[1:], PLAIN[:2]):
        rendered = post(f"{llama_cpp}/apply-template", {"messages": messages})["prompt"]
        text, affixed = smollm.chat_text(ChatPrompt(messages))
        assert affixed
        assert text == rendered
        assert memoryview(smollm.prefix + smollm.encode(text)).cast("I").tolist() == engine_ids(llama_cpp, rendered)


def vocabulary_fields(pre: str | None) -> dict[str, Any]:
    """Tokenizer metadata of a GGUF file: byte-level BPE split by `pre`, or SentencePiece where it is None."""
    tokenizer = sentencepiece_like("normalizer") if pre is None else byte_level(PRE_TOKENIZERS[pre].patterns)
    shape = json.loads(tokenizer.to_str())
    ids = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=lambda token: ids[token])
    fields = {"tokens": tokens, "bos_token_id": ids["<s>"], "eos_token_id": ids["</s>"]}
    kinds = [3 if token in SPECIAL else 1 for token in tokens]
    if pre is not None:
        merges = [" ".join(merge) for merge in shape["model"]["merges"]]
        return fields | {"model": "gpt2", "pre": pre, "merges": merges, "token_type": kinds}
    for index, token in enumerate(tokens):
        if token.startswith("<0x"):
            kinds[index] = 6
    kinds[ids["<unk>"]] = 2
    ranks = {"".join(merge): rank for rank, merge in reversed(list(enumerate(shape["model"]["merges"])))}
    scores = [-float(ranks.get(token, 10_000 + index)) for index, token in enumerate(tokens)]
    return fields | {"model": "llama", "scores": scores, "token_type": kinds, "unknown_token_id": ids["<unk>"]}


def write_model(path: Path, fields: dict[str, Any]) -> Path:
    """A llama of random weights with these tokenizer fields."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    for name, value in fields.items():
        add = {int: writer.add_uint32, str: writer.add_string, list: writer.add_array}[type(value)]
        add(f"tokenizer.ggml.{name}", value)
    writer.add_chat_template(CHATML)
    write_sizes(writer, vocabulary=len(fields["tokens"]))
    write_weights(writer, vocabulary=len(fields["tokens"]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


ONE_OF_EACH = sorted({pre.patterns: name for name, pre in sorted(PRE_TOKENIZERS.items())}.values())


@pytest.mark.parametrize("pre", [None, *ONE_OF_EACH], ids=["sentencepiece", *ONE_OF_EACH])
def test_every_kind_has_llama_cpps_tokens(tmp_path: Path, pre: str | None) -> None:
    """Each way to split text, and SentencePiece, gives the real engine's ids, its BOS included."""
    path = write_model(tmp_path / "m.gguf", vocabulary_fields(pre))
    entry = TokenizerBook(TokenSettings(tokenizer=(str(path),), tokenizer_cache=str(tmp_path))).for_model("x")
    assert entry is not None
    assert entry.cutter.divisible == (pre is not None)
    with launch(LlamaCppOptions(path, "tiny", slots=1, slot_context_tokens=256), tmp_path / "log") as engine:
        for text in TEXTS:
            ours = memoryview(entry.prefix + entry.encode(text) + entry.suffix).cast("I").tolist()
            theirs = engine_ids(engine.url, text)
            assert ours == theirs, (
                text,
                [entry.tokenizer.id_to_token(i) for i in ours],
                [entry.tokenizer.id_to_token(i) for i in theirs],
            )
