"""Which model's prompts are keyed how."""

from pathlib import Path

from router.settings import TokenSettings
from router.tokens.book import TokenizerBook
from router.tokens.key_sources import KeySource, KeySources, ModelKeys, Shape
from router.tokens.pre_tokenizers import GPT2
from router.wire.openai_request import ChatPrompt, TextPrompt
from tests.tokens.vocabularies import CHATML, byte_level, write_folder


def sources(folder: Path, *names: str) -> KeySources:
    """A tokenizer of its own for each of the names; "" is the one for all others."""
    given = []
    for name in names:
        made = write_folder(folder / (name or "others"), byte_level((GPT2,)), chat_template=CHATML)
        given.append(f"{name}={made}" if name else str(made))
    return KeySources(TokenizerBook(TokenSettings(tokenizer=tuple(given))))


def test_models_by_name(tmp_path: Path) -> None:
    """A name of its own wins; all others, and requests without a name, share what is for all; without that there is none."""
    found = sources(tmp_path, "a", "")
    assert found.of("a") is not found.others
    assert found.of("b") is found.of(None) is found.others
    alone = sources(tmp_path, "a")
    assert alone.of("b") is alone.of(None) is None


def test_put_and_drop(tmp_path: Path) -> None:
    """A listed model gets keys of its own; dropped, it is one of the others again, and a named one begins anew."""
    found = sources(tmp_path, "a", "")
    assert found.others is not None
    own = ModelKeys(found.others.entry)
    found.put("b", own)
    assert found.of("b") is own
    found.drop("b")
    assert found.of("b") is found.others
    before = found.of("a")
    assert before is not None
    before.chat.source = KeySource.TEXT
    found.drop("a")
    after = found.of("a")
    assert after is not None and after is not before and after.entry is before.entry
    assert after.chat.source is KeySource.TOKENIZER


def test_shapes_of_prompts(tmp_path: Path) -> None:
    """Texts, chats, those in parts and those with tools are told apart; what is both is as its parts are, if those differ."""
    keys = sources(tmp_path, "").of("x")
    assert keys is not None
    messages = [{"role": "user", "content": "x"}]
    assert keys.of(TextPrompt(("x",))) is keys.text
    assert keys.of(ChatPrompt(messages)) is keys.chat
    assert keys.of(ChatPrompt(messages, tools=[{}])) is keys.tools
    in_parts = ChatPrompt(messages, in_parts=True)
    assert keys.of(in_parts) is keys.parts
    assert keys.of(in_parts._replace(tools=[{}])) is keys.tools
    keys.parts.source = KeySource.ENGINE
    assert keys.of(in_parts._replace(tools=[{}])) is keys.parts
    assert [keys.by_shape(shape) for shape in Shape] == [found for _, found in keys.shapes()]
