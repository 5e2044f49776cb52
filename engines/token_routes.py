"""How each engine kind is asked for the tokens of a prompt: the routes beside the API that tokenise and do not compute.

Sources: vLLM 0.32 `/tokenize`, `/detokenize` (its tokenize protocol); SGLang 0.5.23 `/v1/tokenize`, in older releases without
`messages`; llama.cpp's server README on `/apply-template`, `/tokenize`, `/detokenize`; TGI 3 `/tokenize`, `/chat_tokenize`.
The other kinds have no such route: what they count shows in `usage.prompt_tokens` only.
"""

import asyncio
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from engines.adapter import mapping, rows
from engines.fetch import Answer, BadAnswer, EngineError, EngineHttp
from engines.openai import error_text
from router.wire.engine_tokens import EngineTokens, NoTokens, TokenRoutes, token_ids
from router.wire.openai_request import ChatPrompt, TextPrompt

ANSWER_LIMIT_BYTES = 32 * 1024 * 1024  # a million ids, or 300,000 with their texts
THREAD_BYTES = 256 * 1024  # parsing a longer answer would hold the event loop for a millisecond and more
CHAT_ARGUMENTS = ("documents", "reasoning_effort")  # fields of a chat, not of vLLM's question for its tokens
BUSY = (408, 429, 502, 503, 504)  # statuses that pass


class VllmTokens:
    """Some fields of a chat have no place in its question; as arguments of the template they mean the same."""

    def __init__(self, http: EngineHttp) -> None:
        self._http = http

    async def tokens(self, prompt: ChatPrompt | TextPrompt, model: str | None) -> EngineTokens:
        if isinstance(prompt, TextPrompt):
            body = text_fields(prompt)
        else:
            body = chat_fields(prompt)
            arguments = {name: body.pop(name) for name in CHAT_ARGUMENTS if name in body}
            if prompt.reasoning_effort is not None:
                arguments["enable_thinking"] = prompt.reasoning_effort != "none"
            if arguments:
                body["chat_template_kwargs"] = {**(prompt.template_kwargs or {}), **arguments}
        return EngineTokens(listed_ids(await ask(self._http, "/tokenize", named(body, model))))

    async def text(self, ids: "array[int]", model: str | None) -> str:
        answer = await ask(self._http, "/detokenize", named({"tokens": ids.tolist()}, model))
        return text_of(mapping(answer).get("prompt"))


class SglangTokens:
    """A chat is rendered as for an answer where its question leaves `add_generation_prompt` out.

    Releases that read `prompt` only refuse chats, which then stay unknown.
    """

    def __init__(self, http: EngineHttp) -> None:
        self._http = http

    async def tokens(self, prompt: ChatPrompt | TextPrompt, model: str | None) -> EngineTokens:
        if isinstance(prompt, TextPrompt):
            body = text_fields(prompt)
        else:
            body = chat_fields(prompt)
            body.pop("add_generation_prompt", None)
        return EngineTokens(listed_ids(await ask(self._http, "/v1/tokenize", named(body, model))))

    async def text(self, ids: "array[int]", model: str | None) -> str:
        body = named({"tokens": ids.tolist(), "skip_special_tokens": False}, model)
        return text_of(mapping(await ask(self._http, "/v1/detokenize", body)).get("text"))


class LlamaCppTokens:
    """A chat takes two questions: its text, then the tokens of that text as the engine reads it."""

    def __init__(self, http: EngineHttp) -> None:
        self._http = http

    async def tokens(self, prompt: ChatPrompt | TextPrompt, model: str | None) -> EngineTokens:
        rendered, special = None, True
        if isinstance(prompt, TextPrompt):
            text, special = prompt.texts[0], prompt.add_special_tokens
        else:
            answer = await ask(self._http, "/apply-template", named(chat_fields(prompt), model))
            text = rendered = text_of(mapping(answer).get("prompt"))
        body = {"content": text, "add_special": special, "parse_special": True}
        return EngineTokens(listed_ids(await ask(self._http, "/tokenize", named(body, model))), rendered)

    async def text(self, ids: "array[int]", model: str | None) -> str:
        answer = await ask(self._http, "/detokenize", named({"tokens": ids.tolist()}, model))
        return text_of(mapping(answer).get("content"))


