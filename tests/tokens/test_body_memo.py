"""Reading through the body memo is reading without it: the same call, the same keys, the same errors, for less."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.stats import Stats
from router.core.types import PromptKeys
from router.errors import BadRequest
from router.settings import TokenSettings
from router.tokens.body_memo import LEAST_BYTES, LEAST_KNOWN_BYTES, LOOKS, PLACES, BodyMemo, message_places
from router.tokens.book import TokenizerBook
from router.tokens.byte_memo import ByteMemo
from router.tokens.direct_keys import direct_keys
from router.tokens.keyer import Keyer
from router.tokens.memo import PrefixMemo
from router.tokens.pre_tokenizers import GPT2
from router.wire.openai_request import ChatPrompt, KeyedText, ModelCall, read_call
from tests.tokens.vocabularies import byte_level, prose, write_folder

PATH = "/v1/chat/completions"
LIMITS = TokenSettings(max_keyed_body_bytes=4 * 1024**2)
NO_BOOK = TokenizerBook(LIMITS)
LONG = "lorem ipsum dolor sit amet " * 200
Writer = Callable[[Any], str]
WRITERS: list[Writer] = [
    json.dumps,
    lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False),
    lambda value: json.dumps(value, indent=4),
    lambda value: json.dumps(value, indent="\t" * 9),
    lambda value: json.dumps(value, separators=(",", ":")),
]
LOOK_ALIKE = {"role": "user", "content": "hello"}
HEAD_OR_TAIL: dict[str, list[Any]] = {
    "model": ["m", "n", "o", None, 5],
    "stream": [True, False, True, False, None, "yes"],
    "n": [2, "3", True],
    "cache_salt": ["a", "b", None, 3],
    "session_id": ["s", "t" * 200, 5],
    "prompt_cache_key": ["p", None],
    "lora": [[{"id": 0, "scale": 1}], [{"id": 1, "scale": 1.0}], "x", None],
    "lora_path": ["l", None],
    "tools": [[], None, "x", [{"role": {"type": "string"}}, LOOK_ALIKE], [{"messages": [LOOK_ALIKE, LOOK_ALIKE]}]],
    "documents": [[LOOK_ALIKE], [{"text": "d"}]],
    "chat_template_kwargs": [{"a": 1}, {}, {"b": [LOOK_ALIKE]}, None, 7],
    "reasoning_effort": ["low", "high", 1],
    "chat_template": ["{{ 1 }}"],
    "metadata": [{"messages": [LOOK_ALIKE]}, '{"messages":[{"role":"user"'],
    "messages": [[LOOK_ALIKE], [], "x"],
}
RARE = ("messages",)


def memo_of(size: int = 2**20, book: TokenizerBook = NO_BOOK) -> tuple[BodyMemo, PrefixMemo]:
    prefixes = PrefixMemo(size)
    return BodyMemo(prefixes, ByteMemo(prefixes, 1), book, 7, {}), prefixes


def outcome(read: Callable[[], ModelCall]) -> tuple[Any, ...]:
    """What routing sees of a reading: all of the call but the form of its prompt, and its keys; or the error."""
    try:
        call = read()
    except BadRequest as error:
        return type(error), error.message, error.param
    keys: PromptKeys = direct_keys(call, ByteMemo(PrefixMemo(2**20), 1))
    return (*call._replace(prompt=None), keys.keys, keys.prompt_tokens, keys.form, keys.unkeyed_reason)


def read_whole(body: bytes, session: str | None = None) -> ModelCall:
    return read_call(PATH, body, session, LIMITS)


def read_both(memo: BodyMemo, body: bytes, session: str | None = None) -> ModelCall | None:
    """What the memo reads, checked against the whole body's reading; None where it leaves the body to that."""
    found: list[ModelCall | None] = []

    def read() -> ModelCall:
        found.append(memo.read(body, session))
        return found[0] or read_whole(body, session)

    assert outcome(read) == outcome(lambda: read_whole(body, session))
    return found[0] if found else None


def is_known(memo: BodyMemo, body: bytes) -> bool:
    call = read_both(memo, body)
    return call is not None and isinstance(call.prompt, KeyedText)


