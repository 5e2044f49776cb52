"""Which tokenizer serves which model: the entries of the knob `tokenizer`, loaded at start-up."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer

from router.core.keys import tokens_le
from router.errors import SettingsError
from router.settings import TokenSettings
from router.tokens.cuts import Cutter, could_hide_in
from router.tokens.gguf_tokenizer import convert, converted_folder
from router.tokens.pre_tokenizers import GPT2, divides_safely
from router.tokens.template import ChatTemplate, TemplateFailed
from router.wire.openai_request import ChatPrompt

TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
PROBE_CHATS: tuple[list[dict[str, Any]], ...] = tuple(
    [{"role": role, "content": text} for role, text in zip(roles, ("alpha", "beta", "gamma", "delta"), strict=False)]
    for roles in (("system", "user", "assistant", "user"), ("user", "assistant", "user"))
)
SAMPLE = (
    "It's one test; they'll see 12345 of them, won't we?\n\nSecond line:\tx = [1, 2.5e3]  # ok\r\n  indented, Ünïcode "
    "naïve café. 日本語、テスト。한국어 текст, ещё один…\n- item one\n- item two\nHTTP/1.1 200 OK path/to/file foo_bar-baz"
    "   \n   spaces \u00a0nbsp \U0001f600 emoji (a+b)=c \"quoted\" <tag>text</tag> {json: 'x'} end.\nLast line "
)


class TokenizerEntry:
    """A tokenizer, its chat template, and what cutting and estimating need to know of both."""

    def __init__(self, name: str, tokenizer: Tokenizer, config: Mapping[str, Any], sources: Mapping[str, str]) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.template = make_template(name, sources, special_tokens(config)) if sources else None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.prefix, self.suffix = affixes(tokenizer)
        self.is_llama_cpp = bool(config.get("gguf"))
        self.bos_token = special_tokens(config).get("bos_token")
        self.eos_token = special_tokens(config).get("eos_token")
        shape = json.loads(tokenizer.to_str())
        divisible = is_divisible(shape) and cuts_agree(self, Cutter(None, True))
        self.cutter = Cutter(self.find_opener(shape), divisible)
        self._chars, self._tokens = 4000.0, 1000.0  # what estimates start from; soon outweighed by what is seen

    def encode(self, text: str) -> bytes:
        """The ids of `text` without special affixes as little-endian u32. TypeError on a lone surrogate.

        `encode_batch_fast` gives up the GIL and skips offsets; `encode` holds it for its whole run.
        """
        return tokens_le(self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def special_texts(self) -> list[str]:
        """The texts of its special tokens, the first ones first."""
        return [token.content for token in self.tokenizer.get_added_tokens_decoder().values() if token.special]

    def note_ratio(self, chars: int, tokens: int) -> None:
        """What was just tokenised, for `estimate`: an average over about the last two million characters."""
        self._chars += chars
        self._tokens += tokens
        if self._chars > 2e6:
            self._chars /= 2
            self._tokens /= 2

    def estimate(self, chars: int) -> int:
        return int(chars * self._tokens / self._chars)

    def chars_of(self, tokens: int) -> int:
        return int(tokens * self._chars / self._tokens)

    def chat_text(self, prompt: ChatPrompt) -> tuple[str, bool]:
        """The rendered chat and whether affixes go around it. TemplateFailed where it does not render.

        llama.cpp tokenises chats with BOS and EOS and takes those of the template off; others add none.
        """
        assert self.template is not None
        text = self.template.render(prompt)
        if self.is_llama_cpp:
            if self.prefix and self.bos_token:
                text = text.removeprefix(self.bos_token)
            if self.suffix and self.eos_token:
                text = text.removesuffix(self.eos_token)
        return text, self.is_llama_cpp

    def find_opener(self, shape: Mapping[str, Any]) -> str | None:
        """The special token that comes most often in a chat: where to cut it. Without template, none."""
        text = probe_text(self.template) if self.template else ""
        counts = Counter({token: text.count(token) for token in cut_tokens(shape)})
        best = max(counts, key=lambda token: (counts[token], -text.find(token)), default=None)
        return best if best is not None and counts[best] >= 2 else None


class TokenizerBook:
    """Loads every entry at birth: SettingsError names the entry and what is wrong with it."""

    def __init__(self, settings: TokenSettings) -> None:
        self.by_model: dict[str, TokenizerEntry] = {}  # those given as MODEL=PATH
        self.for_all: TokenizerEntry | None = None
        loaded: dict[Path, TokenizerEntry] = {}
        for given in settings.tokenizer:
            model, path = split_entry(given)
            entry = loaded.get(path)
            if entry is None:
                entry = loaded[path] = load(path, settings.tokenizer_cache)
            if model is None:
                if self.for_all is not None:
                    raise SettingsError(f"tokenizer: {given!r} is a second PATH without MODEL=; only one can serve all models")
                self.for_all = entry
            elif model in self.by_model:
                raise SettingsError(f"tokenizer: model {model!r} is given twice")
            else:
                self.by_model[model] = entry

    def for_model(self, model: str | None) -> TokenizerEntry | None:
        """The entry of MODEL=PATH, else the one of a bare PATH, else None."""
        return self.by_model.get(model or "", self.for_all)


def split_entry(given: str) -> tuple[str | None, Path]:
    """`PATH` or `MODEL=PATH`; an existing path that holds a `=` is a PATH."""
    model, separator, rest = given.partition("=")
    if not separator or Path(given).expanduser().exists():
        return None, Path(given).expanduser()
    if not model or not rest:
        raise SettingsError(f"tokenizer: {given!r} is not PATH or MODEL=PATH")
    return model, Path(rest).expanduser()


def load(path: Path, cache: str) -> TokenizerEntry:
    """From a folder, a tokenizer.json, or a .gguf file."""
    if path.is_dir() and (path / "tokenizer.json").is_file():
        return load_folder(path, path / "tokenizer.json")
    if path.is_file() and path.suffix == ".gguf":
        return load_gguf(path, Path(cache).expanduser() if cache else Path.home() / ".cache" / "warmline")
    if path.is_file() and path.suffix == ".json":
        return load_folder(path.parent, path)
    what = "holds no tokenizer.json" if path.is_dir() else "is no .json or .gguf file" if path.exists() else "does not exist"
    raise SettingsError(
        f"tokenizer: {str(path)!r} {what}; allowed: a folder with tokenizer.json, a tokenizer.json, a .gguf file"
    )


def load_gguf(path: Path, cache: Path) -> TokenizerEntry:
    folder = converted_folder(path, cache)
    if folder is not None:
        entry = load_folder(folder, folder / "tokenizer.json")
        entry.name = path.name
        return entry
    tokenizer, config = convert(path)
    return TokenizerEntry(path.name, tokenizer, config, template_sources(config, path.parent / "none"))


def load_folder(folder: Path, file: Path) -> TokenizerEntry:
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise SettingsError(f"tokenizer: {str(file)!r} is not a tokenizer.json: {error}") from None
    config = read_json(folder / "tokenizer_config.json")
    return TokenizerEntry(folder.name, tokenizer, config, template_sources(config, folder))


def read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"tokenizer: {str(path)!r} is not JSON: {error}") from None
    return value if isinstance(value, dict) else {}


def template_sources(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Template name → source; files win over tokenizer_config.json, as in transformers."""
    given = config.get("chat_template")
    sources: dict[str, str] = {}
    if isinstance(given, str):
        sources["default"] = given
    elif isinstance(given, list):
        sources = {
            item["name"]: item["template"] for item in given if isinstance(item, dict) and {"name", "template"} <= set(item)
        }
    if (folder / "chat_template.jinja").is_file():
        sources["default"] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for file in sorted(folder.glob("additional_chat_templates/*.jinja")):
        sources[file.stem] = file.read_text(encoding="utf-8")
    return sources if "default" in sources else {}


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, … by name; each is text or an object with its text as `content`."""
    found = {}
    for name in TOKEN_NAMES:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def make_template(name: str, sources: Mapping[str, str], special: Mapping[str, str]) -> ChatTemplate:
    try:
        return ChatTemplate(sources, special)
    except TemplateError as error:
        raise SettingsError(f"tokenizer: the chat template of {name!r} does not parse: {error}") from None


def affixes(tokenizer: Tokenizer) -> tuple[bytes, bytes]:
    """The packed ids that the tokenizer puts before and after a text with add_special_tokens."""
    bare: list[int] = tokenizer.encode("a", add_special_tokens=False).ids
    full: list[int] = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tokens_le(full[:start]), tokens_le(full[start + len(bare) :])
    return b"", b""


def cut_tokens(shape: Mapping[str, Any]) -> list[str]:
    """Added tokens that split any text wherever they stand: taken from the raw text, whole, and overlapped by no other."""
    added = shape.get("added_tokens", [])
    every = [token["content"] for token in added]
    return [
        token["content"]
        for token in added
        if not (token["normalized"] or token["lstrip"] or token["single_word"])
        and not any(overlaps(other, token["content"]) for other in every)
    ]


def overlaps(other: str, token: str) -> bool:
    """True if a match of `other` that begins no later than one of `token` can take part of it away."""
    if other == token:
        return any(token.endswith(token[:size]) for size in range(1, len(token)))
    return token in other or any(other.endswith(token[:size]) for size in range(1, len(token)))


def is_divisible(shape: Mapping[str, Any]) -> bool:
    """True for byte-level BPE whose pre-tokenizer is known to part words at every `safe_cut`."""
    model, normalizer, pre = shape["model"], shape.get("normalizer"), shape.get("pre_tokenizer")
    if model.get("type") != "BPE" or model.get("dropout") or model.get("byte_fallback") or pre is None:
        return False
    if normalizer is not None and normalizer.get("type") != "NFC":
        return False
    if not all(leaves_words(token) for token in shape.get("added_tokens", [])):
        return False
    *steps, last = pre["pretokenizers"] if pre.get("type") == "Sequence" else [pre]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return False
    patterns = [pattern_of(step) for step in steps] + ([GPT2] if last.get("use_regex", True) else [])
    return divides_safely([pattern or "" for pattern in patterns])


def leaves_words(token: Mapping[str, Any]) -> bool:
    """True for an added token that no safe cut can part, from itself or from the space that it takes with it."""
    text = token["content"]
    takes_space = (token["lstrip"] and text[:1].isalnum()) or (token["rstrip"] and text[-1:].isalnum())
    return not (could_hide_in(text) or takes_space or token["single_word"])


def pattern_of(step: Mapping[str, Any]) -> str | None:
    """The pattern that a step of a pre-tokenizer splits by, each match a piece of its own; None for any other step."""
    kind = step.get("type")
    if kind == "Split" and step["behavior"] == "Isolated" and not step["invert"]:
        pattern: str | None = step["pattern"].get("Regex")
        return pattern
    return r"\p{N}" if kind == "Digits" else None


def cuts_agree(entry: TokenizerEntry, cutter: Cutter) -> bool:
    """Checks on a sample that the tokenizer's tokens do not change where the cutter cuts."""
    parts, at = [], 0
    while at < len(SAMPLE):
        end = cutter.step(SAMPLE, at, 4, len(SAMPLE))
        parts.append(entry.encode(SAMPLE[at:end]))
        at = end
    return b"".join(parts) == entry.encode(SAMPLE)


def probe_text(template: ChatTemplate) -> str:
    """A small chat as the template renders it, without a system message where it takes none."""
    for chat in PROBE_CHATS:
        try:
            return template.render(ChatPrompt(chat))
        except TemplateFailed:
            continue
    return ""


def encode_all(entry: TokenizerEntry, texts: Sequence[str]) -> list[bytes]:
    """For a thread: each text's packed ids. Between texts, of 2 K characters or so, other threads get their turn."""
    return [entry.encode(text) for text in texts]
