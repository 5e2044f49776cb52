"""What an engine says of a prompt's tokens when it is asked, and what it means when it does not say."""

from array import array
from typing import NamedTuple, Protocol

from router.wire.openai_request import ChatPrompt, TextPrompt


class EngineTokens(NamedTuple):
    """`ids` has typecode 'I'. `text` is the chat as the engine rendered it, where it tells."""

    ids: "array[int]"
    text: str | None = None


class TokenRoutes(Protocol):
    """One engine, asked. Every method may raise NoTokens and nothing else, and has a deadline of its own."""

    async def tokens(self, prompt: ChatPrompt | TextPrompt, model: str | None) -> EngineTokens:
        """Those the engine makes of a request with this prompt; of several texts, of the first."""

    async def text(self, ids: "array[int]", model: str | None) -> str:
        """What the ids stand for, special tokens included."""


class NoTokens(Exception):
    """No answer to the question for tokens; the text says why, to people.

    `lasting`: asking this engine again for the same will not help (no such route, a prompt it does not take). Otherwise
    it was slow, busy or away.
    """

    def __init__(self, reason: str, *, lasting: bool) -> None:
        super().__init__(reason)
        self.lasting = lasting


def token_ids(value: object) -> "array[int]":
    """The ids of an answer packed. NoTokens for anything but a list of one or more whole numbers of 0 to 2^32 - 1."""
    if isinstance(value, list) and set(map(type, value)) == {int}:
        try:
            return array("I", value)
        except OverflowError:
            pass
    raise NoTokens("the answer holds no list of token ids", lasting=True)
