"""engines.deepspeed_backend.calls: calls, the line and the counts, over a generator that a test writes."""

import threading
from collections.abc import Callable

import pytest

from engines.deepspeed_backend.calls import Calls, Outcome
from engines.deepspeed_backend.figures import Figures
from engines.deepspeed_backend.line import LeftLine, Line, LineFull
from engines.deepspeed_backend.options import BadArgument, Options
from engines.deepspeed_backend.wire import Reply, Request

DEADLINE_S = 5.0
Send = Callable[[str, int, int], None]


class Caller:
    """A call whose caller goes when a test says so."""

    def __init__(self) -> None:
        self._told: list[Callable[[], None]] = []

    def on_end(self, told: Callable[[], None]) -> None:
        self._told.append(told)

    def go(self) -> None:
        for told in self._told:
            told()


class Words:
    """Answers with the prompt's words, one piece each; waits where a word is `wait`."""

    def __init__(self) -> None:
        self.waits = threading.Event()
        self.go_on = threading.Event()
        self.options: list[Options] = []

    def generate(self, prompt: str, options: Options, send: Send, is_cancelled: Callable[[], bool]) -> Outcome:
        self.options.append(options)
        words = prompt.split()
        said = ""
        for at, word in enumerate(words):
            if word == "wait":
                self.waits.set()
                assert self.go_on.wait(DEADLINE_S)
            if word == "fail":
                raise RuntimeError("the model failed")
            if is_cancelled():
                return Outcome(said, "length", len(words), at)
            said += word
            send("" if word == "hidden" else word, len(words), at + 1)
        return Outcome(said, "stop", len(words), len(words))


class Stage:
    def __init__(self, max_waiting: int = 1) -> None:
        self.words = Words()
        self.line = Line(max_waiting)
        self.figures = Figures(self.line)
        self.calls = Calls(self.words, self.line, self.figures)

    def count(self, name: str) -> int:
        return self.figures._counts[name]


def test_a_reply_per_prompt() -> None:
    """All prompts of a request are answered in one turn, in order, with their counts."""
    stage = Stage()
    replies = stage.calls.reply(Request(("a b", "c"), {"max_new_tokens": 7}), Caller())
    assert replies == [Reply("ab", "stop", 2, 2), Reply("c", "stop", 1, 1)]
    assert (stage.count("requests"), stage.count("prompt_tokens"), stage.count("generated_tokens")) == (1, 3, 3)
    assert stage.words.options[0].max_new_tokens == 7 and stage.line.running == 0


def test_a_stream() -> None:
    """Pieces as they come, none without text, and a last one that says why it ended; only the first prompt counts."""
    stage = Stage()
    replies = list(stage.calls.stream(Request(("a hidden b", "c"), {}), Caller()))
    assert replies == [Reply("a", "none", 3, 1), Reply("b", "none", 3, 3), Reply("", "stop", 3, 3)]
    assert (stage.count("requests"), stage.count("generated_tokens"), stage.line.running) == (1, 3, 0)


def test_bad_requests_take_no_place() -> None:
    """They are refused before the line, whether it is full or not, and are no failures."""
    stage = Stage()
    for request in (Request((), {}), Request(("a",), {"max_new_tokens": 0})):
        with pytest.raises(BadArgument):
            stage.calls.reply(request, Caller())
        with pytest.raises(BadArgument):
            list(stage.calls.stream(request, Caller()))
    assert (stage.count("requests"), stage.count("requests_failed"), stage.line.waiting) == (0, 0, 0)


def test_a_full_line_refuses() -> None:
    """One works, one waits; the third is refused and counted, streamed or not."""
    stage = Stage(max_waiting=1)
    working = stage.calls.stream(Request(("wait",), {}), Caller())
    thread = threading.Thread(target=list, args=(working,))
    thread.start()
    assert stage.words.waits.wait(DEADLINE_S)
    second = threading.Thread(target=stage.calls.reply, args=(Request(("b",), {}), Caller()))
    second.start()
    with stage.line.changed:
        while stage.line.waiting < 1:
            stage.line.changed.wait(0.01)
    with pytest.raises(LineFull):
        stage.calls.reply(Request(("c",), {}), Caller())
    with pytest.raises(LineFull):
        next(stage.calls.stream(Request(("c",), {}), Caller()))
    stage.words.go_on.set()
    thread.join(DEADLINE_S)
    second.join(DEADLINE_S)
    assert (stage.count("requests"), stage.count("requests_refused")) == (2, 2)


def test_a_caller_that_goes() -> None:
    """Generating ends at its next token; what was generated is counted, and nobody gets it."""
    stage, caller = Stage(), Caller()
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            stage.calls.reply(Request(("a wait b", "c"), {}), caller)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert stage.words.waits.wait(DEADLINE_S)
    caller.go()
    stage.words.go_on.set()
    thread.join(DEADLINE_S)
    assert [type(failure) for failure in failures] == [LeftLine]
    assert (stage.count("requests_cancelled"), stage.count("generated_tokens"), stage.line.running) == (1, 1, 0)


def test_a_stream_that_is_dropped() -> None:
    """Closing the stream is as good as going."""
    stage = Stage()
    stream = stage.calls.stream(Request(("a wait b c",), {}), Caller())
    assert next(stream).text == "a"
    assert stage.words.waits.wait(DEADLINE_S)
    stream.close()  # type: ignore[attr-defined]
    stage.words.go_on.set()
    with stage.line.changed:
        assert stage.line.changed.wait_for(lambda: stage.line.running == 0, DEADLINE_S)


def test_a_failure_is_the_callers() -> None:
    """What the model raises reaches whoever asked, is counted, and the next request is served."""
    stage = Stage()
    with pytest.raises(RuntimeError, match="the model failed"):
        stage.calls.reply(Request(("fail",), {}), Caller())
    with pytest.raises(RuntimeError, match="the model failed"):
        list(stage.calls.stream(Request(("a fail",), {}), Caller()))
    assert (stage.count("requests_failed"), stage.line.running) == (2, 0)
    assert stage.calls.reply(Request(("a",), {}), Caller())[0].text == "a"


def test_terminate() -> None:
    """MII's Terminate ends the process in its own time."""
    stage = Stage()
    assert not stage.calls.stopping.is_set()
    stage.calls.terminate()
    assert stage.calls.stopping.is_set()
