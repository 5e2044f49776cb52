"""Reading a call: what routing takes from each API's body, and which bodies it refuses."""

import random
from array import array
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadRequest, InvalidField, MalformedJson
from router.settings import TokenSettings
from router.wire.openai_request import (
    SESSION_CHARS,
    ChatPrompt,
    Family,
    KeyedText,
    ModelCall,
    RawPrompt,
    TextPrompt,
    TokenPrompt,
    read_call,
    read_fields,
)

LIMITS = TokenSettings()
HELLO = [{"role": "user", "content": "hello"}]


def read(path: str, fields: Any, session: str | None = None) -> ModelCall:
    return read_call(path, fields if isinstance(fields, bytes) else orjson.dumps(fields), session, LIMITS)


def chat(**fields: Any) -> ModelCall:
    return read("/v1/chat/completions", {"model": "m", "messages": HELLO} | fields)


def chat_prompt(**fields: Any) -> ChatPrompt:
    prompt = chat(**fields).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


@pytest.mark.parametrize(
    ("path", "family"),
    [
        ("/v1/chat/completions", Family.CHAT),
        ("/chat/completions?x=1", Family.CHAT),
        ("/v1/completions", Family.COMPLETIONS),
        ("/v1/embeddings", Family.EMBEDDINGS),
        ("/v1/responses", Family.RESPONSES),
        ("/v1/messages", Family.MESSAGES),
        ("/v1/rerank", Family.GENERIC),
        ("/v1/messages/count_tokens", Family.GENERIC),
    ],
)
def test_family_is_that_of_the_path(path: str, family: Family) -> None:
    """The path alone decides the family; a query does not matter."""
    body = {"model": "m", "messages": HELLO, "prompt": "p", "input": "i"}
    assert read(path, body).family is family


def test_chat_fields() -> None:
    """All that a template may read is taken along, with the API's defaults where absent."""
    assert chat() == ModelCall(Family.CHAT, "m", prompt=ChatPrompt(HELLO))
    prompt = chat_prompt(
        tools=[{"type": "function"}],
        documents=[{"text": "d"}],
        chat_template_kwargs={"enable_thinking": False},
        reasoning_effort="low",
        add_generation_prompt=False,
        continue_final_message=True,
        chat_template="{{ 1 }}",
    )
    assert prompt == ChatPrompt(
        HELLO, [{"type": "function"}], {"enable_thinking": False}, [{"text": "d"}], "low", False, True, True
    )
    assert chat_prompt(tools=[], documents="x", reasoning_effort=3) == ChatPrompt(HELLO)


def test_common_fields() -> None:
    """Stream, salt, adapter and n; null counts as absent, an odd n as 1."""
    call = chat(stream=True, cache_salt="s", lora=[{"id": 0, "scale": 1}], n=3)
    assert (call.stream, call.salt, call.adapter, call.n) == (True, "s", '{"lora": [{"id": 0, "scale": 1}]}', 3)
    call = chat(stream=None, model=None, cache_salt=4, n="3")
    assert (call.stream, call.model, call.salt, call.adapter, call.n) == (False, None, None, None, 1)
    assert chat(n=True).n == chat(n=-2).n == 1
    assert chat(lora_path="a").adapter != chat(lora_path="b").adapter


def test_a_prompt_read_before_is_taken_as_it_is() -> None:
    """Only the fields besides the prompt are read then, and checked as ever."""
    prompt = KeyedText(array("Q", [1]), 7)
    assert read_fields(Family.CHAT, {"model": "m", "n": 2}, "s", prompt) == ModelCall(
        Family.CHAT, "m", prompt=prompt, session="s", n=2
    )
    with pytest.raises(InvalidField):
        read_fields(Family.CHAT, {"model": 5}, None, prompt)


