"""engines.token_routes: what each kind is asked, and how its answers are read. Wire data made from the documentation.

The answers have the shapes that vLLM 0.32.0 and SGLang 0.5.23 were seen to give; TGI's are those of its source only
(router/src/server.rs of 3.x) and were not run live. llama.cpp's routes are tried against the real server in
tests/e2e/test_token_parity.py.
"""

import json
from array import array
from typing import Any

import pytest

from engines.token_routes import ANSWER_LIMIT_BYTES, THREAD_BYTES, TOKEN_ROUTES, token_routes_of
from router.wire.engine_tokens import EngineTokens, NoTokens, TokenRoutes
from router.wire.openai_request import ChatPrompt, TextPrompt
from tests.engines.fake_engine import HANGS, Connected, FakeEngine, Reply, as_json

MESSAGES = [{"role": "user", "content": "Zürich?"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CHAT = ChatPrompt(MESSAGES)
FULL = ChatPrompt(MESSAGES, TOOLS, {"a": 1}, [{"text": "d"}], "none", True, True)
TEXT = TextPrompt(("one", "two"))
BARE = TextPrompt(("one",), add_special_tokens=False)
IDS = as_json({"count": 2, "max_model_len": 8192, "tokens": [1, 2], "token_strs": None})

ASKED: list[tuple[str, ChatPrompt | TextPrompt, dict[str, Reply], dict[str, Any], str | None]] = [
    ("vllm", TEXT, {"/tokenize": IDS}, {"/tokenize": {"model": "m", "prompt": "one", "add_special_tokens": True}}, None),
    ("vllm", BARE, {"/tokenize": IDS}, {"/tokenize": {"model": "m", "prompt": "one", "add_special_tokens": False}}, None),
    ("vllm", CHAT, {"/tokenize": IDS}, {"/tokenize": {"model": "m", "messages": MESSAGES}}, None),
    (
        "vllm",
        FULL,
        {"/tokenize": IDS},
        {
            "/tokenize": {
                "model": "m",
                "messages": MESSAGES,
                "tools": TOOLS,
                "chat_template_kwargs": {
                    "a": 1,
                    "documents": [{"text": "d"}],
                    "reasoning_effort": "none",
                    "enable_thinking": False,
                },
                "continue_final_message": True,
                "add_generation_prompt": False,
            }
        },
        None,
    ),
    (
        "sglang",
        TEXT,
        {"/v1/tokenize": IDS},
        {"/v1/tokenize": {"model": "m", "prompt": "one", "add_special_tokens": True}},
        None,
    ),
    ("sglang", CHAT, {"/v1/tokenize": IDS}, {"/v1/tokenize": {"model": "m", "messages": MESSAGES}}, None),
    (
        "sglang",
        CHAT._replace(continue_final_message=True),
        {"/v1/tokenize": IDS},
        {"/v1/tokenize": {"model": "m", "messages": MESSAGES, "continue_final_message": True}},
        None,
    ),
    (
        "llama.cpp",
        TEXT,
        {"/tokenize": IDS},
        {"/tokenize": {"model": "m", "content": "one", "add_special": True, "parse_special": True}},
        None,
    ),
    (
        "llama.cpp",
        FULL,
        {"/apply-template": as_json({"prompt": "<s>x"}), "/tokenize": IDS},
        {
            "/apply-template": {
                "model": "m",
                "messages": MESSAGES,
                "tools": TOOLS,
                "chat_template_kwargs": {"a": 1},
                "documents": [{"text": "d"}],
                "reasoning_effort": "none",
                "continue_final_message": True,
                "add_generation_prompt": False,
            },
            "/tokenize": {"model": "m", "content": "<s>x", "add_special": True, "parse_special": True},
        },
        "<s>x",
    ),
    (
        "tgi",
        TEXT,
        {"/tokenize": as_json([{"id": 1, "text": "o", "start": 0, "stop": 1}, {"id": 2, "text": "ne", "start": 1, "stop": 3}])},
        {"/tokenize": {"inputs": "one"}},
        None,
    ),
    (
        "tgi",
        CHAT,
        {"/chat_tokenize": as_json({"tokenize_response": [{"id": 1}, {"id": 2}], "templated_text": "<s>x"})},
        {"/chat_tokenize": {"model": "m", "messages": MESSAGES}},
        "<s>x",
    ),
]


def routes(kind: str, http: Any) -> TokenRoutes:
    found = token_routes_of(kind, http)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "prompt", "replies", "asked", "text"), ASKED, ids=[f"{row[0]}-{number}" for number, row in enumerate(ASKED)]
)
async def test_each_kind_is_asked_its_way(
    kind: str, prompt: ChatPrompt | TextPrompt, replies: dict[str, Reply], asked: dict[str, Any], text: str | None
) -> None:
    """The routes in order, each with the fields that decide the tokens, and the ids (and text) of the answer."""
    async with FakeEngine(replies) as engine, Connected(engine) as http:
        told = await routes(kind, http).tokens(prompt, "m")
        assert told == EngineTokens(array("I", [1, 2]), text)
        assert dict(zip(engine.asked, map(json.loads, engine.bodies), strict=True)) == asked


