"""The `openai` SDK, unchanged, against the router: everything it does with an engine works the same."""

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.e2e.cluster import MODEL, Cluster, post

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say something about hedgehogs."}]
CLOCK: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time now",
        "parameters": {"type": "object", "properties": {"utc": {"type": "boolean"}}, "required": ["utc"]},
    },
}
# The tiny model calls no tool by itself; its answer is begun for it and llama.cpp's grammar does the rest.
CALL_BEGUN = '<tool_call>\n{"name": "get_time", "arguments": {"utc":'


def test_chat(client: openai.OpenAI) -> None:
    """A plain chat completion has text, a finish reason and usage with cached tokens."""
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=6, temperature=0)
    assert answer.model == MODEL and answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content
    assert answer.usage is not None and answer.usage.completion_tokens == 6
    assert answer.usage.prompt_tokens_details is not None


def test_streamed_chat_says_the_same(client: openai.OpenAI) -> None:
    """The pieces of a stream add up to the answer without streaming; usage comes last when asked for."""
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12, temperature=0)
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    usage = chunks[-1].usage
    assert usage is not None and whole.usage is not None and usage.prompt_tokens == whole.usage.prompt_tokens


@pytest.mark.parametrize("prompt", ["one two three", ["a b c", "d e f"], [504, 1223, 9], [[504, 1223], [9, 28]]])
def test_completions(client: openai.OpenAI, prompt: Any) -> None:
    """All four forms of a prompt, as text or token ids, one or several."""
    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0)
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    assert [choice.index for choice in answer.choices] == ([0, 1] if several else [0])
    assert all(choice.text for choice in answer.choices)


def test_streamed_completions(client: openai.OpenAI) -> None:
    """A streamed text completion adds up to the plain one."""
    whole = client.completions.create(model=MODEL, prompt="one two three", max_tokens=8, temperature=0)
    stream = client.completions.create(model=MODEL, prompt="one two three", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == whole.choices[0].text


def test_several_choices(client: openai.OpenAI) -> None:
    """`n` gives that many choices, in streams as chunks of different index."""
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3, n=2, temperature=0)
    assert sorted(choice.index for choice in answer.choices) == [0, 1]
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=3, n=2, temperature=0, stream=True)
    assert {choice.index for chunk in stream for choice in chunk.choices} == {0, 1}


def test_logprobs(client: openai.OpenAI) -> None:
    """Log probabilities come through for every token."""
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and len(logprobs.content) == 3
    assert all(len(token.top_logprobs) == 2 and token.logprob < 0 for token in logprobs.content)


def test_tools(client: openai.OpenAI) -> None:
    """A tool call comes back as the engine made it, streamed and not."""
    begun: list[ChatCompletionMessageParam] = [*HELLO, {"role": "assistant", "content": CALL_BEGUN}]
    answer = client.chat.completions.create(
        model=MODEL,
        messages=begun,
        max_tokens=80,
        temperature=0,
        tools=[CLOCK],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    calls = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert calls and calls[0].type == "function" and calls[0].function.name == "get_time"
    stream = client.chat.completions.create(
        model=MODEL,
        messages=begun,
        max_tokens=80,
        temperature=0,
        tools=[CLOCK],
        tool_choice="required",
        parallel_tool_calls=False,
        stream=True,
    )
    chunks = list(stream)
    pieces = [call.function for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    assert "".join(piece.name or "" for piece in pieces if piece) == "get_time"
    streamed = '{"utc":' + "".join(piece.arguments or "" for piece in pieces if piece)  # what was begun is not sent again
    assert json.loads(streamed) == json.loads(calls[0].function.arguments)


def test_structured_output(client: openai.OpenAI) -> None:
    """A response format reaches the engine: the answer is JSON of the schema."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    answer = client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=60,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema, "strict": True}},
    )
    content = answer.choices[0].message.content or ""
    assert content.lstrip().startswith("{") and '"ok"' in content


def test_models(client: openai.OpenAI) -> None:
    """The list is the union over the engines, each model once; a single one can be asked for."""
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_unknown_model(client: openai.OpenAI) -> None:
    """404 with the code that OpenAI uses, for requests and for the list."""
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(model="no-such-model", messages=HELLO)
    assert raised.value.code == "model_not_found" and raised.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


def test_engine_errors_come_through(client: openai.OpenAI, cluster: Cluster) -> None:
    """An engine's own 400 reaches the client as it was and does not count against the engine."""
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 5000}])
    assert raised.value.type == "exceed_context_size_error" and isinstance(raised.value.body, dict)
    assert raised.value.body["n_ctx"] == 2048
    assert {row["lifecycle"] for row in cluster.router.workers()} == {"ready"}


@pytest.mark.parametrize("body", [b'{"model": "tiny", "messages": [', b"[1, 2]", b'"text"', b""])
def test_malformed_bodies(cluster: Cluster, body: bytes) -> None:
    """What is no JSON object is refused by the router in the usual form, with a request id."""
    status, headers, answer = post(cluster.router.url + "/v1/chat/completions", body)
    error = json.loads(answer)["error"]
    assert status == 400 and error["type"] == "invalid_request_error" and error["message"] and headers["x-request-id"]


def test_request_id_is_the_callers(client: openai.OpenAI, cluster: Cluster) -> None:
    """An id that the client sends names the request everywhere: in the answer and in the decision."""
    answer = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, max_tokens=2, extra_headers={"X-Request-ID": "from-the-client-1"}
    )
    assert answer.headers["x-request-id"] == "from-the-client-1"
    assert cluster.decision("from-the-client-1")["outcome"] == "ok"
