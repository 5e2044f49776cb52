"""Chat templates rendered as transformers' `apply_chat_template` renders them, without importing transformers (1.5 s)."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.wire.openai_request import ChatPrompt

CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class TemplateFailed(Exception):
    """The template refused the chat or broke on it; the engine will most likely answer 400."""


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model wrote, for training; here its body stands as it is."""

    tags = {"generation"}  # noqa: RUF012 - the name and type jinja reads

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> ImmutableSandboxedEnvironment:
    """A sandbox with the filters and globals that templates of the Hugging Face hub expect."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> None:
    raise TemplateError(message)


def strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class ChatTemplate:
    """One model's templates. Raises TemplateError at birth if one does not parse."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        env = environment()
        self._special_tokens = dict(special_tokens)
        self._sources = dict(sources)
        self._compiled = {name: env.from_string(source) for name, source in sources.items()}
        self._reads_parts = {name: reads_parts(env.parse(source)) for name, source in sources.items()}

    def render(self, prompt: ChatPrompt) -> str:
        """The text an engine tokenises. TemplateFailed if the template raises or the chat does not fit it."""
        name = "tool_use" if prompt.tools and "tool_use" in self._compiled else "default"
        source = self._sources[name]
        try:
            messages = plain_messages(prompt.messages, self._reads_parts[name], "developer" in source)
            final = mark_final(messages) if prompt.continue_final_message else None
            text: str = self._compiled[name].render(self.variables(prompt, messages))
            return text if final is None else cut_at_tag(text)
        except Exception as error:  # a template is a program: anything may come out of it
            raise TemplateFailed(f"{type(error).__name__}: {error}") from None

    def variables(self, prompt: ChatPrompt, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Special tokens, then the request's own arguments, then what the request states apart (vLLM's order)."""
        given = {**self._special_tokens, **(prompt.template_kwargs or {})}
        if prompt.reasoning_effort is not None:
            given["reasoning_effort"] = prompt.reasoning_effort
            given["enable_thinking"] = prompt.reasoning_effort != "none"
        given.update(messages=messages, tools=prompt.tools, documents=prompt.documents)
        given["add_generation_prompt"] = prompt.add_generation_prompt and not prompt.continue_final_message
        return given


def plain_messages(messages: list[dict[str, Any]], in_parts: bool, has_developer: bool) -> list[dict[str, Any]]:
    """Messages as engines hand them to a template: content joined to text (or kept in parts), arguments as objects.

    The messages of the body are never changed; one that needs no change is passed on itself.
    """
    return [
        message
        if not in_parts and len(message) == 2 and type(message.get("content")) is str and message["role"] != "developer"
        else plain_message(message, in_parts, has_developer)
        for message in messages
    ]


def plain_message(message: Mapping[str, Any], in_parts: bool, has_developer: bool) -> dict[str, Any]:
    plain = {name: value for name, value in message.items() if value is not None}
    if plain["role"] == "developer" and not has_developer:
        plain["role"] = "system"
    content = message.get("content")
    if in_parts:
        plain["content"] = content_parts(content)
    elif not isinstance(content, str):
        plain["content"] = "\n".join(part["text"] for part in content_parts(content))
    reasoning = next((message[name] for name in REASONING_FIELDS if message.get(name) is not None), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    calls = plain.get("tool_calls")
    if isinstance(calls, list):
        plain["tool_calls"] = [with_object_arguments(call) for call in calls]
    return plain


def content_parts(content: Any) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [{"type": "text", "text": part if isinstance(part, str) else text_of(part)} for part in content]


def text_of(part: Mapping[str, Any]) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else str(part["refusal"])


def with_object_arguments(call: Any) -> Any:
    """A tool call whose arguments are JSON text gets them as the object that templates expect."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    arguments = function["arguments"]
    try:
        parsed = json.loads(arguments) if arguments else {}
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": parsed}}


def mark_final(messages: list[dict[str, Any]]) -> str:
    """Puts the tag behind the last message's text, in a copy of it, and returns the tag."""
    message = dict(messages[-1])
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + CONTINUE_TAG
    else:
        last = {**content[-1], "text": content[-1]["text"] + CONTINUE_TAG}
        message["content"] = [*content[:-1], last]
    messages[-1] = message
    return CONTINUE_TAG


def cut_at_tag(text: str) -> str:
    """What stands before the tag; ValueError if the template dropped it. A trimmed message loses its trailing space."""
    at = text.rindex(CONTINUE_TAG.strip())
    return text[:at] if text.startswith(CONTINUE_TAG, at) else text[:at].rstrip()


def reads_parts(tree: nodes.Template) -> bool:
    """True if the template loops over a message's content, as vLLM tells content in parts from content as text."""
    names = {"content"} & {node.name for node in tree.find_all(nodes.Name) if node.ctx == "param"}
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and is_content(assign.node, names):
            names.add(assign.target.name)
    return any(is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def is_content(node: nodes.Node, names: set[str]) -> bool:
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names
