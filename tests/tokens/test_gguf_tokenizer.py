"""Tokenizers from GGUF files: converted once, kept beside a hash of the file, refused clearly where unknown."""

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer, pre_tokenizers

from router.errors import SettingsError
from router.tokens.gguf_tokenizer import convert, converted_folder

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<|bos|>", "<|eos|>", "<user>", *ALPHABET, "he", "ll", "hell", "hello"]
KINDS = [3, 3, 4, *([1] * (len(TOKENS) - 3))]
MERGES = ["h e", "l l", "he ll", "hell o"]


def write(path: Path, **fields: Any) -> Path:
    """A GGUF file of tokenizer metadata only; a field given as None is left out."""
    fields = {
        "model": "gpt2",
        "pre": "gpt-2",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "token_type": KINDS,
        "merges": MERGES,
    } | fields
    writer = GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", fields.pop("tokens", TOKENS))
    for name, value in fields.items():
        key = "tokenizer.chat_template" if name == "chat_template" else f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def ids(tokenizer: Tokenizer, text: str, special: bool = True) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=special).ids
    return found


def test_byte_level_bpe(tmp_path: Path) -> None:
    """Vocabulary, merges and special tokens are the file's; control and user-defined tokens are matched in the text."""
    tokenizer, config = convert(write(tmp_path / "m.gguf", chat_template="{{ 1 }}"))
    assert config == {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "chat_template": "{{ 1 }}", "gguf": True}
    assert ids(tokenizer, "hello<|eos|>he<user>") == [TOKENS.index("hello"), 1, TOKENS.index("he"), 2]
    assert tokenizer.decode(ids(tokenizer, "hello ü"), skip_special_tokens=False) == "hello ü"


@pytest.mark.parametrize(
    ("fields", "before", "after"),
    [
        ({}, [], []),
        ({"pre": "llama-bpe"}, [0], []),
        ({"pre": "llama-bpe", "add_bos_token": False}, [], []),
        ({"add_bos_token": True, "add_eos_token": True}, [0], [1]),
    ],
    ids=["none", "by-kind", "file-wins", "both"],
)
def test_affixes(tmp_path: Path, fields: dict[str, Any], before: list[int], after: list[int]) -> None:
    """BOS and EOS are added as llama.cpp's add_special does: the file's flag, else the pre-tokenizer's habit."""
    tokenizer, _ = convert(write(tmp_path / "m.gguf", **fields))
    assert ids(tokenizer, "he") == [*before, TOKENS.index("he"), *after]
    assert ids(tokenizer, "he", special=False) == [TOKENS.index("he")]


def test_whole_words_are_taken_first_where_llama_cpp_does(tmp_path: Path) -> None:
    """ignore_merges: a word that is a token is that token, though no merge leads to it."""
    merges = ["h e", "l l"]
    assert ids(convert(write(tmp_path / "a.gguf", merges=merges))[0], "hello") != [TOKENS.index("hello")]
    with_bos = convert(write(tmp_path / "b.gguf", merges=merges, pre="llama3"))[0]
    assert ids(with_bos, "hello", special=False) == [TOKENS.index("hello")]


PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁",
    "h",
    "e",
    "l",
    "o",
    "he",
    "ll",
    "▁he",
    "hell",
]
SENTENCE_PIECES = {
    "model": "llama",
    "tokens": PIECES,
    "scores": [0.0] * 259 + [-10.0] * 5 + [-1.0, -2.0, -0.5, -3.0],
    "token_type": [2, 3, 3] + [6] * 256 + [1] * 9,
    "unknown_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "merges": None,
}


@pytest.mark.parametrize(
    ("fields", "text", "pieces"),
    [
        ({}, "hell", ["<s>", "▁he", "ll"]),
        ({}, "hell hell", ["<s>", "▁he", "ll", "▁he", "ll"]),
        ({"add_space_prefix": False}, "hell", ["<s>", "hell"]),
        ({"add_space_prefix": False, "add_bos_token": False}, "é", ["<0xC3>", "<0xA9>"]),
        ({"add_bos_token": False}, "he</s>he", ["▁he", "</s>", "▁he"]),
        ({"token_type": None, "add_space_prefix": False}, "hell", ["<s>", "hell"]),
    ],
    ids=["best-score", "spaces", "no-prefix", "bytes", "special", "no-kinds"],
)
def test_sentence_pieces(tmp_path: Path, fields: dict[str, Any], text: str, pieces: list[str]) -> None:
    """SentencePiece vocabularies merge by score, mark spaces, fall back to bytes, and begin with BOS unless told not to."""
    tokenizer, _ = convert(write(tmp_path / "m.gguf", **{**SENTENCE_PIECES, **fields}))
    assert tokenizer.encode(text).tokens == pieces


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "llama"}, "of kind 'llama'"),
        ({"model": "t5"}, "of kind 't5'"),
        ({"merges": None}, "of kind 'gpt2'"),
        ({"pre": "martian"}, "'martian', which is not one of"),
    ],
)
def test_unknown_kinds_are_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    """SettingsError names knob, file and what is allowed; a guess would give wrong keys for ever."""
    with pytest.raises(SettingsError, match=r"tokenizer: .*m\.gguf") as caught:
        convert(write(tmp_path / "m.gguf", **fields))
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a gguf file at all" * 10])
def test_files_that_are_no_gguf(tmp_path: Path, content: bytes) -> None:
    """A broken file is a SettingsError, not a traceback."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="cannot be read as GGUF"):
        convert(path)


def test_gguf_without_tokenizer(tmp_path: Path) -> None:
    """An adapter or projector file has no tokenizer."""
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(SettingsError, match="holds no tokenizer"):
        convert(tmp_path / "m.gguf")


def test_conversion_is_kept_until_the_file_changes(tmp_path: Path) -> None:
    """The folder is made once and read from then on; a changed file gets another."""
    path = write(tmp_path / "m.gguf")
    folder = converted_folder(path, tmp_path / "cache")
    assert folder is not None
    assert json.loads((folder / "tokenizer_config.json").read_text())["gguf"] is True
    (folder / "tokenizer_config.json").write_text("{}")
    assert converted_folder(path, tmp_path / "cache") == folder
    assert (folder / "tokenizer_config.json").read_text() == "{}"
    path.unlink()
    write(path, chat_template="{{ 2 }}")
    assert converted_folder(path, tmp_path / "cache") not in (None, folder)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_an_unwritable_cache_is_no_error(tmp_path: Path) -> None:
    """Without a place to keep it, the tokenizer is converted at every start."""
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert converted_folder(write(tmp_path / "m.gguf"), tmp_path / "cache") is None
