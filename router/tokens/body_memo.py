"""Chat bodies whose beginning was read before: only what is new is parsed, checked, written as text and chained.

A chat grows at its end, so nearly all of a long body was in the one before, byte for byte. What a beginning said is kept
in the prefix memo, as a span that ends where a message begins. For models without a tokenizer only: the others need the
whole text anyway.
"""

import secrets
from array import array
from sys import getsizeof
from typing import Any

import orjson
from xxhash import xxh3_128

from router.core.keys import BLOCK_BYTES, TEXT_STEP_BYTES, text_chain
from router.core.types import KeyForm
from router.errors import InvalidField
from router.tokens.book import TokenizerBook
from router.tokens.byte_memo import ByteMemo
from router.tokens.direct_keys import Namespaces, in_namespace, preamble_of, root_of, token_estimate
from router.tokens.memo import PrefixMemo, Span, keys_up_to
from router.wire.chat_text import chat_text
from router.wire.openai_request import CALL_FIELDS, ChatPrompt, Family, KeyedText, ModelCall, checked_messages, read_fields

LEAST_BYTES = 8192  # of a body that is looked up at all
LEAST_KNOWN_BYTES = 4096  # of a beginning that is worth a place
PLACES = 6  # looked up in one body: a turn of an agent is an assistant's message and a few answers of tools
LOOKS = 12  # for places, so that a body full of what looks like one costs no more
ATTEMPTS = 3  # at reading on from a place: parts of messages and of tools may look like a message
WHOLE_KEYS = 64  # a span with fewer is copied into the one that builds on it, so that paths stay short
STEP_KEYS = TEXT_STEP_BYTES // BLOCK_BYTES
SEPARATORS = b",["  # before an item of a list; much space before it says nothing
MESSAGE = b'{"role"'  # in JSON always outside of strings: a quote inside has a backslash before it

# All that decides a chain besides the messages. Each place stands for the bytes before it and these fields behind it.
CHAIN_FIELDS = (
    "model",
    "cache_salt",
    "lora",
    "lora_path",
    "adapter_id",
    "tools",
    "documents",
    "chat_template_kwargs",
    "reasoning_effort",
)


class BodySpan(Span):
    """A body's beginning, up to a message. `tokens` counts bytes of text here, `rest` holds those behind the last step.

    `head` has the CALL_FIELDS that stand before the messages. The messages are checked.
    """

    __slots__ = ("head",)

    def __init__(
        self,
        digest: bytes,
        parent: Span | None,
        keys: "array[int]",
        last_key: int,
        rest: bytes,
        size: int,
        head: dict[str, Any],
    ) -> None:
        super().__init__(digest, parent, keys, last_key, rest, size)
        self.head = head
        self.cost += getsizeof(head) + sum(map(getsizeof, head.values()))


