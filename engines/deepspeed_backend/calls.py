"""The three calls of MII's service over a generator and the line in front of it. Threads, but no gRPC and no torch."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from engines.deepspeed_backend.figures import Figures
from engines.deepspeed_backend.line import LeftLine, Line, LineFull, Place
from engines.deepspeed_backend.options import BadArgument, Options, read_options
from engines.deepspeed_backend.wire import Reply, Request

NOT_YET = "none"  # the finish reason of MII's replies before the last


@dataclass(frozen=True)
class Outcome:
    """`finish_reason`: stop or length."""

    text: str
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int


class Generator(Protocol):
    def generate(
        self, prompt: str, options: Options, send: Callable[[str, int, int], None], is_cancelled: Callable[[], bool]
    ) -> Outcome:
        """Blocks until the answer is whole; `send(text, prompt tokens, generated tokens)` gets each new piece.

        Ends early, with what there is, once `is_cancelled()`. Raises BadArgument.
        """


class Call(Protocol):
    """What a call tells of its caller."""

    def on_end(self, told: Callable[[], None]) -> None:
        """`told` is called, by any thread, when the call is over, also if it is over already."""


class Calls:
    """Every method blocks its thread. Raises LineFull, BadArgument, LeftLine, and whatever the model raises."""

    def __init__(self, generator: Generator, line: Line, figures: Figures) -> None:
        self._generator = generator
        self._line = line
        self._figures = figures
        self.stopping = threading.Event()

    def terminate(self) -> None:
        self.stopping.set()

    def reply(self, request: Request, call: Call) -> list[Reply]:
        """One answer per prompt, all in one turn."""
        options, place = self._admit(request, call)
        with self._counted(), self._line.turn(place):
            replies = []
            for prompt in request.prompts:
                outcome = self._generator.generate(prompt, options, ignore, lambda: place.has_left)
                self._count(outcome)
                replies.append(
                    Reply(outcome.text, outcome.finish_reason, outcome.prompt_tokens, outcome.generated_tokens)
                )  # fmt: skip
                if place.has_left:
                    raise LeftLine
            return replies

    def stream(self, request: Request, call: Call) -> Iterator[Reply]:
        """Pieces of the answer to the first prompt, as MII itself does it; the last has no text but the finish reason."""
        options, place = self._admit(request, call)
        pieces: queue.SimpleQueue[Reply | BaseException] = queue.SimpleQueue()

        def generate() -> None:
            try:
                pieces.put(self._generate_into(pieces, request.prompts[0], options, place))
            except BaseException as error:  # it belongs to the caller's thread
                pieces.put(error)

        try:
            threading.Thread(target=generate, daemon=True).start()
            while True:
                piece = pieces.get()
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
                if piece.finish_reason != NOT_YET:
                    return
        finally:
            place.leave()

    def _generate_into(
        self, pieces: "queue.SimpleQueue[Reply | BaseException]", prompt: str, options: Options, place: Place
    ) -> Reply:
        def send(text: str, prompt_tokens: int, generated_tokens: int) -> None:
            if text:
                pieces.put(Reply(text, NOT_YET, prompt_tokens, generated_tokens))

        with self._counted(), self._line.turn(place):
            outcome = self._generator.generate(prompt, options, send, lambda: place.has_left)
        self._count(outcome)
        return Reply("", outcome.finish_reason, outcome.prompt_tokens, outcome.generated_tokens)

    def _admit(self, request: Request, call: Call) -> tuple[Options, Place]:
        """Checks come before the line: a bad request takes no place."""
        if not request.prompts:
            raise BadArgument("no prompt")
        options = read_options(request.arguments)
        try:
            place = self._line.join()
        except LineFull:
            self._figures.add("requests_refused")
            raise
        self._figures.add("requests")
        call.on_end(place.leave)
        return options, place

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Counts how a request ended when it did not end well."""
        try:
            yield
        except BadArgument:
            raise
        except BaseException as error:
            self._figures.add("requests_cancelled" if isinstance(error, LeftLine) else "requests_failed")
            raise

    def _count(self, outcome: Outcome) -> None:
        self._figures.add("prompt_tokens", outcome.prompt_tokens)
        self._figures.add("generated_tokens", outcome.generated_tokens)


def ignore(text: str, prompt_tokens: int, generated_tokens: int) -> None:
    """For answers that are wanted whole."""