@pytest.mark.parametrize(
    ("header", "fields", "session"),
    [
        ("h", {"prompt_cache_key": "p", "session_id": "s"}, "h"),
        (None, {"prompt_cache_key": "p", "session_id": "s"}, "p"),
        (None, {"session_id": "s"}, "s"),
        (None, {"user": "u"}, None),
        ("", {"prompt_cache_key": 5}, None),
    ],
)
def test_session_order(header: str | None, fields: dict[str, Any], session: str | None) -> None:
    """Header X-Session-ID, then prompt_cache_key, then session_id; `user` names a person, not a conversation."""
    assert read("/v1/chat/completions", {"model": "m", "messages": HELLO} | fields, header).session == session


def test_long_sessions_are_digested() -> None:
    """A session name is remembered per worker choice, so its size is bounded; different ones stay different."""
    one, other = (read("/v1/rerank", b"", letter * 5000).session for letter in "ab")
    assert one is not None and other is not None and one != other
    assert len(one) <= SESSION_CHARS


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 5}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [*HELLO, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": {"text": "x"}}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    ],
)
def test_chat_refusals(fields: dict[str, Any], param: str) -> None:
    """Wrong types are 400 with the field named; nothing else of the body is judged."""
    with pytest.raises(InvalidField) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"{'a': 1}", b"\xff\xfe\xfa", b'{"a": "\xff"}', b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000],
    ids=["empty", "open", "quotes", "binary", "latin1", "deep-list", "deep-object", "digits"],
)
def test_malformed_json(body: bytes) -> None:
    """What no JSON reader takes, and nesting that would blow a stack, is 400 malformed_json."""
    with pytest.raises(MalformedJson):
        read("/v1/chat/completions", body)


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"1"])
def test_body_must_be_an_object(body: bytes) -> None:
    """JSON that is no object is 400 invalid_field."""
    with pytest.raises(InvalidField):
        read("/v1/completions", body)


def test_json_that_engines_take() -> None:
    """NaN and lone surrogates are no JSON to orjson, but Python engines read them: so do we."""
    body = b'{"model": "m", "temperature": NaN, "messages": [{"role": "user", "content": "\\ud800"}]}'
    call = read("/v1/chat/completions", body)
    assert isinstance(call.prompt, ChatPrompt)
    assert call.prompt.messages[0]["content"] == "\ud800"


@pytest.mark.parametrize(
    ("content", "multimodal"),
    [
        ([{"type": "text", "text": "a"}, "b", {"type": "refusal", "refusal": "no"}], False),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}], True),
        (None, False),
    ],
)
def test_multimodal(content: Any, multimodal: bool) -> None:
    """A part without text makes a chat multimodal: its tokens are not known here."""
    prompt = chat_prompt(messages=[{"role": "user", "content": content}, *HELLO])
    assert (prompt.multimodal, prompt.in_parts) == (multimodal, isinstance(content, list))


@pytest.mark.parametrize(
    ("value", "prompt"),
    [
        ("text", TextPrompt(("text",))),
        (["one", "two"], TextPrompt(("one", "two"))),
        ([1, 2, 4294967295], TokenPrompt((array("I", [1, 2, 4294967295]),))),
        ([[1, 2], [3]], TokenPrompt((array("I", [1, 2]), array("I", [3])))),
        ("", None),
        ([], None),
        ([""], None),
        ([[]], None),
        (None, None),
    ],
)
def test_prompt_shapes(value: Any, prompt: Any) -> None:
    """The four shapes of `prompt` and `input`; an empty one is no error but cannot be keyed."""
    for path, name in (("/v1/completions", "prompt"), ("/v1/embeddings", "input")):
        call = read(path, {"model": "m", name: value})
        assert call.prompt == prompt
        assert call.unkeyed_reason == ("empty_prompt" if prompt is None else None)


