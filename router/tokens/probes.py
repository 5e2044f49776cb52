"""A fixed set of prompts, made into tokens here and by an engine, and in words where the two first differ."""

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xxhash import xxh3_64

from router.core.keys import TOKEN_BYTES, tokens_le
from router.tokens.book import SAMPLE, TokenizerEntry
from router.tokens.key_sources import Shape
from router.tokens.template import TemplateFailed
from router.wire.engine_tokens import EngineTokens, NoTokens, TokenRoutes
from router.wire.openai_request import ChatPrompt, TextPrompt

SHOWN_TOKENS = 6  # around the first that differs
SHOWN_CHARS = 60
MAX_SPECIAL = 3  # special tokens written out in probes

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place, now or on a day.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A town, e.g. Zürich"},
                "days": {"type": "integer", "minimum": 0},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["place"],
        },
    },
}
CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"place": "Zürich", "days": 2}'},
}
SYSTEM = {"role": "system", "content": "You are terse.  Answer in one line.\n"}
QUESTION = {"role": "user", "content": "What's 12,345 × 7? 日本語でも。 naïve café \U0001f600"}
ANSWER = {"role": "assistant", "content": "86415, I think."}
IN_PARTS = {"role": "user", "content": [{"type": "text", "text": "In two"}, {"type": "text", "text": "parts. "}]}
SPACED = {"role": "user", "content": "  \n and  with spaces at both ends?\t\n\n "}
ASK_WEATHER = {"role": "user", "content": "Will it rain in Zürich?"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call00001", "content": '{"rain_mm": 3.5, "text": "Schauer"}'}

Probe = ChatPrompt | TextPrompt


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a worker's tokens for one shape of prompt are those made here, None where it does not tell, and in words why.

    `tokens` is a digest of all it told, 0 where it told nothing: workers with the same one make the same tokens.
    """

    matches: bool | None
    why: str = ""
    tokens: int = 0


class Own(NamedTuple):
    """What is made of a prompt here."""

    ids: list[int]
    text: str
    affixed: bool


def probes_of(entry: TokenizerEntry) -> Mapping[Shape, Sequence[Probe]]:
    """By shape; the plain ones first, so that words about a difference are about the plainest. Special tokens are its own."""
    special = " ".join(f"a{token}b" for token in entry.special_texts()[:MAX_SPECIAL])
    spoken: list[Probe] = [ChatPrompt([{"role": "user", "content": f"What does {special} mean?"}])] if special else []
    return {
        Shape.CHAT: (
            ChatPrompt([QUESTION]),
            ChatPrompt([SYSTEM, QUESTION, ANSWER, SPACED]),
            *spoken,
        ),
        Shape.PARTS: (ChatPrompt([IN_PARTS], in_parts=True), ChatPrompt([SYSTEM, QUESTION, ANSWER, IN_PARTS], in_parts=True)),
        Shape.TOOLS: (
            ChatPrompt([SYSTEM, ASK_WEATHER], tools=[WEATHER]),
            ChatPrompt([SYSTEM, ASK_WEATHER, CALLS, RESULT], tools=[WEATHER]),
        ),
        Shape.TEXT: (
            TextPrompt(("Once upon a time",)),
            TextPrompt((f"  {SAMPLE}\n",)),
            *([TextPrompt((special,))] if special else ()),
        ),
    }


async def probe(entry: TokenizerEntry, routes: TokenRoutes, model: str | None) -> dict[Shape, Verdict]:
    """All shapes, one question at a time. Raises NoTokens, not lasting, when the engine does not answer."""
    return {shape: await probe_shape(entry, routes, model, probes) for shape, probes in probes_of(entry).items()}


async def probe_shape(entry: TokenizerEntry, routes: TokenRoutes, model: str | None, prompts: Sequence[Probe]) -> Verdict:
    """A probe that the engine refuses proves nothing: templates refuse chats, and releases lack routes."""
    refused = differs = ""
    told = xxh3_64()
    count = 0
    for place, prompt in enumerate(prompts):
        try:
            theirs = await routes.tokens(prompt, model)
        except NoTokens as reason:
            if not reason.lasting:
                raise
            refused = refused or str(reason)
            continue
        count += 1
        told.update(struct.pack("<I", place) + tokens_le(theirs.ids))
        if not differs:
            ours = own_tokens(entry, prompt)
            if isinstance(ours, str):
                differs = ours
            elif ours.ids != theirs.ids.tolist():
                differs = await difference(entry, routes, model, prompt, ours, theirs)
    if not count:
        return Verdict(None, refused)
    return Verdict(not differs, differs, told.intdigest())


def own_tokens(entry: TokenizerEntry, prompt: Probe) -> Own | str:
    """As the keyer makes them, or in words why it does not."""
    if isinstance(prompt, TextPrompt):
        text, affixed = prompt.texts[0], True
    elif entry.template is None:
        return "there is no chat template here"
    else:
        try:
            text, affixed = entry.chat_text(prompt)
        except TemplateFailed as reason:
            return f"the chat template here refuses what the engine takes: {shown(str(reason))!r}"
    packed = entry.encode(text)
    if affixed:
        packed = entry.prefix + packed + entry.suffix
    return Own(list(struct.unpack(f"<{len(packed) // TOKEN_BYTES}I", packed)), text, affixed)


async def difference(
    entry: TokenizerEntry, routes: TokenRoutes, model: str | None, prompt: Probe, ours: Own, theirs: EngineTokens
) -> str:
    """Which part differs, from which token on, and what stands there on either side."""
    part = "the tokenizer"
    if isinstance(prompt, ChatPrompt) and await is_template(routes, model, ours, theirs):
        part = "the chat template"
    at = first_difference(ours.ids, theirs.ids)
    here = shown(entry.decode(ours.ids[max(0, at - 1) : at + SHOWN_TOKENS]))
    there = await text_at(routes, model, theirs.ids[max(0, at - 1) : at + SHOWN_TOKENS])
    return f"{part} differs from token {at} on: here {here!r}, at the engine {there!r}"


async def is_template(routes: TokenRoutes, model: str | None, ours: Own, theirs: EngineTokens) -> bool:
    """The engine's text tells; where it shows none, the same text tokenised there without a template does."""
    if theirs.text is not None:
        return theirs.text != ours.text
    try:
        plain = await routes.tokens(TextPrompt((ours.text,), add_special_tokens=ours.affixed), model)
    except NoTokens:
        return False
    return plain.ids.tolist() == ours.ids


async def text_at(routes: TokenRoutes, model: str | None, ids: "array[int]") -> str:
    """The text of the ids, or the ids where the engine gives none."""
    try:
        return shown(await routes.text(ids, model))
    except NoTokens:
        return shown(" ".join(map(str, ids)))


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """The place of the first token that is not the same; the shorter one's length where it is the other's beginning."""
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return place
    return min(len(ours), len(theirs))


def shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"