class BodyMemo:
    """Reads bodies of /v1/chat/completions through a memo shared with the keys; `seed` is this process's own, see `Walk`.

    A body is cut at a place and both parts are parsed on their own, each closed, or opened, by a mark that no client
    knows. If the marks are where they were put, the cut is between two messages of the body's list of messages and
    nowhere else, and the fields of both parts together are those of the body.
    """

    def __init__(
        self, memo: PrefixMemo, texts: ByteMemo, book: TokenizerBook, seed: int, namespaces: Namespaces
    ) -> None:  # fmt: skip
        self._memo = memo
        self._texts = texts
        self._book = book
        self._seed = seed
        self._namespaces = namespaces
        self._mark = secrets.token_hex(16)
        self._opening = f'{{"messages":["{self._mark}",'.encode()
        self._closing = f'"{self._mark}"]}}'.encode()

    def read(self, body: bytes, session_header: str | None) -> ModelCall | None:
        """The call that `read_call` gives, with KeyedText for a prompt that needs no tokenizer.

        None where the body has to be read whole: short, not cut anywhere, or not valid. Raises what `read_call` raises.
        """
        if len(body) < LEAST_BYTES:
            return None
        places = message_places(body)
        for count in range(len(places), max(0, len(places) - ATTEMPTS), -1):
            tail = self._tail(body[places[count - 1] :])
            if tail is not None:
                return self._read_at(body, places[:count], tail, session_header)
        return None

    def _read_at(self, body: bytes, places: list[int], tail: dict[str, Any], session_header: str | None) -> ModelCall | None:
        """With the body cut at the last of `places`."""
        digests = self._digests(body, places, tail)
        if digests is None:
            return None
        known, span = self._memo.deepest(digests)
        if span is None:
            return self._read_new(memoryview(body)[: places[-1]], digests[-1], tail, session_header)
        assert isinstance(span, BodySpan)
        longer: BodySpan | None = span
        if known < len(places) - 1:
            longer = self._longer(span, body[places[known] : places[-1]], digests[-1])
        return None if longer is None else read_on(longer, tail, session_header)

    def _read_new(self, begun: memoryview, digest: bytes, tail: dict[str, Any], session_header: str | None) -> ModelCall | None:
        """Nothing of the body is known: both parts are read, and the first is remembered."""
        head = loads(b"".join((begun, self._closing)))
        messages = head.get("messages") if type(head) is dict else None
        if type(messages) is not list or not messages or messages.pop() != self._mark:
            return None
        count = len(messages)
        fields: dict[str, Any] = head | tail
        fields["messages"] = messages + tail["messages"]
        call = read_fields(Family.CHAT, fields, session_header)
        prompt = call.prompt
        named = in_namespace(call, self._namespaces)
        if not isinstance(prompt, ChatPrompt) or self._book.for_model(named.model) is not None:
            return call
        root = root_of(named, KeyForm.TEXT)
        data = chat_text(prompt.messages, preamble_of(prompt)).encode("utf-8", "surrogatepass")
        keys = self._texts.chain(data, root)
        kept = {name: head[name] for name in CALL_FIELDS if name in head}
        if all(is_plain(value) for value in kept.values()):
            size = len(data) - len(chat_text(prompt.messages[count:]).encode("utf-8", "surrogatepass"))
            steps = size // TEXT_STEP_BYTES
            known = keys[: steps * STEP_KEYS]
            rest = data[steps * TEXT_STEP_BYTES : size]
            self._keep(BodySpan(digest, None, known, known[-1] if known else root, rest, size, kept))
        return call._replace(prompt=KeyedText(keys, token_estimate(len(data))))

    def _longer(self, span: BodySpan, more: bytes, digest: bytes) -> BodySpan | None:
        """The span that ends `more` behind `span`; None if that is no place between two of its messages, or not valid."""
        fields = loads(self._opening + more + self._closing)
        if fields is None or len(fields) != 1:
            return None
        messages = fields["messages"]
        if len(messages) < 3 or messages[0] != self._mark or messages[-1] != self._mark:
            return None
        try:
            checked_messages(messages[1:-1])
        except InvalidField:
            return None
        text = chat_text(messages[1:-1]).encode("utf-8", "surrogatepass")
        data = span.rest + text
        keys = text_chain(data, span.last_key)
        last_key = keys[-1] if keys else span.last_key
        parent: Span | None = span
        if len(span.keys) < WHOLE_KEYS:
            parent, keys = span.parent, span.keys + keys
        rest = data[len(data) // TEXT_STEP_BYTES * TEXT_STEP_BYTES :]
        longer = BodySpan(digest, parent, keys, last_key, rest, span.tokens + len(text), span.head)
        self._keep(longer)
        return longer

    def _keep(self, span: BodySpan) -> None:
        self._memo.add(span)
        self._memo.commit(span)

    def _tail(self, rest: bytes) -> dict[str, Any] | None:
        """The fields from a place on, its message first of `messages`; None if no list of messages can go on there."""
        fields = loads(self._opening + rest)
        if type(fields) is not dict:
            return None
        messages = fields["messages"]
        if type(messages) is not list or not messages or messages[0] != self._mark:
            return None
        del messages[0]
        return fields

    def _digests(self, body: bytes, places: list[int], tail: dict[str, Any]) -> list[bytes] | None:
        """A digest for each place of the bytes before it and the CHAIN_FIELDS behind; None where these nest too deeply."""
        chosen = {name: tail[name] for name in CHAIN_FIELDS if name in tail}
        try:
            behind = orjson.dumps(chosen) if chosen else b""
        except TypeError:
            return None
        running = xxh3_128(b"body" + len(behind).to_bytes(8, "little") + behind, seed=self._seed)
        view = memoryview(body)
        digests = []
        begin = 0
        for place in places:
            running.update(view[begin:place])
            digests.append(running.digest())
            begin = place
        return digests


def read_on(span: BodySpan, tail: dict[str, Any], session_header: str | None) -> ModelCall | None:
    """The call of a body that goes on from a known place; None if it is not valid, for the error names its place."""
    try:
        checked_messages(tail["messages"])
        text = chat_text(tail["messages"]).encode("utf-8", "surrogatepass")
        keys = keys_up_to(span)
        keys += text_chain(span.rest + text, span.last_key)
        prompt = KeyedText(keys, token_estimate(span.tokens + len(text)))
        return read_fields(Family.CHAT, span.head | tail, session_header, prompt)
    except InvalidField:
        return None


def message_places(body: bytes) -> list[int]:
    """Where the last messages of the body may begin, ascending; none in its first LEAST_KNOWN_BYTES."""
    places: list[int] = []
    end = len(body)
    for _ in range(LOOKS):
        end = body.rfind(MESSAGE, LEAST_KNOWN_BYTES, end)
        if end < 0 or len(places) == PLACES:
            break
        if body[end - 1] in SEPARATORS or body[end - 16 : end].rstrip()[-1:] in SEPARATORS:
            places.append(end)
    places.reverse()
    return places


def loads(data: bytes) -> Any:
    """None for what orjson refuses; the whole body's reading tells why, or knows better."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def is_plain(value: Any) -> bool:
    """True for values whose size in memory is known."""
    return value is None or type(value) in (str, bool, int, float)