@pytest.mark.parametrize(
    "value",
    [
        5,
        True,
        {"a": 1},
        ["a", 1],
        [1, "a"],
        [1, -1],
        [1, True],
        [True],
        [1.5],
        [1, 2**32],
        [[1], 2],
        [[1], ["a"]],
        [None],
        [{}],
    ],
)
def test_prompt_refusals(value: Any) -> None:
    """Mixed lists, booleans, negative or oversized ids and other types are 400 with the field named."""
    with pytest.raises(InvalidField) as caught:
        read("/v1/completions", {"model": "m", "prompt": value})
    assert caught.value.param == "prompt"


def test_anthropic_messages() -> None:
    """System text, a string or blocks, counts as a message before the others."""
    call = read("/v1/messages", {"model": "m", "system": "s", "messages": HELLO, "tools": [{"name": "t"}]})
    system = {"role": "system", "content": "s"}
    assert call.prompt == ChatPrompt([system, *HELLO], [{"name": "t"}], rendered=False)
    assert read("/v1/messages", {"messages": HELLO}).prompt == ChatPrompt(HELLO, rendered=False)
    with pytest.raises(InvalidField):
        read("/v1/messages", {"messages": []})


def test_responses() -> None:
    """Input as text or items, instructions before it; without input there is nothing to key."""
    call = read("/v1/responses", {"model": "m", "instructions": "be brief", "input": "hi"})
    system, user = {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}
    assert call.prompt == ChatPrompt([system, user], rendered=False)
    items = [{"type": "function_call_output", "output": "1"}]
    assert read("/v1/responses", {"input": items}).prompt == ChatPrompt(items, rendered=False)
    assert read("/v1/responses", {"previous_response_id": "r"}).unkeyed_reason == "empty_prompt"
    with pytest.raises(InvalidField):
        read("/v1/responses", {"input": ["text"]})
    with pytest.raises(InvalidField):
        read("/v1/responses", {"input": 5})


