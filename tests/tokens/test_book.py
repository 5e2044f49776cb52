"""The tokenizer book: what may be given, what is refused at start, and what is found out about each tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from router.errors import SettingsError
from router.settings import TokenSettings
from router.tokens.book import TokenizerBook, cut_tokens, encode_all, is_divisible, overlaps
from router.tokens.pre_tokenizers import GPT2, LLAMA3
from router.wire.openai_request import ChatPrompt
from tests.tokens.test_gguf_tokenizer import write as write_gguf
from tests.tokens.vocabularies import CHATML, byte_level, entry_of, sentencepiece_like, with_affixes, write_folder

MODEL = byte_level((GPT2,))
CHAT = [{"role": "user", "content": "hi"}]


def book(*given: object, cache: Path | None = None) -> TokenizerBook:
    return TokenizerBook(TokenSettings(tokenizer=tuple(map(str, given)), tokenizer_cache=str(cache or "")))


def test_models_and_the_rest(tmp_path: Path) -> None:
    """MODEL=PATH serves that model, a bare PATH all others; without one, they have none. One file is loaded once."""
    one, other = write_folder(tmp_path / "one", MODEL), write_folder(tmp_path / "other", MODEL)
    both = book(f"m={one}", f"n={one}", other)
    assert both.for_model("m") is both.for_model("n") is not None
    rest = both.for_model("x")
    assert rest is both.for_model(None)
    assert rest is not None
    assert rest.name == "other"
    assert book(f"m={one}").for_model("x") is None
    assert book().for_model("x") is None


def test_ways_to_name_a_tokenizer(tmp_path: Path, smollm_gguf: Path, tokenizer_cache: Path) -> None:
    """A folder, its tokenizer.json, a GGUF file; a path with a = in it is a path."""
    folder = write_folder(tmp_path / "a=b", MODEL, chat_template=CHATML)
    for given in (folder, folder / "tokenizer.json"):
        entry = book(given).for_model("x")
        assert entry is not None
        assert entry.template is not None
    entry = book(f"smol={smollm_gguf}", cache=tokenizer_cache).for_model("smol")
    assert entry is not None
    assert entry.name == smollm_gguf.name
    assert entry.is_llama_cpp


def test_a_gguf_is_read_without_a_cache_too(tmp_path: Path) -> None:
    """Where nothing can be kept the conversion serves as it is."""
    (tmp_path / "file").write_text("")
    entry = book(write_gguf(tmp_path / "m.gguf", chat_template="{{ 1 }}"), cache=tmp_path / "file").for_model("x")
    assert entry is not None
    assert (entry.name, entry.is_llama_cpp, entry.bos_token) == ("m.gguf", True, "<|bos|>")
    assert entry.template is not None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path / "nowhere", "does not exist"),
        (lambda path: path, "holds no tokenizer.json"),
        (lambda path: write(path / "x.bin", b""), "is no .json or .gguf file"),
        (lambda path: write(path / "tokenizer.json", b"{}"), "is not a tokenizer.json"),
        (lambda path: write(path / "x.gguf", b"GGUF"), "cannot be read as GGUF"),
        (lambda path: f"m={path / 'nowhere'}", "does not exist"),
        (lambda path: "m=", "is not PATH or MODEL=PATH"),
        (lambda path: "=x", "is not PATH or MODEL=PATH"),
        (lambda path: write_folder(path / "t", MODEL, chat_template="{% if %}"), "chat template of 't' does not parse"),
        (lambda path: write(write_folder(path / "t", MODEL) / "tokenizer_config.json", b"{").parent, "is not JSON"),
    ],
)
def test_refusals_name_knob_and_value(tmp_path: Path, make: Any, words: str) -> None:
    """A tokenizer that cannot serve is a SettingsError at start, never a surprise per request."""
    with pytest.raises(SettingsError, match=r"^tokenizer: ") as caught:
        book(make(tmp_path))
    assert words in str(caught.value)


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_given_twice(tmp_path: Path) -> None:
    """Two tokenizers for one model, or for all models, are a mistake."""
    folder, other = write_folder(tmp_path / "a", MODEL), write_folder(tmp_path / "b", MODEL)
    with pytest.raises(SettingsError, match="second PATH"):
        book(folder, other)
    with pytest.raises(SettingsError, match="given twice"):
        book(f"m={folder}", f"m={other}")


def test_template_sources(tmp_path: Path) -> None:
    """Templates come from the config as text or named list, and from files, which win; without a default there is none."""

    def rendered(name: str, **config: Any) -> str | None:
        entry = book(write_folder(tmp_path / name, MODEL, **config)).for_model("x")
        assert entry is not None
        return entry.template.render(ChatPrompt(CHAT, tools=[{}])) if entry.template else None

    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}, "odd"]
    assert rendered("text", chat_template="c") == "c"
    assert rendered("list", chat_template=named) == "t"
    assert rendered("none") is None
    assert rendered("no-default", chat_template=named[1:2]) is None
    for name in ("file", "more"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "chat_template.jinja").write_text("{{ bos_token }}f")
    assert rendered("file", chat_template="c", bos_token={"content": "<s>"}) == "<s>f"
    (tmp_path / "more" / "additional_chat_templates").mkdir()
    (tmp_path / "more" / "additional_chat_templates" / "tool_use.jinja").write_text("more")
    assert rendered("more") == "more"


def test_a_tokenizer_json_alone(tmp_path: Path) -> None:
    """Without tokenizer_config.json there is no template, but plain prompts are keyed."""
    MODEL.save(str(tmp_path / "mine.json"))
    entry = book(tmp_path / "mine.json").for_model("x")
    assert entry is not None
    assert entry.template is None


def test_config_that_is_no_object(tmp_path: Path) -> None:
    """A tokenizer_config.json of another shape says nothing."""
    folder = write_folder(tmp_path / "t", MODEL)
    (folder / "tokenizer_config.json").write_text("[]")
    entry = book(folder).for_model("x")
    assert entry is not None
    assert entry.template is None


def test_affixes() -> None:
    """What add_special_tokens puts around a text is found out by trying."""
    bos, eos = (MODEL.encode(token, add_special_tokens=False).ids[0].to_bytes(4, "little") for token in ("<s>", "</s>"))
    assert (entry_of(MODEL).prefix, entry_of(MODEL).suffix) == (b"", b"")
    entry = entry_of(with_affixes(MODEL))
    assert (entry.prefix, entry.suffix) == (bos, eos)
    entry = entry_of(with_affixes(MODEL, "<s> $A"))
    assert (entry.prefix, entry.suffix) == (bos, b"")


def test_truncation_and_padding_are_off() -> None:
    """A tokenizer.json may ask for 512 tokens at most; prompts are longer."""
    tokenizer = Tokenizer.from_str(MODEL.to_str())
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=64)
    assert len(entry_of(tokenizer).encode("one two " * 50)) == len(entry_of(MODEL).encode("one two " * 50))
    assert encode_all(entry_of(tokenizer), ["one", "two"]) == [entry_of(MODEL).encode(text) for text in ("one", "two")]


def test_llama_cpp_takes_the_templates_bos_and_eos_off() -> None:
    """With a GGUF tokenizer chats get the tokenizer's own BOS and EOS instead of the template's; others none besides it."""
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    prompt = ChatPrompt(CHAT)
    assert entry_of(with_affixes(MODEL), template, **config).chat_text(prompt) == ("<s>hi</s>", False)
    assert entry_of(with_affixes(MODEL), template, gguf=True, **config).chat_text(prompt) == ("hi", True)
    assert entry_of(MODEL, template, gguf=True, **config).chat_text(prompt) == ("<s>hi</s>", True)


@pytest.mark.parametrize(
    ("template", "opener"),
    [
        (CHATML, "<|im_start|>"),
        ("{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}", "<s>"),
        ("{% for m in messages %}{{ '<' + 's>' + m.content }}{% endfor %}", "<s>"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None),
        ("<s>{% for m in messages %}{{ m.content }}{% endfor %}", None),
        ("{% if messages[0].role == 'system' %}{{ raise_exception('x') }}{% endif %}" + CHATML, "<|im_start|>"),
        ("{{ raise_exception('x') }}", None),
        (None, None),
    ],
    ids=["chatml", "pairs", "computed", "plain", "once", "no-system", "never", "no-template"],
)
def test_the_opener_is_the_commonest_token_of_a_chat(template: str | None, opener: str | None) -> None:
    """Chats are cut before the special token that comes with every message, however the template writes it."""
    assert entry_of(MODEL, template).cutter.opener == opener


@pytest.mark.parametrize(
    ("other", "token", "takes"),
    [
        ("<a>", "<a>", False),
        ("aba", "aba", True),
        ("x<a>y", "<a>", True),
        ("y<", "<a>", True),
        ("<b>", "<a>", False),
        ("a>", "<a>", False),
    ],
)
def test_overlapping_tokens_are_no_openers(other: str, token: str, takes: bool) -> None:
    """A token that another may eat into is not split at wherever it stands."""
    assert overlaps(other, token) is takes


def test_cut_tokens_exclude_normalized_and_stripping_ones() -> None:
    """Tokens matched after normalisation, or with the space before them, are no places to cut."""
    tokenizer = Tokenizer.from_str(byte_level((GPT2,)).to_str())
    tokenizer.add_special_tokens([AddedToken("<n>", normalized=True), AddedToken("<l>", lstrip=True, normalized=False)])
    tokenizer.add_special_tokens([AddedToken("<w>", single_word=True, normalized=False), AddedToken("<g>", normalized=False)])
    found = cut_tokens(json.loads(tokenizer.to_str()))
    assert "<g>" in found
    assert not {"<n>", "<l>", "<w>"} & set(found)


def shape_of(tokenizer: Tokenizer) -> dict[str, Any]:
    shape: dict[str, Any] = json.loads(tokenizer.to_str())
    return shape


def changed(change: Any) -> dict[str, Any]:
    tokenizer = Tokenizer.from_str(byte_level((LLAMA3,)).to_str())
    change(tokenizer)
    return shape_of(tokenizer)


def add(*tokens: AddedToken | str) -> Any:
    return lambda tokenizer: tokenizer.add_tokens(list(tokens))


def pre(*steps: Any) -> Any:
    def change(tokenizer: Tokenizer) -> None:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(steps))

    return change


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


@pytest.mark.parametrize(
    ("shape", "divisible"),
    [
        (shape_of(byte_level((LLAMA3,))), True),
        (shape_of(byte_level((r"\p{N}", GPT2), True)), True),
        (changed(pre(pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False))), True),
        (changed(lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False))), True),
        (changed(pre(pre_tokenizers.ByteLevel(add_prefix_space=True))), False),
        (changed(pre(pre_tokenizers.Digits(True), BYTES)), False),
        (changed(pre(pre_tokenizers.Split(Regex(r"[^\n]+|[\n]+"), "isolated"), BYTES)), False),
        (changed(pre(pre_tokenizers.Split(Regex(GPT2), "removed"), BYTES)), False),
        (changed(pre(pre_tokenizers.Split(" ", "isolated"), BYTES)), False),
        (changed(pre(pre_tokenizers.Split(Regex(GPT2), "isolated"), pre_tokenizers.Whitespace())), False),
        (changed(lambda t: setattr(t, "pre_tokenizer", None)), False),
        (changed(lambda t: setattr(t, "normalizer", normalizers.NFKC())), False),
        (changed(add("foo bar")), False),
        (changed(add(AddedToken("word", rstrip=True))), False),
        (changed(add(AddedToken("word", lstrip=True))), False),
        (changed(add(AddedToken("<x>", lstrip=True, rstrip=True))), True),
        (changed(add(AddedToken("word", single_word=True))), False),
        (shape_of(sentencepiece_like("first")), False),
        (shape_of(Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))), False),
    ],
)
def test_which_tokenizers_may_be_cut_between_words(shape: dict[str, Any], divisible: bool) -> None:
    """Only byte-level BPE over known patterns, with tokens that no cut parts; all others are cut at special tokens only."""
    assert is_divisible(shape) is divisible


def test_estimates_follow_what_was_seen() -> None:
    """Tokens of an unread text are estimated from this tokenizer's own average, which moves."""
    entry = entry_of(MODEL)
    assert entry.estimate(4000) == 1000
    assert entry.chars_of(10) == 40
    for _ in range(50):
        entry.note_ratio(100_000, 50_000)
    assert entry.estimate(1000) == pytest.approx(500, abs=5)