@pytest.mark.parametrize(
    ("kind", "path", "answer", "body"),
    [
        ("vllm", "/detokenize", {"prompt": "<s>"}, {"tokens": [1, 2]}),
        ("sglang", "/v1/detokenize", {"text": "<s>"}, {"tokens": [1, 2], "skip_special_tokens": False}),
        ("llama.cpp", "/detokenize", {"content": "<s>"}, {"tokens": [1, 2]}),
    ],
)
async def test_ids_become_text(kind: str, path: str, answer: dict[str, str], body: dict[str, Any]) -> None:
    """What ids stand for, without a name where the request had none."""
    async with FakeEngine({path: as_json(answer)}) as engine, Connected(engine) as http:
        assert await routes(kind, http).text(array("I", [1, 2]), None) == "<s>"
        assert json.loads(engine.bodies[0]) == body


@pytest.mark.parametrize(
    ("reply", "lasting", "words"),
    [
        (None, True, "/tokenize answered 404"),
        (as_json({"error": {"message": "no such model"}}, 404), True, "/tokenize answered 404: no such model"),
        (as_json({}, 400), True, "400"),
        (as_json({}, 500), True, "500"),
        (as_json({}, 503), False, "503"),
        (as_json({}, 429), False, "429"),
        (Reply(b"<html>"), True, "not JSON"),
        (as_json({"tokens": "none"}), True, "no list of token ids"),
        (as_json([1, 2]), True, "no list of token ids"),
        (HANGS, False, "no answer"),
    ],
)
async def test_what_is_no_answer(reply: Reply | None, lasting: bool, words: str) -> None:
    """Every failure is NoTokens in words; only silence and overload pass."""
    replies = {} if reply is None else {"/tokenize": reply}
    async with FakeEngine(replies) as engine, Connected(engine, timeout_s=0.1) as http:
        with pytest.raises(NoTokens, match=words) as refused:
            await routes("vllm", http).tokens(TEXT, None)
        assert refused.value.lasting is lasting


@pytest.mark.parametrize("answer", [{"tokenize_response": None}, {"tokenize_response": [1]}, {"tokenize_response": [{}]}, []])
async def test_strange_tgi_answers(answer: Any) -> None:
    """Neither a missing list nor tokens without ids are taken."""
    async with FakeEngine({"/chat_tokenize": as_json(answer)}) as engine, Connected(engine) as http:
        with pytest.raises(NoTokens):
            await routes("tgi", http).tokens(CHAT, None)


async def test_what_is_never_asked() -> None:
    """What cannot be sent or has no route is refused without a question."""
    async with FakeEngine({}) as engine, Connected(engine) as http:
        for kind, prompt in (("vllm", TextPrompt(("\ud800",))), ("tgi", BARE)):
            with pytest.raises(NoTokens):
                await routes(kind, http).tokens(prompt, None)
        with pytest.raises(NoTokens):
            await routes("tgi", http).text(array("I", [1]), None)
        assert engine.asked == []
        assert token_routes_of("openai", http) is None


async def test_a_long_answer_is_parsed_in_a_thread() -> None:
    """A hundred thousand ids arrive whole; the limit is beyond a million."""
    ids = list(range(100_000))
    reply = as_json({"tokens": ids})
    assert THREAD_BYTES < len(reply.body) < ANSWER_LIMIT_BYTES
    async with FakeEngine({"/tokenize": reply}) as engine, Connected(engine) as http:
        assert (await routes("vllm", http).tokens(TEXT, None)).ids.tolist() == ids


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llama.cpp"])
async def test_no_text_in_the_answer(kind: str) -> None:
    """An answer without the text that is due is no answer."""
    replies = dict.fromkeys(("/detokenize", "/v1/detokenize", "/apply-template"), as_json({"prompt": 1}))
    async with FakeEngine(replies) as engine, Connected(engine) as http:
        with pytest.raises(NoTokens, match="no text"):
            await routes(kind, http).text(array("I", [1]), None)
        with pytest.raises(NoTokens):
            await TOKEN_ROUTES["llama.cpp"](http).tokens(CHAT, None)