def message(rng: random.Random) -> dict[str, Any]:
    content = rng.choice((LONG, LONG[: rng.randrange(600)], 'ä{"role": "x"},{"role"', None, "x" * 5000))
    made: dict[str, Any] = {"role": rng.choice(("user", "assistant", "tool")), "content": content}
    kind = rng.random()
    if kind < 0.1:
        made["content"] = [{"type": "text", "text": "a"}, {"role": "x", "type": "image_url", "image_url": {"url": "d" * 999}}]
    elif kind < 0.2:
        made["tool_calls"] = [{"role": "user", "messages": [LOOK_ALIKE, LOOK_ALIKE]}]
    elif kind < 0.3:
        made = {"content": content, "role": "user"}
    elif kind < 0.31:
        made["role"] = rng.choice((5, None))
    elif kind < 0.33:
        made["content"] = rng.choice((5, [5], {}, "\ud800", float("nan")))
    return made


def some_fields(rng: random.Random, most: int) -> list[tuple[str, Any]]:
    names = [rng.choice(list(HEAD_OR_TAIL)) for _ in range(rng.randrange(most + 1))]
    return [(name, rng.choice(HEAD_OR_TAIL[name])) for name in names if name not in RARE or rng.random() < 0.3]


def written(rng: random.Random, writer: Writer, fields: list[tuple[str, Any]]) -> bytes:
    """The object with these fields in this order, repeated ones and all, sometimes with a name escaped."""
    pieces = []
    for name, value in fields:
        text = writer(name) if rng.random() < 0.97 else '"' + name.replace("e", "\\u0065") + '"'
        pieces.append(f"{text}:{writer(value)}")
    return ("{" + ",".join(pieces) + "}").encode("utf-8", "surrogatepass")


def damaged(rng: random.Random, body: bytes) -> bytes:
    at = rng.choice((rng.randrange(len(body)), len(body) - rng.randrange(200)))
    new = rng.choice(
        (b"", b"}", b"]", b",", b'"', b"\\", b" ", b"NaN", b"\xff", b'],"x":[', b'],"messages":[', b'"messages":[{"role"')
    )
    return rng.choice(
        (body[:at], body[:at] + new + body[at:], body[:at] + new + body[at + 1 :], b"\xef\xbb\xbf" + body, body + new)
    )