class TgiTokens:
    """Answers with one object per token."""

    def __init__(self, http: EngineHttp) -> None:
        self._http = http

    async def tokens(self, prompt: ChatPrompt | TextPrompt, model: str | None) -> EngineTokens:
        if isinstance(prompt, TextPrompt):
            if not prompt.add_special_tokens:
                raise NoTokens("it tokenises texts with special tokens only", lasting=True)
            return EngineTokens(ids_of(await ask(self._http, "/tokenize", {"inputs": prompt.texts[0]})))
        answer = mapping(await ask(self._http, "/chat_tokenize", named(chat_fields(prompt), model)))
        return EngineTokens(ids_of(answer.get("tokenize_response")), text_of(answer.get("templated_text")))

    async def text(self, ids: "array[int]", model: str | None) -> str:
        raise NoTokens("it has no route from ids to text", lasting=True)


TOKEN_ROUTES: Mapping[str, Callable[[EngineHttp], TokenRoutes]] = {
    "vllm": VllmTokens,
    "sglang": SglangTokens,
    "llama.cpp": LlamaCppTokens,
    "tgi": TgiTokens,
}


def token_routes_of(kind: str, http: EngineHttp) -> TokenRoutes | None:
    """None for a kind that cannot be asked."""
    routes = TOKEN_ROUTES.get(kind)
    return None if routes is None else routes(http)


def text_fields(prompt: TextPrompt) -> dict[str, Any]:
    """The first text of a body, as vLLM and SGLang are asked about it."""
    return {"prompt": prompt.texts[0], "add_special_tokens": prompt.add_special_tokens}


def chat_fields(prompt: ChatPrompt) -> dict[str, Any]:
    """The fields of a chat body that decide its tokens, as the client gave them."""
    fields: dict[str, Any] = {"messages": prompt.messages}
    for name, value in (
        ("tools", prompt.tools),
        ("chat_template_kwargs", prompt.template_kwargs),
        ("documents", prompt.documents),
        ("reasoning_effort", prompt.reasoning_effort),
    ):
        if value is not None:
            fields[name] = value
    if prompt.continue_final_message:
        fields["continue_final_message"] = True
    if not prompt.add_generation_prompt or prompt.continue_final_message:
        fields["add_generation_prompt"] = False
    return fields


def named(body: dict[str, Any], model: str | None) -> dict[str, Any]:
    return body if model is None else {"model": model, **body}


async def ask(http: EngineHttp, path: str, body: dict[str, Any]) -> Any:
    """The JSON value of the answer. NoTokens for whatever else happens."""
    try:
        data = orjson.dumps(body)
    except TypeError:  # a lone surrogate, an integer beyond 64 bits
        raise NoTokens("the prompt cannot be sent as JSON", lasting=True) from None
    try:
        answer = await http.post(path, data, limit_bytes=ANSWER_LIMIT_BYTES)
        if answer.ok:
            return answer.json() if len(answer.body) <= THREAD_BYTES else await asyncio.to_thread(answer.json)
    except EngineError as error:
        raise NoTokens(str(error), lasting=isinstance(error, BadAnswer)) from None
    raise NoTokens(refusal(answer), lasting=answer.status not in BUSY)


def refusal(answer: Answer) -> str:
    words = error_text(answer)
    return f"{answer.path} answered {answer.status}" + (f": {words}" if words else "")


def listed_ids(answer: Any) -> "array[int]":
    """The ids in an answer's `tokens`. NoTokens where that is no list of them."""
    return token_ids(mapping(answer).get("tokens"))


def ids_of(value: Any) -> "array[int]":
    """The ids of a list of `{"id": …}` objects. NoTokens if any of them has none."""
    tokens = rows(value)
    if not isinstance(value, list) or len(tokens) != len(value):
        raise NoTokens("the answer holds no list of tokens", lasting=True)
    return token_ids([token.get("id") for token in tokens])


def text_of(value: Any) -> str:
    if not isinstance(value, str):
        raise NoTokens("the answer holds no text where one is due", lasting=True)
    return value
