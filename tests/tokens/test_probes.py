"""Probes: equal tokens are found equal, and of others it is said which part differs and where."""

import pytest
from tokenizers import Tokenizer

from router.tokens.book import TokenizerEntry
from router.tokens.key_sources import Shape
from router.tokens.pre_tokenizers import GPT2
from router.tokens.probes import SHOWN_CHARS, Verdict, first_difference, probe, probes_of, shown
from router.wire.engine_tokens import EngineTokens, NoTokens
from router.wire.openai_request import ChatPrompt, TextPrompt
from tests.tokens.token_engine import TokenEngine
from tests.tokens.vocabularies import CHATML, SPECIAL, byte_level, entry_of, sentencepiece_like, with_affixes

WORDS = byte_level((GPT2,))
TOOLY = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls %}{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OURS = entry_of(WORDS, TOOLY)


def with_model(entry: TokenizerEntry, tokenizer: Tokenizer) -> TokenizerEntry:
    """An entry with the same template and another tokenizer."""
    made = entry_of(tokenizer, TOOLY)
    assert made.template is not None and entry.template is not None
    return made


async def verdicts(engine: TokenEngine, entry: TokenizerEntry = OURS) -> dict[Shape, Verdict]:
    return await probe(entry, engine, "m")


def matches(found: dict[Shape, Verdict]) -> dict[str, bool | None]:
    return {shape.value: verdict.matches for shape, verdict in found.items()}


@pytest.mark.parametrize("shows_text", [True, False])
async def test_equal_tokens(shows_text: bool) -> None:
    """An engine with the same tokenizer and template matches in all shapes."""
    engine = TokenEngine(OURS, shows_text=shows_text)
    found = await verdicts(engine)
    assert matches(found) == {"chat": True, "parts": True, "tools": True, "text": True}
    assert all(not verdict.why and verdict.tokens for verdict in found.values())
    assert set(engine.models) == {"m"}


@pytest.mark.parametrize("llama_cpp", [False, True])
async def test_affixes_are_part_of_the_tokens(llama_cpp: bool) -> None:
    """BOS and EOS around texts, and around chats where llama.cpp puts them, count as the tokenizer's own."""
    entry = entry_of(with_affixes(sentencepiece_like("first")), TOOLY, gguf=llama_cpp)
    assert matches(await verdicts(TokenEngine(entry), entry)) == {"chat": True, "parts": True, "tools": True, "text": True}
    bare = entry_of(sentencepiece_like("first"), TOOLY)
    found = await verdicts(TokenEngine(entry), bare)
    assert matches(found) == {"chat": not llama_cpp, "parts": not llama_cpp, "tools": not llama_cpp, "text": False}
    assert found[Shape.TEXT].why.startswith("the tokenizer differs from token 0 on: here ")


@pytest.mark.parametrize("shows_text", [True, False], ids=["text shown", "tokens only"])
async def test_another_template(shows_text: bool) -> None:
    """The template is found to differ, with the place and both sides, by its text or by tokenising ours there."""
    theirs = entry_of(WORDS, TOOLY.replace("<|im_end|>\n", "<|im_end|>"))
    found = await verdicts(TokenEngine(theirs, shows_text=shows_text))
    assert matches(found) == {"chat": False, "parts": False, "tools": False, "text": True}
    why = found[Shape.CHAT].why
    assert why.startswith("the chat template differs from token ")
    assert why.endswith("here '<|im_end|>\\n<|im_start|>assistant\\n', at the engine '<|im_end|><|im_start|>assistant\\n'")


@pytest.mark.parametrize("shows_text", [True, False], ids=["text shown", "tokens only"])
async def test_another_tokenizer(shows_text: bool) -> None:
    """With the same template it is the tokenizer, in every shape."""
    engine = TokenEngine(with_model(OURS, byte_level((r"\p{N}", GPT2))), shows_text=shows_text)
    found = await verdicts(engine)
    assert matches(found) == {"chat": False, "parts": False, "tools": False, "text": False}
    assert all(verdict.why.startswith("the tokenizer differs from token ") for verdict in found.values())


async def test_tools_alone() -> None:
    """A template that is another only with tools leaves plain chats as they are."""
    engine = TokenEngine(entry_of(WORDS, TOOLY.replace("tool | tojson", "tool | tojson(indent=2)")))
    assert matches(await verdicts(engine)) == {"chat": True, "parts": True, "tools": False, "text": True}


async def test_parts_alone() -> None:
    """A template that reads content in parts joins them otherwise, and only that differs."""
    reads_parts = TOOLY.replace("{{ message.content }}", "{% for part in message.content %}{{ part.text }}{% endfor %}")
    engine = TokenEngine(entry_of(WORDS, reads_parts))
    assert matches(await verdicts(engine)) == {"chat": True, "parts": False, "tools": True, "text": True}


async def test_an_engine_that_tells_texts_only() -> None:
    """What is refused is unknown, in the engine's words, and a difference of ids is shown as ids where it has no texts."""
    engine = TokenEngine(with_model(OURS, byte_level((r"\p{N}", GPT2))))
    engine.takes_chats = engine.has_texts = False
    found = await verdicts(engine)
    assert matches(found) == {"chat": None, "parts": None, "tools": None, "text": False}
    assert found[Shape.CHAT] == Verdict(None, "it reads `prompt` only")
    assert found[Shape.TEXT].why.rpartition("at the engine ")[2].strip("'").replace(" ", "").isdigit()


async def test_an_engine_that_cannot_be_asked_for_the_bare_text() -> None:
    """Where neither its text is shown nor ours is tokenised without a template, the difference is the tokenizer's."""

    class Strict(TokenEngine):
        async def tokens(self, prompt: ChatPrompt | TextPrompt, model: str | None) -> EngineTokens:
            if isinstance(prompt, TextPrompt) and not prompt.add_special_tokens:
                raise NoTokens("with special tokens only", lasting=True)
            return await super().tokens(prompt, model)

    theirs = entry_of(WORDS, TOOLY.replace("<|im_end|>\n", "<|im_end|>"))
    found = await verdicts(Strict(theirs, shows_text=False))
    assert found[Shape.CHAT].why.startswith("the tokenizer differs from token ")


async def test_no_template_here() -> None:
    """Without a template, or with one that refuses, the engine's chats are others by that alone."""
    found = await verdicts(TokenEngine(OURS), entry_of(WORDS, None))
    assert matches(found) == {"chat": False, "parts": False, "tools": False, "text": True}
    assert found[Shape.CHAT].why == "there is no chat template here"
    refusing = entry_of(WORDS, CHATML + "{{ raise_exception('no\nchats') }}")
    found = await verdicts(TokenEngine(OURS), refusing)
    assert found[Shape.CHAT].why == "the chat template here refuses what the engine takes: 'TemplateError: no\\nchats'"


async def test_what_both_refuse_proves_nothing() -> None:
    """A template without system messages refuses them here and there; what is left is compared."""
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TOOLY
    strict = entry_of(WORDS, source)
    found = await verdicts(TokenEngine(strict), strict)
    assert matches(found) == {"chat": True, "parts": True, "tools": None, "text": True}
    assert "no system" in found[Shape.TOOLS].why


async def test_an_engine_that_does_not_answer() -> None:
    """Silence is no verdict: it is raised, for another try."""
    engine = TokenEngine(OURS)
    engine.mood = NoTokens("no answer", lasting=False)
    with pytest.raises(NoTokens):
        await verdicts(engine)
    engine.mood = NoTokens("no such route", lasting=True)
    assert matches(await verdicts(engine)) == {"chat": None, "parts": None, "tools": None, "text": None}


async def test_same_tokens_have_the_same_digest() -> None:
    """Engines that make the same tokens are told by one number, others by another."""
    one = await verdicts(TokenEngine(OURS))
    same = await verdicts(TokenEngine(entry_of(WORDS, TOOLY)), entry_of(WORDS, None))
    other = await verdicts(TokenEngine(entry_of(WORDS, TOOLY.replace("<|im_end|>\n", "<|im_end|>"))))
    assert one[Shape.CHAT].tokens == same[Shape.CHAT].tokens != other[Shape.CHAT].tokens
    assert one[Shape.TEXT].tokens == other[Shape.TEXT].tokens


def test_probes_cover_what_differs() -> None:
    """Roles, tools and their calls, scripts, spaces at both ends, parts and special tokens are all in them."""
    probes = probes_of(OURS)
    roles = {
        message["role"] for prompts in probes.values() for p in prompts if isinstance(p, ChatPrompt) for message in p.messages
    }
    assert roles == {"system", "user", "assistant", "tool"}
    assert all(isinstance(p, ChatPrompt) and p.tools for p in probes[Shape.TOOLS])
    texts = [p.texts[0] for p in probes[Shape.TEXT] if isinstance(p, TextPrompt)]
    assert any(text != text.strip() for text in texts) and any("日本語" in text for text in texts)
    assert any(SPECIAL[0] in text for text in texts) and SPECIAL[0] in str(probes[Shape.CHAT])
    plain = entry_of(Tokenizer.from_str(WORDS.to_str().replace('"special":true', '"special":false')))
    assert len(probes_of(plain)[Shape.TEXT]) == 2


def test_words_are_short() -> None:
    """What is shown of a text is bounded."""
    assert shown("a" * 1000) == "a" * SHOWN_CHARS + "…"
    assert shown("a") == "a"


@pytest.mark.parametrize(
    ("ours", "theirs", "place"), [([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [1], 0), ([2, 1], [1, 2], 0)]
)
def test_first_difference(ours: list[int], theirs: list[int], place: int) -> None:
    """The first token that is not the same, or the end of the shorter."""
    assert first_difference(ours, theirs) == place