def conversation(rng: random.Random) -> list[bytes]:
    """Bodies of the turns of a chat, with odd fields around and now and then a damaged or a changed one."""
    messages = [{"role": "system", "content": LONG}, *(message(rng) for _ in range(rng.randrange(3)))]
    writer = rng.choice(WRITERS)
    head, tail = some_fields(rng, 3), some_fields(rng, 4)
    bodies = []
    for _ in range(rng.randrange(2, 6)):
        messages = [*messages, *(message(rng) for _ in range(rng.randrange(1, 4)))]
        if rng.random() < 0.3:
            tail = some_fields(rng, 4)
        writer = rng.choice((writer, writer, writer, rng.choice(WRITERS)))
        body = written(rng, writer, [*head, ("messages", messages), *tail])
        bodies.append(body)
        if rng.random() < 0.3:
            bodies.append(damaged(rng, body))
    return bodies


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.sampled_from([2000, 64 * 1024, 2**24]))
def test_the_same_as_without_memo(seed: int, memo_bytes: int) -> None:
    """Whatever was read before, in memos large and tiny: call, keys and errors are those of the body read whole."""
    rng = random.Random(seed)
    memo, prefixes = memo_of(memo_bytes)
    chats = [conversation(rng) for _ in range(3)]
    bodies = [body for chat in chats for body in chat]
    bodies += rng.sample(bodies, len(bodies) // 2)
    for body in bodies:
        read_both(memo, body, rng.choice((None, None, "header")))
        assert prefixes.used_bytes <= memo_bytes


def chat(messages: list[Any], **fields: Any) -> bytes:
    return orjson.dumps({"model": "m", "messages": messages, **fields})


def turns(count: int, size: int = 1000) -> list[dict[str, Any]]:
    rng = random.Random(count)
    return [{"role": "user" if number % 2 == 0 else "assistant", "content": prose(rng, size)} for number in range(count)]


def test_a_next_turn_is_read_from_where_it_is_known() -> None:
    """Each turn after the first is found and remembered further on, however many there are, without copies of its keys."""
    memo, prefixes = memo_of()
    messages = turns(200)
    before = 0
    for count in range(20, 200, 2):
        assert is_known(memo, chat(messages[:count]))
        if before:
            assert prefixes.used_bytes - before < 4000
        before = prefixes.used_bytes
    known = prefixes.used_bytes
    assert is_known(memo, chat(messages[:198]))
    assert prefixes.used_bytes == known


def test_all_of_one_beginning_share_it() -> None:
    """Questions that differ in the last message only add nothing; what else they say may differ."""
    memo, prefixes = memo_of()
    messages = turns(20)
    assert is_known(memo, chat([*messages, {"role": "user", "content": "one"}], stream=True))
    known = prefixes.used_bytes
    for number in range(50):
        call = memo.read(chat([*messages, {"role": "user", "content": f"{number}"}], session_id=f"{number}"), None)
        assert call is not None
        assert (call.session, call.stream) == (f"{number}", False)
    assert prefixes.used_bytes == known


@pytest.mark.parametrize("name", ["model", "cache_salt", "lora_path", "tools", "reasoning_effort"])
def test_fields_behind_the_messages_part_chains(name: str) -> None:
    """One beginning under two models, salts, adapters or tools is two, and both stay known."""
    memo, prefixes = memo_of()
    bodies = [
        orjson.dumps({"messages": turns(20), name: value})
        for value in ("a", "b", [{"a": 1}])
        if name != "model" or value in ("a", "b")
    ]
    for body in bodies:
        assert is_known(memo, body)
    known = prefixes.used_bytes
    for body in bodies:
        assert is_known(memo, body)
    assert prefixes.used_bytes == known


LOOK_ALIKES = [LOOK_ALIKE] * 5


@pytest.mark.parametrize(
    "body",
    [
        chat(turns(20), tools=LOOK_ALIKES),
        chat(turns(20), tools=[{"messages": LOOK_ALIKES}]),
        chat([*turns(20), {"role": "user", "content": LOOK_ALIKES}]),
        chat([*turns(20), {"role": "user", "content": "x", "messages": LOOK_ALIKES}]),
        chat(turns(20))[:-1] + b',"tools":' + orjson.dumps(LOOK_ALIKES) + b',"tools":[]}',
        chat(turns(20))[:-1] + b',"messages":' + orjson.dumps(LOOK_ALIKES) + b"}",
        chat(turns(20))[:-1] + b',"m\\u0065ssages":' + orjson.dumps(LOOK_ALIKES) + b"}",
        b'{"tools":'
        + orjson.dumps(turns(20))
        + b',"messages":[{"role":"user","content":"x"}],"tools":'
        + orjson.dumps(LOOK_ALIKES)
        + b"}",
        b'{"messages":' + orjson.dumps(turns(20)) + b',"x":{"messages":' + orjson.dumps(LOOK_ALIKES) + b"}}",
        b"[" + chat(turns(20)) + b"]",
        chat(turns(20)) + b" x",
        chat(turns(20)) * 2,
        chat([*turns(20), {"role": "user", "content": "x"}, 5]),
        chat([*turns(20), {"role": 5, "content": "x"}, {"role": "user", "content": "x"}, {"role": "user", "content": "x"}]),
        chat(turns(20))[:-1] + b',"tools":[' + b"[" * 300 + b"]" * 300 + b"]}",
        b'{"messages":[' + b'{"role":"user","content":"x"},' * 50_000 + b'{"role":"user"}]}',
        b'{"messages":[' + b'{"role"' * 100_000,
        b"{" + b'"x":{"role":5},' * 50_000 + b'"messages":[{"role":"user","content":"x"}]}',
    ],
)
def test_look_alikes(body: bytes) -> None:
    """What only looks like a message of the list, or follows on one, changes nothing, known or not."""
    memo, _ = memo_of()
    for start in (b"", chat(turns(18)), chat(turns(20))):
        if start:
            read_both(memo, start)
        read_both(memo, body)
        read_both(memo, body)


def test_places_are_few() -> None:
    """However many there might be, the last are looked at, and none where too little stands before it."""
    assert len(message_places(b'[{"role"' * 10_000)) == PLACES <= LOOKS
    assert message_places(b'{{"role"' * 10_000) == []
    assert message_places(b"[" * LEAST_KNOWN_BYTES + b'{"role"') == [LEAST_KNOWN_BYTES]
    assert message_places(b"[" * (LEAST_KNOWN_BYTES - 1) + b'{"role"' + b" " * 100) == []


def test_what_is_left_to_the_whole_reading() -> None:
    """Short bodies, those with nothing to cut at, and those that are no JSON; nothing is remembered of them."""
    memo, prefixes = memo_of()
    short = chat([*turns(6), LOOK_ALIKE])
    assert len(short) < LEAST_BYTES
    for body in (short, chat(turns(1, 20_000)), chat(turns(20))[:-1], b"", b"x" * 20_000):
        assert memo.read(body, None) is None
    assert prefixes.used_bytes == 0


def test_fields_of_unknown_size_are_not_remembered() -> None:
    """Adapters given as objects before the messages: read right, but from the start each time."""
    memo, prefixes = memo_of()
    body = orjson.dumps({"lora": [{"id": 0}], "messages": turns(20)})
    assert is_known(memo, body)
    known = prefixes.used_bytes
    assert is_known(memo, body)
    assert prefixes.used_bytes == known


def test_large_fields_count() -> None:
    """A span is charged for what it keeps of a client's text."""
    plain, named = (memo_of() for _ in range(2))
    plain[0].read(chat(turns(20)), None)
    named[0].read(orjson.dumps({"model": "m", "session_id": "s" * 50_000, "messages": turns(20)}), None)
    assert named[1].used_bytes - plain[1].used_bytes >= 50_000


def test_models_with_a_tokenizer_are_read_as_before(tmp_path: Path) -> None:
    """Their prompts keep their messages for the template, and nothing is remembered of their bodies."""
    folder = write_folder(tmp_path / "words", byte_level((GPT2,)))
    book = TokenizerBook(TokenSettings(tokenizer=(f"words={folder}",)))
    memo, prefixes = memo_of(book=book)
    body = orjson.dumps({"model": "words", "messages": turns(20)})
    for _ in range(2):
        call = memo.read(body, None)
        assert call == read_whole(body)
        assert isinstance(call.prompt, ChatPrompt)
    assert prefixes.used_bytes == 0
    adapter = orjson.dumps({"model": "legal", "messages": turns(20)})
    of_base = BodyMemo(prefixes, ByteMemo(prefixes, 1), book, 7, {"legal": ("words", "legal")})
    assert of_base.read(adapter, None) == read_whole(adapter), "the adapter's prompts are tokenised as the base model's"
    assert is_known(memo, chat(turns(20)))


async def test_adapters_have_the_keys_of_bodies_read_whole() -> None:
    """Long and short bodies of one conversation are rooted alike, in the base model and the adapter."""
    keyer = Keyer(TokenSettings(), NO_BOOK, Stats(), 4, {"m": ("base", "m@1")})
    body = chat(turns(20))
    call = keyer.read(PATH, body, None)
    assert isinstance(call.prompt, KeyedText) and call.model == "m"
    whole = keyer.start(read_whole(body), lambda keys: True).keys
    assert keyer.start(call, lambda keys: True).keys == whole
    assert whole.keys != Keyer(TokenSettings(), NO_BOOK, Stats()).start(read_whole(body), lambda keys: True).keys.keys
    keyer.close()


@pytest.mark.parametrize(("path", "known"), [(PATH, True), ("/chat/completions?x=1", True), ("/v1/messages", False)])
async def test_the_keyer_reads_chats_through_it(path: str, known: bool) -> None:
    """Its keys are those of the body read whole; other APIs and bodies too large to be parsed are read as ever."""
    body, limits = chat(turns(20)), TokenSettings(max_keyed_body_bytes=30_000)
    keyer = Keyer(limits, NO_BOOK, Stats())
    for sent in (body, chat(turns(22)), chat(turns(40))):
        call, whole = keyer.read(path, sent, "s"), read_call(path, sent, "s", limits)
        assert isinstance(call.prompt, KeyedText) is (known and len(sent) <= limits.max_keyed_body_bytes)
        assert keyer.start(call, lambda keys: True).keys == keyer.start(whole, lambda keys: True).keys
    keyer.close()
