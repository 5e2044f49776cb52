"""An engine that is asked for tokens, in this process: it has a tokenizer entry of its own, and moods."""

from array import array

from router.core.keys import TOKEN_BYTES
from router.tokens.book import TokenizerEntry
from router.tokens.template import TemplateFailed
from router.wire.engine_tokens import EngineTokens, NoTokens
from router.wire.openai_request import ChatPrompt, TextPrompt


class TokenEngine:
    """Renders and tokenises by `entry`. `shows_text` as llama.cpp does; `mood` is raised instead of an answer."""

    def __init__(self, entry: TokenizerEntry, *, shows_text: bool = True) -> None:
        self.entry = entry
        self.shows_text = shows_text
        self.takes_chats = True
        self.has_texts = True
        self.mood: Exception | None = None
        self.asked: list[ChatPrompt | TextPrompt] = []
        self.models: list[str | None] = []

    async def tokens(self, prompt: ChatPrompt | TextPrompt, model: str | None) -> EngineTokens:
        self.asked.append(prompt)
        self.models.append(model)
        if self.mood is not None:
            raise self.mood
        if isinstance(prompt, TextPrompt):
            return EngineTokens(self._ids(prompt.texts[0], prompt.add_special_tokens))
        if not self.takes_chats or self.entry.template is None:
            raise NoTokens("it reads `prompt` only", lasting=True)
        try:
            text, affixed = self.entry.chat_text(prompt)
        except TemplateFailed as error:
            raise NoTokens(str(error), lasting=True) from None
        return EngineTokens(self._ids(text, affixed), text if self.shows_text else None)

    async def text(self, ids: "array[int]", model: str | None) -> str:
        if not self.has_texts:
            raise NoTokens("it has no such route", lasting=True)
        return self.entry.decode(ids)

    def _ids(self, text: str, affixed: bool) -> "array[int]":
        packed = self.entry.encode(text)
        if affixed:
            packed = self.entry.prefix + packed + self.entry.suffix
        assert len(packed) % TOKEN_BYTES == 0
        return array("I", memoryview(packed).cast("I"))
