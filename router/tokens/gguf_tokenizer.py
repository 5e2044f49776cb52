"""A `tokenizers.Tokenizer` from a GGUF file's own metadata, and a folder that keeps it as tokenizer.json.

Reading the arrays of a GGUF file takes seconds, so the result is kept beside a hash of the file's path, size and time.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from xxhash import xxh3_128_hexdigest

from router.errors import SettingsError
from router.tokens.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer

FORMAT = 2  # of what is kept; a new number makes the old folders unread
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # of tokenizer.ggml.token_type


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
    kind = fields.get("model")
    if kind == "gpt2" and "merges" in fields:
        pre = pre_tokenizer_of(path, fields)
        tokenizer, adds_bos = byte_level(tokens, fields["merges"], pre), pre.adds_bos
    elif kind == "llama" and len(fields.get("scores", ())) == len(tokens):
        tokenizer, adds_bos = sentence_pieces(tokens, fields), True
    else:
        raise SettingsError(
            f"tokenizer: {str(path)!r} holds a tokenizer of kind {kind!r}; those read from GGUF are byte-level BPE ('gpt2', "
            "with merges) and SentencePiece BPE ('llama', with scores): give the model's folder with tokenizer.json instead"
        )
    add_special_tokens(tokenizer, tokens, fields.get("token_type", []))
    add_affixes(tokenizer, tokens, fields, adds_bos)
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


def pre_tokenizer_of(path: Path, fields: dict[str, Any]) -> PreTokenizer:
    name = fields.get("pre", "default")
    if name not in PRE_TOKENIZERS:
        raise SettingsError(
            f"tokenizer: {str(path)!r} splits text by {name!r}, which is not one of {', '.join(sorted(PRE_TOKENIZERS))}: "
            "give the model's folder with tokenizer.json instead"
        )
    return PRE_TOKENIZERS[name]


def byte_level(tokens: list[str], merges: list[str], pre: PreTokenizer) -> Tokenizer:
    """Byte-level BPE with llama.cpp's pre-tokenizer."""
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
    return tokenizer


def sentence_pieces(tokens: list[str], fields: dict[str, Any]) -> Tokenizer:
    """BPE over text with ▁ for spaces; a pair merges if its joint text is a token, best score first; bytes for the rest.

    llama.cpp keeps no merges for this kind but finds them by score; those of equal joint text go by the parts' ids.
    """
    vocabulary = {token: index for index, token in enumerate(tokens)}
    scores: list[float] = fields["scores"]
    kinds: list[int] = fields.get("token_type", [])
    normal = [index for index in range(len(tokens)) if index >= len(kinds) or kinds[index] in (NORMAL, USER_DEFINED)]
    ranked = sorted(normal, key=lambda index: -scores[index])
    merges = [pair for index in ranked for pair in ways_to_merge(tokens[index], vocabulary)]
    unknown = token_at(tokens, fields.get("unknown_token_id"))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=False, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    adds_space = fields.get("add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if adds_space else replace
    return tokenizer


def ways_to_merge(token: str, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
    pairs = [(left, right) for left, right in cuts if left in vocabulary and right in vocabulary]
    return sorted(pairs, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))


def add_special_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Control, unknown and user-defined tokens are matched in the text before anything else."""
    named = list(zip(tokens, kinds, strict=False))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token, kind in named if kind in (CONTROL, UNKNOWN)])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token, kind in named if kind == USER_DEFINED])


def add_affixes(tokenizer: Tokenizer, tokens: list[str], fields: dict[str, Any], adds_bos: bool) -> None:
    """BOS and EOS where llama.cpp adds them with add_special."""
    bos = fields.get("bos_token_id") if fields.get("add_bos_token", adds_bos) else None
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
