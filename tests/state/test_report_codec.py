"""Worker reports on the wire: unknown stays unknown, and no bytes raise anything but BadMessage."""

import dataclasses
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.types import Lifecycle, Truth, WorkerId, WorkerReport
from router.state.frame import REPORT, BadMessage, seal
from router.state.report_codec import (
    COUNTS,
    MAX_COUNT,
    MAX_DETAIL_CHARS,
    MAX_LISTED,
    PostedReport,
    decode_left,
    decode_report,
    encode_left,
    encode_report,
)
from tests.state.hostile import assert_refuses_damage, assert_survives_forgery
from tests.state.strategies import NAME, posted_reports

REPORT_OF_NOTHING = WorkerReport(WorkerId("a:1"), "vllm", "http://a:1", "", Lifecycle.LOADING, 0.0)
FULL = WorkerReport(
    WorkerId("a:1"), "vllm", "http://a:1", "g", Lifecycle.READY, 0.0, ("m", "n"), ("n",), (), 16, 1000, 1, 2, 3, 0.5,
    Truth.EXACT, "why", "what", {"x": 1.5, "y": 0.0},
)  # fmt: skip


def posted(report: WorkerReport) -> PostedReport:
    return PostedReport(report, 1, 0.25, 7, 9, True)


@given(posted_reports())
def test_reports_come_back(report: PostedReport) -> None:
    """Every field of every report, known or not."""
    assert decode_report(encode_report(report)) == report


def test_unknown_is_not_zero() -> None:
    """A report that knows nothing says nothing, and one that knows zeros and empty lists says so."""
    back = decode_report(encode_report(posted(REPORT_OF_NOTHING))).report
    assert back == REPORT_OF_NOTHING
    zeros = dataclasses.replace(REPORT_OF_NOTHING, models=(), adapters=(), loaded_adapters=(), kv_used_ratio=0.0)
    for name in COUNTS:
        setattr(zeros, name, 0)
    assert decode_report(encode_report(posted(zeros))).report == zeros


@pytest.mark.parametrize("value", [-1, MAX_COUNT + 1, 2**70])
@pytest.mark.parametrize("name", COUNTS)
def test_a_count_out_of_range_is_unknown(name: str, value: int) -> None:
    """An engine's nonsense costs the one field, not the report."""
    strange, expected = dataclasses.replace(FULL), dataclasses.replace(FULL)
    setattr(strange, name, value)
    setattr(expected, name, None)
    assert decode_report(encode_report(posted(strange))).report == expected


def test_numbers_that_are_none_are_unknown() -> None:
    """NaN and infinity never travel."""
    strange = dataclasses.replace(FULL, kv_used_ratio=math.nan, extra={"x": math.inf, "y": 2.0})
    back = decode_report(encode_report(posted(strange))).report
    assert back == dataclasses.replace(FULL, kv_used_ratio=None, extra={"y": 2.0})


def test_long_texts_are_cut_and_too_much_is_refused() -> None:
    """A report is bounded: an engine's error text is shortened, a list without end is an error of the sender."""
    wordy = dataclasses.replace(FULL, detail="d" * 9999, truth_reason="t" * 9999)
    back = decode_report(encode_report(posted(wordy))).report
    assert (len(back.detail), len(back.truth_reason)) == (MAX_DETAIL_CHARS, MAX_DETAIL_CHARS)
    for models in (("m",) * (MAX_LISTED + 1), ("m" * 300_000,), ("\ud800",)):
        with pytest.raises(BadMessage):
            encode_report(posted(dataclasses.replace(FULL, models=models)))


def test_damage_is_refused() -> None:
    """Cut at every length, every bit flipped."""
    assert_refuses_damage(decode_report, encode_report(posted(FULL)))
    assert_refuses_damage(decode_left, encode_left(WorkerId("a:1")))


@settings(max_examples=20)
@given(posted_reports(), st.integers(0, 2**32))
def test_forgery_is_a_value_or_refused(report: PostedReport, seed: int) -> None:
    """Hostile content under a right checksum raises nothing else."""
    assert_survives_forgery(decode_report, REPORT, encode_report(report), random.Random(seed))


@given(st.binary(max_size=200))
def test_random_bodies_are_refused(body: bytes) -> None:
    """No body is read beyond its end."""
    with pytest.raises(BadMessage):
        decode_report(seal(REPORT, body))


@given(NAME)
def test_leaving_comes_back(worker: WorkerId) -> None:
    """The word that a worker is not watched any more names it."""
    assert decode_left(encode_left(worker)) == worker


def test_leaving_with_a_name_that_is_no_text_is_refused() -> None:
    """A tombstone is checked like everything else."""
    with pytest.raises(BadMessage, match="not UTF-8"):
        decode_left(seal(encode_left(WorkerId("a"))[2], b"\xff"))