@pytest.mark.parametrize(
    ("body", "model", "stream", "reason"),
    [
        (b"", None, False, "path"),
        (b'  {"model": "m", "stream": true, "session_id": "s"}', "m", True, "path"),
        (b'{"model": 5}', None, False, "path"),
        (b'{"model": ', None, False, "not_json"),
        (b'[{"model": "m"}]', None, False, "not_json"),
        (b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--b--\r\n', "whisper", False, "not_json"),
        (b"\x00\x01", None, False, "not_json"),
        (b'{"model": "m", "text": "' + b"x" * 4096 + b'"}', "m", False, "path"),
    ],
    ids=["get", "json", "number", "broken", "list", "multipart", "binary", "large"],
)
def test_generic_paths_are_never_refused(body: bytes, model: str | None, stream: bool, reason: str) -> None:
    """Other paths are passed on whatever they hold; a model is taken where it can be seen, and the reason is counted."""
    call = read_call("/v1/audio/transcriptions", body, None, TokenSettings(max_keyed_body_bytes=2048))
    assert (call.model, call.stream, call.unkeyed_reason, call.prompt) == (model, stream, reason, None)


@pytest.mark.parametrize(
    ("path", "fields", "call"),
    [
        ("/generate", {"inputs": "hi"}, ModelCall(Family.GENERIC, prompt=TextPrompt(("hi",)))),
        (
            "/generate_stream?x=1",
            {"inputs": "hi", "parameters": {"adapter_id": "a"}},
            ModelCall(Family.GENERIC, None, True, TextPrompt(("hi",)), adapter='{"adapter_id": "a"}'),
        ),
        (
            "/generate",
            {"text": ["a", "b"], "stream": True, "model": "m", "extra_key": "t", "session_id": "s"},
            ModelCall(Family.GENERIC, "m", True, TextPrompt(("a", "b")), salt="t", session="s"),
        ),
        ("/generate", {"input_ids": [1, 2]}, ModelCall(Family.GENERIC, prompt=TokenPrompt((array("I", [1, 2]),)))),
        ("/v2/models/m/generate", {"text_input": "hi"}, ModelCall(Family.GENERIC, "m", prompt=TextPrompt(("hi",)))),
        ("/v2/models/m/infer", {"inputs": []}, ModelCall(Family.GENERIC, "m", unkeyed_reason="empty_prompt")),
        ("/completion", {"prompt": [1, "b"]}, ModelCall(Family.GENERIC, unkeyed_reason="path")),
        (
            "/generate",
            {"text": 5, "lora_path": "a"},
            ModelCall(Family.GENERIC, unkeyed_reason="path", adapter='{"lora_path": "a"}'),
        ),
        ("/generate", [1], ModelCall(Family.GENERIC, unkeyed_reason="not_json")),
    ],
)
def test_engines_own_generate_routes(path: str, fields: Any, call: ModelCall) -> None:
    """Prompts of TGI, SGLang, Triton and llama.cpp are read where they stand; what is none is the engine's to refuse."""
    assert read_call(path, orjson.dumps(fields), None, TokenSettings()) == call


def test_engines_own_routes_with_other_bodies() -> None:
    """The path still tells the model; a large body is keyed by its first bytes."""
    binary = b'{"inputs":[]}\x00\x01'
    assert read_call("/v2/models/m/infer", binary, "s", TokenSettings()) == ModelCall(
        Family.GENERIC, "m", unkeyed_reason="not_json", session="s"
    )
    large = b'{"text_input": "' + b"x" * 2000 + b'"}'
    call = read_call("/v2/models/m/generate_stream", large, None, TokenSettings(max_keyed_body_bytes=1024))
    assert call == ModelCall(Family.GENERIC, "m", True, RawPrompt(large[:1024]))
    large = b'{"model": "n", "stream": true, "text": "' + b"x" * 2000 + b'"}'
    call = read_call("/generate", large, None, TokenSettings(max_keyed_body_bytes=1024))
    assert call == ModelCall(Family.GENERIC, "n", True, RawPrompt(large[:1024]))


def test_large_bodies_are_not_parsed() -> None:
    """Above max_keyed_body_bytes the first bytes are the prompt, and the model is searched for."""
    body = orjson.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "x" * 4096}]})
    call = read_call("/v1/chat/completions", body, "s", TokenSettings(max_keyed_body_bytes=1024))
    assert call == ModelCall(Family.CHAT, "m", True, RawPrompt(body[:1024]), session="s")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(["messages", "prompt", "input", "system", "model", "stream", "tools", "n", "lora"]),
    json_values,
    st.randoms(),
)
def test_any_value_anywhere_is_read_or_refused(name: str, value: Any, rng: random.Random) -> None:
    """Whatever a field holds, a call comes out or BadRequest is raised, never another error."""
    fields = {"model": "m", "messages": HELLO, "prompt": "p", "input": "i", name: value}
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/other"):
        body = bytearray(orjson.dumps(fields))
        for _ in range(rng.randrange(3)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        try:
            read_call(path, bytes(body), None, LIMITS)
        except BadRequest as error:
            assert error.status == 400


def test_fields_that_are_kept_are_bounded() -> None:
    """A model name is kept with each decision, an adapter in the chain's root: neither may be huge or endlessly deep."""
    long = "m" * 513
    with pytest.raises(InvalidField):
        read_call("/v1/completions", orjson.dumps({"model": long, "prompt": "x"}), None, TokenSettings())
    assert read_call("/tokenize", orjson.dumps({"model": long}), None, TokenSettings()).model is None
    deep = b'{"model":"m","prompt":"x","lora":' + b"[" * 900 + b"]" * 900 + b"}"
    try:
        read_call("/v1/completions", deep, None, TokenSettings())
    except InvalidField as error:
        assert error.param == "lora"
    deeper = b'{"model":"m","prompt":"x","lora":' + b"[" * 1020 + b"]" * 1020 + b"}"
    with pytest.raises(InvalidField):
        read_call("/v1/completions", deeper, None, TokenSettings())
