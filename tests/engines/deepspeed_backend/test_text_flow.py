"""engines.deepspeed_backend.text_flow: nothing is sent that has to be taken back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.deepspeed_backend.text_flow import TextFlow


def pieces(flow: TextFlow, *states: str) -> list[str]:
    """What each state of the text lets through, the last one being final."""
    sent = [flow.feed(state) for state in states[:-1]]
    return [*sent, flow.feed(states[-1], final=True)]


@pytest.mark.parametrize(
    ("stops", "states", "expected"),
    [
        ([], ["a", "ab", "ab"], ["a", "b", ""]),
        ([], ["a\ufffd", "aé"], ["a", "é"]),
        ([], ["a\ufffd", "a\ufffd"], ["a", "\ufffd"]),
        (["END"], ["aE", "aEN", "aENx", "aENx"], ["a", "", "ENx", ""]),
        (["END"], ["aE", "aENDx"], ["a", ""]),
        (["END"], ["aEND", "aEND more"], ["a", ""]),
        (["END"], ["aEN", "aEN"], ["a", "EN"]),
        (["xy", "b"], ["abxy", "abxy"], ["a", ""]),
        (["a"], ["a", "a"], ["", ""]),
    ],
)
def test_pieces(stops: list[str], states: list[str], expected: list[str]) -> None:
    """Half characters and possible beginnings of a stop text wait; the text before a stop text is sent, the rest never."""
    assert pieces(TextFlow(stops), *states) == expected


def test_it_tells_that_it_stopped() -> None:
    """The generation can end when a stop text has come."""
    flow = TextFlow(["b"])
    assert (flow.feed("a"), flow.stopped) == ("a", False)
    assert (flow.feed("abc"), flow.stopped, flow.text) == ("", True, "a")


@given(st.text("abE", max_size=30), st.lists(st.text("abE", min_size=1, max_size=3), max_size=3), st.data())
def test_any_growth_sends_the_same_text(text: str, stops: list[str], data: st.DataObject) -> None:
    """However the text grows, what was sent in all is the text up to the first stop text."""
    flow, at, sent = TextFlow(stops), 0, ""
    while at < len(text):
        at = min(len(text), at + data.draw(st.integers(1, 5)))
        sent += flow.feed(text[:at], final=at == len(text))
    ends = [found for stop in stops if (found := text.find(stop)) >= 0]
    whole = text[: min(ends)] if ends else text
    assert flow.text == sent
    assert whole.startswith(sent) or sent == whole
    if not stops:
        assert sent == text
