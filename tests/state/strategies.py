"""Hypothesis strategies for everything that goes between sidecars and routers."""

from array import array

from hypothesis import strategies as st

from router.core.cache_delta import CacheChange, CacheDelta, CacheSnapshot, Cleared, Mark, Removed, RouterLoad, Stored, Tier
from router.core.types import Lifecycle, Truth, WorkerId, WorkerReport
from router.state.report_codec import MAX_COUNT, PostedReport

KEY = st.integers(0, 2**64 - 1)
SEQ = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
NAME = TEXT.map(WorkerId)
COUNT = st.none() | st.integers(0, MAX_COUNT)
NAMES = st.none() | st.lists(TEXT, max_size=4).map(tuple)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def keys(min_size: int = 0) -> st.SearchStrategy["array[int]"]:
    return st.lists(KEY, min_size=min_size, max_size=6).map(lambda values: array("Q", values))


def stored() -> st.SearchStrategy[Stored]:
    return st.builds(Stored, st.none() | KEY, keys(), st.sampled_from(Tier))


def changes() -> st.SearchStrategy[CacheChange]:
    return stored() | st.builds(Removed, keys()) | st.just(Cleared())


def deltas() -> st.SearchStrategy[CacheDelta]:
    return st.builds(CacheDelta, NAME, TEXT, SEQ, st.lists(changes(), max_size=6).map(tuple))


def snapshots() -> st.SearchStrategy[CacheSnapshot]:
    return st.builds(CacheSnapshot, NAME, TEXT, SEQ, st.lists(stored(), max_size=6).map(tuple))


def loads() -> st.SearchStrategy[RouterLoad]:
    counts = st.tuples(st.integers(0, MAX_COUNT), st.integers(0, MAX_COUNT))
    marks = st.lists(st.builds(Mark, NAME, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)), max_size=5).map(tuple)
    return st.builds(RouterLoad, TEXT, SEQ, st.booleans(), st.dictionaries(NAME, counts, max_size=5), marks)


def reports() -> st.SearchStrategy[WorkerReport]:
    return st.builds(
        WorkerReport, worker=NAME, kind=TEXT, url=TEXT, generation=TEXT, lifecycle=st.sampled_from(Lifecycle),
        reported_at_s=st.just(0.0), models=NAMES, adapters=NAMES, loaded_adapters=NAMES, block_tokens=COUNT,
        capacity_tokens=COUNT, running=COUNT, waiting=COUNT, waiting_tokens=COUNT, kv_used_ratio=st.none() | FINITE,
        truth=st.sampled_from(Truth), truth_reason=TEXT, detail=TEXT, extra=st.dictionaries(TEXT, FINITE, max_size=3),
    )  # fmt: skip


def posted_reports() -> st.SearchStrategy[PostedReport]:
    return st.builds(PostedReport, reports(), SEQ, st.floats(0, 1e9), SEQ, SEQ, st.booleans())
