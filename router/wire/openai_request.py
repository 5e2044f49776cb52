"""What routing needs to know of a request body: family, model, stream, session, and the prompt in one of five shapes.

Read little and change nothing: unknown fields are the engine's business. Only what would make the router's own reading
ambiguous is refused (BadRequest).
"""

import json
from array import array
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import orjson
from xxhash import xxh3_128_hexdigest

from router.errors import InvalidField, MalformedJson
from router.settings import TokenSettings
from router.wire.native_request import NativeRoute, native_adapter, native_prompt, native_route, native_salt
from router.wire.raw_body import scan_json_head, scan_multipart

MODEL_CHARS = 512  # model names are kept with decisions
SESSION_CHARS = 128  # a longer session name is remembered by its digest


class Family(StrEnum):
    """The API a path belongs to; it decides the shape of errors and streams as well as where the prompt is."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    GENERIC = "generic"


UnkeyedReason = Literal[
    "path",  # the path carries no prompt the router reads
    "not_json",
    "empty_prompt",
    "client_template",  # a template in the request is code of a stranger: never rendered
    "multimodal",  # the engine's tokens for an image are not known here
    "template_error",
    "no_template",
    "no_cuts",  # nowhere to cut a very long text: tokenising it would stall the loop
    "not_utf8",  # a lone surrogate: no tokenizer takes it
    "tokens_differ",  # the tokenizer here makes other tokens than the engines, and none of them can be asked
    "engine_asked",  # nothing amiss: an engine told the tokens
    "engine_late",  # asked for the tokens, an engine had not answered within the deadline
    "engine_failed",  # asked for the tokens, no engine told them
    "asks_full",  # too many prompts wait for an engine to tell their tokens
]

# What a call holds besides its prompt is read from these.
CALL_FIELDS = (
    "model",
    "stream",
    "n",
    "cache_salt",
    "lora",
    "lora_path",
    "adapter_id",
    "prompt_cache_key",
    "session_id",
)

FAMILIES: Mapping[str, Family] = {
    f"{prefix}{path}": family
    for prefix in ("/v1", "")
    for path, family in {
        "/chat/completions": Family.CHAT,
        "/completions": Family.COMPLETIONS,
        "/embeddings": Family.EMBEDDINGS,
        "/responses": Family.RESPONSES,
        "/messages": Family.MESSAGES,
    }.items()
}


class ChatPrompt(NamedTuple):
    """Messages and all that a chat template may read. `rendered` is False where no engine template takes it as it is.

    `in_parts`: the content of some message is a list.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    template_kwargs: dict[str, Any] | None = None
    documents: list[Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    has_client_template: bool = False
    multimodal: bool = False
    rendered: bool = True
    in_parts: bool = False


class TextPrompt(NamedTuple):
    texts: tuple[str, ...]
    add_special_tokens: bool = True


class TokenPrompt(NamedTuple):
    """Token ids, one array of typecode 'I' per prompt."""

    prompts: "tuple[array[int], ...]"


class RawPrompt(NamedTuple):
    """The first bytes of a body too large to be parsed."""

    head: bytes


class KeyedText(NamedTuple):
    """A chat whose text has been chained as it was read; `tokens` is an estimate."""

    keys: "array[int]"
    tokens: int


Prompt = ChatPrompt | TextPrompt | TokenPrompt | RawPrompt | KeyedText


class ModelCall(NamedTuple):
    """One request as routing sees it. `prompt` is None exactly where it cannot be keyed at all; `unkeyed_reason` says why."""

    family: Family
    model: str | None = None
    stream: bool = False
    prompt: Prompt | None = None
    unkeyed_reason: UnkeyedReason | None = None
    salt: str | None = None
    adapter: str | None = None
    session: str | None = None
    n: int = 1


def read_call(path: str, body: bytes, session_header: str | None, limits: TokenSettings) -> ModelCall:
    """The call in `body`. `path` may carry a query.

    The session is the first there is of: header X-Session-ID, `prompt_cache_key`, `session_id`. A body above
    `max_keyed_body_bytes` is not parsed: its model is searched for and its first bytes are the prompt.
    Raises MalformedJson or InvalidField on the paths of FAMILIES; on others whatever cannot be read is passed on unread.
    """
    path = path.partition("?")[0]
    family = FAMILIES.get(path, Family.GENERIC)
    if family is Family.GENERIC:
        native = native_route(path)
        if native is not None:
            return read_native(native, body, session_header, limits)
        return read_generic(body, session_header, limits)
    if len(body) > limits.max_keyed_body_bytes:
        return read_large(family, body, session_header, limits)
    fields = parse(body)
    if not isinstance(fields, dict):
        raise InvalidField("the body must be a JSON object")
    return read_fields(family, fields, session_header)


def read_fields(family: Family, fields: dict[str, Any], session_header: str | None, prompt: Prompt | None = None) -> ModelCall:
    """The call of a body with these fields, all that CALL_FIELDS names but for a `prompt` that was read before.

    Raises InvalidField.
    """
    model = fields.get("model")
    if model is not None and (not isinstance(model, str) or len(model) > MODEL_CHARS):
        raise InvalidField(f"`model` must be a string of at most {MODEL_CHARS} characters", param="model")
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidField("`stream` must be true or false", param="stream")
    if prompt is None:
        prompt = READERS[family](fields)
    n = fields.get("n")
    return ModelCall(
        family,
        model,
        bool(stream),
        prompt,
        "empty_prompt" if prompt is None else None,
        text_or_none(fields.get("cache_salt")),
        adapter_of(fields),
        session_of(session_header, fields),
        n if type(n) is int and n > 1 else 1,
    )


def parse(body: bytes) -> Any:
    """The JSON value of a body; what orjson refuses but engines take (NaN, lone surrogates) goes through `json`."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    try:
        return json.loads(body)
    except RecursionError:
        raise MalformedJson("the body is nested too deeply") from None
    except ValueError:
        raise MalformedJson(f"the body is not JSON: {reason}") from None


def read_generic(body: bytes, session_header: str | None, limits: TokenSettings) -> ModelCall:
    """A path whose prompt is not read: only model, stream and session, and those without complaint."""
    start = body[:64].lstrip()[:1]
    session = session_name(session_header)
    if start == b"-":
        form = scan_multipart(body)
        return ModelCall(Family.GENERIC, form.model, form.stream, unkeyed_reason="not_json", session=session)
    if start != b"{":
        return ModelCall(Family.GENERIC, unkeyed_reason="not_json" if body else "path", session=session)
    if len(body) > limits.max_keyed_body_bytes:
        head = scan_json_head(body)
        return ModelCall(Family.GENERIC, head.model, head.stream, unkeyed_reason="path", session=session)
    try:
        fields = parse(body)
    except MalformedJson:
        return ModelCall(Family.GENERIC, unkeyed_reason="not_json", session=session)
    return ModelCall(
        Family.GENERIC,
        model_or_none(fields.get("model")),
        fields.get("stream") is True,
        unkeyed_reason="path",
        session=session_of(session_header, fields),
    )


def read_native(route: NativeRoute, body: bytes, session_header: str | None, limits: TokenSettings) -> ModelCall:
    """An engine's own generate route. What is no prompt here is the engine's to refuse: it gets no keys."""
    if len(body) > limits.max_keyed_body_bytes:
        large = read_large(Family.GENERIC, body, session_header, limits)
        return large._replace(model=route.model or large.model, stream=large.stream if route.streams is None else route.streams)
    try:
        fields = parse(body)
    except MalformedJson:
        fields = None
    if not isinstance(fields, dict):
        session = session_name(session_header)
        return ModelCall(Family.GENERIC, route.model, bool(route.streams), unkeyed_reason="not_json", session=session)
    reason: UnkeyedReason = "empty_prompt"
    prompt, adapter = None, None
    try:
        adapter = adapter_of(native_adapter(fields))
        prompt = text_or_tokens(native_prompt(route, fields), "prompt")
    except InvalidField:
        reason = "path"
    return ModelCall(
        Family.GENERIC,
        route.model or model_or_none(fields.get("model")),
        fields.get("stream") is True if route.streams is None else route.streams,
        prompt,
        None if prompt is not None else reason,
        text_or_none(native_salt(fields)),
        adapter,
        session_of(session_header, fields),
    )


def read_large(family: Family, body: bytes, session_header: str | None, limits: TokenSettings) -> ModelCall:
    head = scan_json_head(body)
    prompt = RawPrompt(body[: limits.max_keyed_body_bytes])
    return ModelCall(family, head.model, head.stream, prompt, session=session_name(session_header))


def read_chat(fields: dict[str, Any]) -> ChatPrompt:
    messages, in_parts, multimodal = checked_messages(fields.get("messages"))
    kwargs = fields.get("chat_template_kwargs")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise InvalidField("`chat_template_kwargs` must be an object", param="chat_template_kwargs")
    return ChatPrompt(
        messages,
        list_or_none(fields.get("tools")),
        kwargs,
        list_or_none(fields.get("documents")),
        text_or_none(fields.get("reasoning_effort")),
        fields.get("add_generation_prompt") is not False,
        fields.get("continue_final_message") is True,
        fields.get("chat_template") is not None,
        multimodal,
        in_parts=in_parts,
    )


def checked_messages(messages: Any) -> tuple[list[dict[str, Any]], bool, bool]:
    """The messages, whether any is in parts, and whether any part is not text.

    InvalidField unless a non-empty list of objects with a string role and content of text, null or parts.
    """
    if not isinstance(messages, list) or not messages:
        raise InvalidField("`messages` must be a list of at least one message", param="messages")
    in_parts = multimodal = False
    for index, message in enumerate(messages):
        if type(message) is not dict:
            raise InvalidField(f"`messages[{index}]` must be an object", param=f"messages[{index}]")
        if type(message.get("role")) is not str:
            raise InvalidField(f"`messages[{index}].role` must be a string", param=f"messages[{index}].role")
        content = message.get("content")
        if type(content) is str or content is None:
            continue
        if not is_parts(content):
            name = f"messages[{index}].content"
            raise InvalidField(f"`{name}` must be a string, null or a list of parts", param=name)
        in_parts = True
        multimodal = multimodal or has_media(content)
    return messages, in_parts, multimodal


def is_parts(content: Any) -> bool:
    return type(content) is list and all(type(part) is dict or type(part) is str for part in content)


def has_media(parts: list[Any]) -> bool:
    """True if any part is not text."""
    for part in parts:
        if type(part) is dict and type(part.get("text")) is not str and type(part.get("refusal")) is not str:
            return True
    return False


def read_completion(fields: dict[str, Any]) -> Prompt | None:
    return text_or_tokens(fields.get("prompt"), "prompt")


def read_embedding(fields: dict[str, Any]) -> Prompt | None:
    return text_or_tokens(fields.get("input"), "input")


def text_or_tokens(value: Any, param: str) -> TextPrompt | TokenPrompt | None:
    """A string, a list of strings, a list of token ids or a list of such lists; None for nothing to key."""
    if isinstance(value, str):
        return TextPrompt((value,)) if value else None
    if value is None:
        return None
    if not isinstance(value, list):
        raise InvalidField(f"`{param}` must be a string, a list of strings, or token ids", param=param)
    if not value:
        return None
    first = type(value[0])
    if first is str:
        if set(map(type, value)) != {str}:
            raise InvalidField(f"`{param}` mixes strings with other values", param=param)
        return TextPrompt(tuple(value)) if value[0] else None
    lists = value if first is list else [value]
    prompts = tuple(token_ids(ids, param) for ids in lists)
    return TokenPrompt(prompts) if prompts[0] else None


def token_ids(ids: Any, param: str) -> "array[int]":
    """The ids packed. InvalidField for anything but whole numbers of 0 to 2^32 - 1; true and false are no numbers."""
    if type(ids) is list and set(map(type, ids)) <= {int}:
        try:
            return array("I", ids)
        except OverflowError:
            pass
    raise InvalidField(f"`{param}` must hold token ids only: whole numbers from 0", param=param)


def read_anthropic(fields: dict[str, Any]) -> ChatPrompt:
    """POST /v1/messages: the system text, a string or blocks, stands before the messages as one more of them."""
    messages, _, _ = checked_messages(fields.get("messages"))
    system = fields.get("system")
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]
    return ChatPrompt(messages, list_or_none(fields.get("tools")), rendered=False)


def read_response(fields: dict[str, Any]) -> ChatPrompt | None:
    """POST /v1/responses: `input` is text or a list of items; what an earlier response holds is not seen here."""
    given = fields.get("input")
    if given is None or given == "" or given == []:
        return None
    if isinstance(given, str):
        messages: list[dict[str, Any]] = [{"role": "user", "content": given}]
    elif isinstance(given, list) and all(type(item) is dict for item in given):
        messages = given
    else:
        raise InvalidField("`input` must be a string or a list of items", param="input")
    instructions = fields.get("instructions")
    if instructions is not None:
        messages = [{"role": "system", "content": instructions}, *messages]
    return ChatPrompt(messages, list_or_none(fields.get("tools")), rendered=False)


READERS = {
    Family.CHAT: read_chat,
    Family.COMPLETIONS: read_completion,
    Family.EMBEDDINGS: read_embedding,
    Family.RESPONSES: read_response,
    Family.MESSAGES: read_anthropic,
}


def session_of(header: str | None, fields: Mapping[str, Any]) -> str | None:
    return session_name(header or text_or_none(fields.get("prompt_cache_key")) or text_or_none(fields.get("session_id")))


def session_name(name: str | None) -> str | None:
    """The name, or its digest where it is long: sessions are remembered by count, so each must be small."""
    if name and len(name) > SESSION_CHARS:
        return xxh3_128_hexdigest(name.encode("utf-8", "surrogatepass"))
    return name or None


def adapter_of(fields: Mapping[str, Any]) -> str | None:
    """The LoRA fields of llama.cpp (`lora`), SGLang (`lora_path`) and TGI (`adapter_id`) as one text."""
    if "lora" in fields or "lora_path" in fields or "adapter_id" in fields:
        chosen = {name: fields[name] for name in ("lora", "lora_path", "adapter_id") if fields.get(name) is not None}
        try:
            return json.dumps(chosen, sort_keys=True) if chosen else None
        except RecursionError:
            raise InvalidField("an adapter field is nested too deeply", param=next(iter(chosen))) from None
    return None


def model_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) <= MODEL_CHARS else None


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def list_or_none(value: Any) -> list[Any] | None:
    return value if isinstance(value, list) and value else None
