"""engines.deepspeed_backend.figures: the page, as the adapter reads it."""

import pytest

from engines.deepspeed import METRICS
from engines.deepspeed import read_page as as_look
from engines.deepspeed_backend.figures import Figures
from engines.deepspeed_backend.line import Line
from engines.fetch import Answer


def page(figures: Figures) -> Answer:
    return Answer("metrics", 200, {}, figures.page())


def test_everything_the_adapter_reads_is_there() -> None:
    """Each meaning that the adapter knows is on the page from the start."""
    samples = METRICS.read(page(Figures(Line(4))))
    assert samples is not None and set(samples) == set(METRICS.names)


def test_counts() -> None:
    """Queue depth and counts come through, and a misspelt count is a mistake of the code."""
    line = Line(max_waiting=3)
    figures = Figures(line)
    with line.turn(line.join()):
        line.join()
        figures.add("requests", 2)
        figures.add("prompt_tokens", 7)
        look = as_look(page(figures))
    assert (look.running, look.waiting, look.extra["queue_limit"]) == (1, 1, 3.0)
    assert look.counters == {"requests": 2.0, "prompt tokens": 7.0, "generated tokens": 0.0}
    assert look.markers == as_look(page(figures)).markers
    with pytest.raises(KeyError):
        figures.add("request")
