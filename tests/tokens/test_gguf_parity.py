"""Token ids from a GGUF file against real llama.cpp: its /tokenize and /apply-template, over real sockets."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.launch import LlamaCppOptions, launch
from router.tokens.book import TokenizerEntry
from router.wire.openai_request import ChatPrompt
from tests.tokens.test_template import PLAIN
from tests.tokens.vocabularies import CORPUS, WORDS

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
