"""What the prompts of each model are keyed from: the tokenizer here, the engine's answer, or their text. Per request.

The tokenizer here is what a model begins with. Whoever compares its tokens with the engines' (`tokens.parity`) writes what
is to be used from then on; here it is only looked up.
"""

from enum import StrEnum

from router.core.token_tally import TokenTally
from router.core.types import WorkerId
from router.tokens.book import TokenizerBook, TokenizerEntry
from router.wire.openai_request import ChatPrompt, TextPrompt


class Shape(StrEnum):
    """Engines differ from a tokenizer by shape: a template may be the same until tools are given, or content comes in parts
    (SGLang joins them with a space, vLLM with a line end)."""

    CHAT = "chat"
    PARTS = "parts"
    TOOLS = "tools"
    TEXT = "text"


class KeySource(StrEnum):
    TOKENIZER = "tokenizer"
    ENGINE = "engine"
    TEXT = "text"


class ShapeKeys:
    """How prompts of one shape are keyed, and how often the engines counted their tokens otherwise."""

    __slots__ = ("askable", "asked", "counted", "source", "tokens", "why")

    def __init__(self) -> None:
        self.source = KeySource.TOKENIZER
        self.why = ""  # where it is not the tokenizer: what differs
        self.askable: tuple[WorkerId, ...] = ()  # who is asked where it is the engine
        self.tokens = 0  # stands for what those make of prompts: another number where they make other tokens
        self.counted = TokenTally()  # of prompts that the tokenizer here made tokens of
        self.asked = TokenTally()  # of prompts whose tokens an engine told


class ModelKeys:
    """The tokenizer of one model and what its prompts are keyed from."""

    __slots__ = ("chat", "entry", "parts", "text", "tools")

    def __init__(self, entry: TokenizerEntry) -> None:
        self.entry = entry
        self.chat = ShapeKeys()
        self.parts = ShapeKeys()
        self.tools = ShapeKeys()
        self.text = ShapeKeys()

    def of(self, prompt: ChatPrompt | TextPrompt) -> ShapeKeys:
        if isinstance(prompt, TextPrompt):
            return self.text
        if prompt.in_parts and (prompt.tools is None or self.parts.source is not KeySource.TOKENIZER):
            return self.parts
        return self.chat if prompt.tools is None else self.tools

    def by_shape(self, shape: Shape) -> ShapeKeys:
        return dict(self.shapes())[shape]

    def shapes(self) -> tuple[tuple[Shape, ShapeKeys], ...]:
        return (Shape.CHAT, self.chat), (Shape.PARTS, self.parts), (Shape.TOOLS, self.tools), (Shape.TEXT, self.text)


class KeySources:
    """By model name. Names that nobody listed share one entry, so that strange names in requests make none."""

    def __init__(self, book: TokenizerBook) -> None:
        self._by_model: dict[str, ModelKeys] = {}
        self.named = dict(book.by_model)  # those with a tokenizer of their own
        self.others = None if book.for_all is None else ModelKeys(book.for_all)
        for model in self.named:
            self.drop(model)

    def of(self, model: str | None) -> ModelKeys | None:
        """None for a model without a tokenizer."""
        return self._by_model.get(model or "", self.others)

    def renew_others(self) -> None:
        """Nobody serves unlisted names any more: what was found of them is void."""
        if self.others is not None:
            self.others = ModelKeys(self.others.entry)

    def put(self, model: str, keys: ModelKeys) -> None:
        self._by_model[model] = keys

    def drop(self, model: str) -> None:
        """Back to the beginning."""
        entry = self.named.get(model)
        if entry is not None:
            self._by_model[model] = ModelKeys(entry)
        else:
            self._by_model.pop(model, None)
