"""engines.metric_page: numbers by meaning, whatever a release calls them."""

import pytest

from engines.fetch import Answer, BadAnswer
from engines.kinds_text import pages
from engines.metric_page import MetricPage, counters, label_count, start_marker
from router.wire.metrics_text import total

PAGE = MetricPage({"running": ("new:running", "old:running"), "sent": ("sent_total",), "process start": ("start",)})


def answer(body: bytes, status: int = 200) -> Answer:
    return Answer("/metrics", status, {}, body)


@pytest.mark.parametrize(
    ("body", "running"),
    [
        (b"new:running 1\nold:running 2\n", 1.0),
        (b"old:running 2\n", 2.0),
        (b"new:running NaN\nold:running 2\n", 2.0),
        (b'new:running{a="1"} 1\nnew:running{a="2"} 3\nold:running 2\n', 4.0),
        (b"new_running 5\n", 5.0),
        (b"other 1\n", None),
    ],
)
def test_newest_name_that_tells_something(body: bytes, running: float | None) -> None:
    """The newest name with a finite value counts, with all of its series; a colon may be an underscore."""
    samples = PAGE.read(answer(body))
    assert samples is not None and total(samples, "running") == running


def test_pages_that_tell_nothing() -> None:
    """A missing route, a switched-off page and a refused key are no failure; an error is one."""
    assert [PAGE.read(answer(b"new:running 1", status)) for status in (404, 501, 401, 403)] == [None] * 4
    with pytest.raises(BadAnswer, match=r"^/metrics answered 500$"):
        PAGE.read(answer(b"", 500))


def test_counters_and_start() -> None:
    """Only what the page tells is there; the start of the process is told to the last digit."""
    samples = PAGE.read(answer(b"sent_total 3\nstart 1.78500000025e+09\n"))
    assert samples is not None
    assert counters(samples, "sent", "running") == {"sent": 3.0}
    assert start_marker(samples) == {"process_start_time_seconds": "1785000000.25"}
    assert start_marker({}) == {}


@pytest.mark.parametrize(
    ("text", "count"), [("16", 16), ("0", None), ("None", None), ("", None), (None, None), ("9" * 5000, None), ("²", None)]
)
def test_counts_in_labels(text: str | None, count: int | None) -> None:
    """A label is text: only a plain number above 0 is a count."""
    assert label_count(text) == count


@pytest.mark.parametrize("kind", dict(pages()))
def test_every_name_is_read(kind: str) -> None:
    """A series that docs/engines.md names is found on a page that has nothing else, under its meaning."""
    page = dict(pages())[kind]
    for meaning, names in page.names.items():
        for name in names:
            samples = page.read(answer(f'{name}{{a="b"}} 1\n'.encode()))
            assert samples is not None and set(samples) == {meaning}
