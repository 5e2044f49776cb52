"""A `tokenizers.Tokenizer` from a GGUF file's own metadata, and a folder that keeps it as tokenizer.json.

Reading the arrays of a GGUF file takes seconds, so the result is kept beside a hash of the file's path, size and time.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from xxhash import xxh3_128_hexdigest

from router.errors import SettingsError
from router.tokens.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer

FORMAT = 1  # of what is kept; a new number makes the old folders unread
CONTROL, USER_DEFINED = 3, 4  # of tokenizer.ggml.token_type


def converted_folder(path: Path, cache: Path) -> Path | None:
    """The folder holding `path` as tokenizer.json and tokenizer_config.json, made if need be.

    None if the cache folder cannot be written. SettingsError if the file is no GGUF or its tokenizer is of an unknown kind.
    """
    facts = path.stat()
    name = xxh3_128_hexdigest(f"{FORMAT}|{path.resolve()}|{facts.st_size}|{facts.st_mtime_ns}".encode())
    folder = cache / name
    if (folder / "tokenizer.json").is_file():
        return folder
    tokenizer, config = convert(path)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as made:
            built = Path(made) / name
            built.mkdir()
            (built / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
            tokenizer.save(str(built / "tokenizer.json"))
            built.rename(folder)
    except OSError:
        return folder if (folder / "tokenizer.json").is_file() else None
    return folder


def convert(path: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer and what tokenizer_config.json would say of it: bos_token, eos_token, chat_template, gguf."""
    fields = read_fields(path)
    tokens: list[str] = fields["tokens"]
    merges: list[str] | None = fields.get("merges")
    pre_name = fields.get("pre", "default")
    if fields.get("model") != "gpt2" or merges is None:
        raise SettingsError(
            f"tokenizer: {str(path)!r} holds a tokenizer of kind {fields.get('model')!r}; only byte-level BPE ('gpt2') is read "
            "from GGUF: give the model's folder with tokenizer.json instead"
        )
    if pre_name not in PRE_TOKENIZERS:
        raise SettingsError(
            f"tokenizer: {str(path)!r} splits text by {pre_name!r}, which is not one of {', '.join(sorted(PRE_TOKENIZERS))}: "
            "give the model's folder with tokenizer.json instead"
        )
    pre = PRE_TOKENIZERS[pre_name]
    tokenizer = build(tokens, merges, fields.get("token_type", []), pre)
    add_affixes(tokenizer, tokens, fields, pre)
    config = {
        "bos_token": token_at(tokens, fields.get("bos_token_id")),
        "eos_token": token_at(tokens, fields.get("eos_token_id")),
        "chat_template": fields.get("chat_template"),
        "gguf": True,
    }
    return tokenizer, config


def read_fields(path: Path) -> dict[str, Any]:
    """The metadata under `tokenizer.` with the prefixes off. About 2 s for 49,152 tokens."""
    from gguf import GGUFReader  # 0.1 s and numpy: only where a GGUF file is named

    try:
        reader = GGUFReader(path)
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise SettingsError(f"tokenizer: {str(path)!r} cannot be read as GGUF: {error}") from None
    fields = {
        name.removeprefix("tokenizer.").removeprefix("ggml."): field.contents()
        for name, field in reader.fields.items()
        if name.startswith("tokenizer.")
    }
    if "tokens" not in fields:
        raise SettingsError(f"tokenizer: {str(path)!r} holds no tokenizer")
    return fields


def build(tokens: list[str], merges: list[str], kinds: list[int], pre: PreTokenizer) -> Tokenizer:
    """Byte-level BPE with llama.cpp's pre-tokenizer; control and user-defined tokens are matched in the text first."""
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=pre.ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    named = list(zip(tokens, kinds, strict=False))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token, kind in named if kind == CONTROL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token, kind in named if kind == USER_DEFINED])
    return tokenizer


def add_affixes(tokenizer: Tokenizer, tokens: list[str], fields: dict[str, Any], pre: PreTokenizer) -> None:
    """BOS and EOS where llama.cpp adds them with add_special."""
    bos = fields.get("bos_token_id") if fields.get("add_bos_token", pre.adds_bos) else None
    eos = fields.get("eos_token_id") if fields.get("add_eos_token", False) else None
    ids = [index for index in (bos, eos) if index is not None]
    if not ids:
        return
    single = [f"<{bos}>:0"] * (bos is not None) + ["$A:0"] + [f"<{eos}>:0"] * (eos is not None)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join(single),
        special_tokens=[{"id": f"<{index}>", "ids": [index], "tokens": [tokens[index]]} for index in ids],
    )


def token_at(tokens: list[str], index: int | None) -> str | None:
    return tokens[index] if index is not None and 0 <= index < len(tokens) else None
