"""router.wire.metrics_text: the wanted samples of a Prometheus page, whatever else is on it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.wire.metrics_text import MetricReader, Sample, mean, read_labels, total

READER = MetricReader(["vllm:running", "vllm:running_by_reason", "up"])


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        (b"up 1", Sample({}, 1.0)),
        (b"up 1 1785000000000", Sample({}, 1.0)),
        (b"up\t 2.5e3", Sample({}, 2500.0)),
        (b"up{} 1", Sample({}, 1.0)),
        (b'up{a="b"} 3', Sample({"a": "b"}, 3.0)),
        (b'up{a="b",c="d",} 3', Sample({"a": "b", "c": "d"}, 3.0)),
        (b'up{ a = "b" , c="" } 3', Sample({"a": "b", "c": ""}, 3.0)),
        (b'up{a="}"} 3', Sample({"a": "}"}, 3.0)),
        (b'up{a="x,y=\\"z\\" \\\\ \\n end"} 3', Sample({"a": 'x,y="z" \\ \n end'}, 3.0)),
        (b'up{a="\xff"} 3', Sample({"a": "�"}, 3.0)),
        (b'up{a="b"} 3 # {trace_id="x"} 0.67', Sample({"a": "b"}, 3.0)),
        (b"up +Inf", Sample({}, math.inf)),
        (b"up 1\r", Sample({}, 1.0)),
    ],
)
def test_lines_that_count(line: bytes, sample: Sample) -> None:
    """Labels with any content, numbers in any notation, time stamps, exemplars and CRLF are read as the format says."""
    page = b"# HELP up up\n# TYPE up gauge\n" + line + b"\nother 9\n"
    assert READER.read(page) == {"up": [sample]}
    assert READER.read(line) == {"up": [sample]}


def test_colons_may_be_underscores() -> None:
    """A name is found under either spelling and told under its own."""
    page = b'vllm_running{a="1"} 1\nvllm:running{a="2"} 2\nvllm_running_by_reason 3\n'
    assert READER.read(page) == {
        "vllm:running": [Sample({"a": "1"}, 1.0), Sample({"a": "2"}, 2.0)],
        "vllm:running_by_reason": [Sample({}, 3.0)],
    }


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"up",
        b"up ",
        b"upper 1",
        b"up one",
        b"# up 1",
        b'up{a="b" 1',
        b'up{a="b} 1',
        b"up{a=b\n} 1",
        b"xup 1",
        b"up_total 1",
        b"<html>up 1",
    ],
)
def test_lines_that_do_not(line: bytes) -> None:
    """Other names, comments and broken lines are skipped, and the next good line still counts."""
    assert READER.read(line + b"\nvllm:running 4\n") == {"vllm:running": [Sample({}, 4.0)]}


def test_name_that_begins_like_another() -> None:
    """A name is matched whole: neither a longer nor a shorter one is taken for it."""
    page = b'vllm:running_by_reason{reason="x"} 1\nvllm:running{engine="0"} 2\nvllm:running{engine="1"} 3\n'
    samples = READER.read(page)
    assert [sample.value for sample in samples["vllm:running"]] == [2.0, 3.0]
    assert [sample.value for sample in samples["vllm:running_by_reason"]] == [1.0]


def test_sums_and_means_of_known_values() -> None:
    """Series add up; NaN and infinity are no values; the first name with a value wins; none at all is unknown, not 0."""
    series = {"new": [Sample({}, math.nan)], "old": [Sample({}, 1.0), Sample({}, 2.0), Sample({}, math.inf)]}
    assert total(series, "old") == 3.0
    assert mean(series, "new", "old") == 1.5
    assert total(series, "new") is None and mean(series, "absent") is None


@given(st.binary(max_size=300))
def test_no_page_raises(page: bytes) -> None:
    """Any bytes are a page: an engine's nonsense never raises here."""
    READER.read(page)
    READER.read(b"up{" + page + b"} 1")
    read_labels(page)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), st.text(max_size=20).filter(lambda t: "\r" not in t)
    )
)
def test_labels_survive_escaping(labels: dict[str, str]) -> None:
    """What was escaped as the format says comes back as it was."""
    escaped = {k: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in labels.items()}
    text = ",".join(f'{name}="{value}"' for name, value in escaped.items())
    assert READER.read(f"up{{{text}}} 1".encode()) == {"up": [Sample(labels, 1.0)]}
