"""Keys that need no tokenizer: token ids as they came, canonical text, the raw head of a large body, or none at all."""

from array import array
from typing import Any

from router.core.keys import chain, root, tokens_le
from router.core.types import KeyForm, PromptKeys
from router.tokens.byte_memo import ByteMemo
from router.wire.chat_text import chat_text
from router.wire.openai_request import ChatPrompt, KeyedText, ModelCall, RawPrompt, TextPrompt, TokenPrompt

BYTES_PER_TOKEN = 4  # of English, where no tokenizer tells
Namespaces = dict[str, tuple[str, str | None]]  # see Fleet.namespaces
RAW_BYTES = 512 * 1024  # of a body too large to be parsed; its hashing blocks the loop 0.6 ms


def direct_keys(call: ModelCall, memo: ByteMemo, reason: str | None = None) -> PromptKeys:
    """The keys of a call without a tokenizer; `reason` says why one was not used although there is one."""
    prompt = call.prompt
    if isinstance(prompt, KeyedText):
        return PromptKeys(prompt.keys, prompt.tokens, KeyForm.TEXT, True, False, reason)
    if isinstance(prompt, TokenPrompt):
        return token_keys(call, prompt)
    if isinstance(prompt, ChatPrompt):
        return text_keys(call, memo, chat_text(prompt.messages, preamble_of(prompt)), 0, reason)
    if isinstance(prompt, TextPrompt):
        return text_keys(call, memo, prompt.texts[0], sum(map(len, prompt.texts[1:])), reason)
    if isinstance(prompt, RawPrompt):
        return raw_keys(call, memo, prompt)
    return PromptKeys(array("Q"), 0, KeyForm.NONE, True, False, call.unkeyed_reason or "path")


def token_keys(call: ModelCall, prompt: TokenPrompt) -> PromptKeys:
    """The first prompt's chain; the tokens of all."""
    keys = chain(tokens_le(prompt.prompts[0]), root_of(call, KeyForm.TOKENS))
    return PromptKeys(keys, sum(map(len, prompt.prompts)), KeyForm.TOKENS)


def text_keys(call: ModelCall, memo: ByteMemo, text: str, more_chars: int, reason: str | None) -> PromptKeys:
    data = text.encode("utf-8", "surrogatepass")
    keys = memo.chain(data, root_of(call, KeyForm.TEXT))
    return PromptKeys(keys, token_estimate(len(data) + more_chars), KeyForm.TEXT, True, False, reason)


def raw_keys(call: ModelCall, memo: ByteMemo, prompt: RawPrompt) -> PromptKeys:
    """Such bodies are mostly images, whose bytes are no tokens: the estimate counts the hashed head only."""
    head = prompt.head[:RAW_BYTES]
    keys = memo.chain(head, root_of(call, KeyForm.RAW))
    return PromptKeys(keys, len(head) // BYTES_PER_TOKEN, KeyForm.RAW, True, False)


def preamble_of(prompt: ChatPrompt) -> list[tuple[str, Any]]:
    """What the template would read besides the messages: it goes before them, so that a text grows at its end."""
    return [
        (name, value)
        for name, value in (
            ("tools", prompt.tools),
            ("documents", prompt.documents),
            ("kwargs", prompt.template_kwargs),
            ("effort", prompt.reasoning_effort),
        )
        if value is not None
    ]


def token_estimate(text_bytes: int) -> int:
    return text_bytes // BYTES_PER_TOKEN + 1


def in_namespace(call: ModelCall, namespaces: Namespaces) -> ModelCall:
    """The call as one to the model by its first name, with an adapter, where it names an adapter or another name of a model."""
    if not namespaces or call.model is None or call.model not in namespaces:
        return call
    base, adapter = namespaces[call.model]
    if adapter is None:
        return call._replace(model=base)
    return call._replace(model=base, adapter=adapter if call.adapter is None else f"{adapter} {call.adapter}")


def root_of(call: ModelCall, form: KeyForm) -> int:
    return root(call.model or "", call.adapter, call.salt, form)
