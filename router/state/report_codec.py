"""Worker reports as bytes. Unknown stays unknown: a bit per field says whether it is told."""

import math
from array import array
from dataclasses import dataclass
from struct import Struct
from typing import Final

from router.core.types import Lifecycle, Truth, WorkerId, WorkerReport
from router.state.frame import (
    LEFT,
    REPORT,
    BadMessage,
    name_bytes,
    pack_texts,
    read_array,
    seal,
    unpack_texts,
    unseal,
    wire_array,
)

MAX_REPORT_BYTES: Final = 256 * 1024
MAX_DETAIL_CHARS: Final = 2000
MAX_COUNT: Final = 2**53  # a larger one is no count, and would lose digits as a float
LIFECYCLES: Final = tuple(Lifecycle)
TRUTHS: Final = tuple(Truth)
POSTING: Final = Struct("<QdQQ?")  # number, age, epoch, seq, whether there is a snapshot
FACTS: Final = Struct("<HBB5Qd")  # known fields, lifecycle, truth, five counts, KV use
LISTS: Final = Struct("<4H")  # models, adapters, loaded adapters, extras; then extra values, text lengths, and the texts
FACTS_AT: Final = POSTING.size
LISTS_AT: Final = FACTS_AT + FACTS.size
VALUES_AT: Final = LISTS_AT + LISTS.size
MAX_LISTED: Final = 0xFFFF
COUNTS: Final = ("block_tokens", "capacity_tokens", "running", "waiting", "waiting_tokens")
KV_USED, MODELS, ADAPTERS, LOADED_ADAPTERS = (1 << bit for bit in range(len(COUNTS), len(COUNTS) + 4))
ALL_KNOWN: Final = (1 << len(COUNTS) + 4) - 1
FIXED_TEXTS: Final = 6  # worker, kind, url, generation, truth reason, detail


@dataclass(frozen=True, slots=True)
class PostedReport:
    """A report on its way: how old it was when it was posted, and where the worker's stream of deltas stood.

    `number` is another one in each posting. The deltas stood at `seq` of `epoch`, and `has_snapshot` if a snapshot of
    that epoch is there to begin from.
    """

    report: WorkerReport
    number: int
    age_s: float
    epoch: int
    seq: int
    has_snapshot: bool


def encode_report(posted: PostedReport) -> bytes:
    """Numbers out of range become unknown, long details are cut. Raises BadMessage for what is too large."""
    report = posted.report
    known, counts = pack_counts(report)
    kv_used_ratio = 0.0
    if report.kv_used_ratio is not None and math.isfinite(report.kv_used_ratio):
        kv_used_ratio = report.kv_used_ratio
        known |= KV_USED
    lists = (report.models, report.adapters, report.loaded_adapters)
    for bit, names in zip((MODELS, ADAPTERS, LOADED_ADAPTERS), lists, strict=True):
        known |= 0 if names is None else bit
    models, adapters, loaded = (names or () for names in lists)
    extra = {name: float(value) for name, value in report.extra.items() if math.isfinite(value)}
    if max(len(models), len(adapters), len(loaded), len(extra)) > MAX_LISTED:
        raise BadMessage(f"more than {MAX_LISTED} names in one list")
    texts = [report.worker, report.kind, report.url, report.generation, report.truth_reason, report.detail]
    texts[4:] = [text[:MAX_DETAIL_CHARS] for text in texts[4:]]
    lengths, joined = pack_texts([*texts, *models, *adapters, *loaded, *extra])
    parts = (
        POSTING.pack(posted.number, posted.age_s, posted.epoch, posted.seq, posted.has_snapshot),
        FACTS.pack(known, LIFECYCLES.index(report.lifecycle), TRUTHS.index(report.truth), *counts, kv_used_ratio),
        LISTS.pack(len(models), len(adapters), len(loaded), len(extra)),
        wire_array(array("d", extra.values())),
        lengths,
        joined,
    )
    data = seal(REPORT, b"".join(parts))
    if len(data) > MAX_REPORT_BYTES:
        raise BadMessage(f"a report of {len(data)} bytes is larger than {MAX_REPORT_BYTES}")
    return data


def pack_counts(report: WorkerReport) -> tuple[int, list[int]]:
    known = 0
    counts = []
    for bit, name in enumerate(COUNTS):
        value = getattr(report, name)
        told = value is not None and 0 <= value <= MAX_COUNT
        known |= told << bit
        counts.append(value if told else 0)
    return known, counts


def decode_report(data: bytes) -> PostedReport:
    """`reported_at_s` is left at 0: only the reader has a clock to tell it by. Raises BadMessage."""
    body = unseal(data, REPORT, MAX_REPORT_BYTES, VALUES_AT)
    number, age_s, epoch, seq, has_snapshot = POSTING.unpack_from(body)
    known, lifecycle, truth, *counts, kv_used_ratio = FACTS.unpack_from(body, FACTS_AT)
    n_models, n_adapters, n_loaded, n_extra = LISTS.unpack_from(body, LISTS_AT)
    lengths_at = VALUES_AT + 8 * n_extra
    joined_at = lengths_at + 4 * (FIXED_TEXTS + n_models + n_adapters + n_loaded + n_extra)
    if joined_at > len(body):
        raise BadMessage("the report is cut off")
    if lifecycle >= len(LIFECYCLES) or truth >= len(TRUTHS) or known > ALL_KNOWN:
        raise BadMessage("the report has a value that this version does not know")
    values = read_array("d", body[VALUES_AT:lengths_at])
    if not (
        max(counts) <= MAX_COUNT and 0 <= age_s < math.inf and math.isfinite(kv_used_ratio) and all(map(math.isfinite, values))
    ):
        raise BadMessage("the report has a number out of range")
    texts = unpack_texts(bytes(body[lengths_at:joined_at]), bytes(body[joined_at:]))
    adapters_at = FIXED_TEXTS + n_models
    loaded_at = adapters_at + n_adapters
    extra_at = loaded_at + n_loaded
    worker, kind, url, generation, truth_reason, detail = texts[:FIXED_TEXTS]
    report = WorkerReport(
        worker=WorkerId(worker),
        kind=kind,
        url=url,
        generation=generation,
        lifecycle=LIFECYCLES[lifecycle],
        reported_at_s=0.0,
        models=texts[FIXED_TEXTS:adapters_at] if known & MODELS else None,
        adapters=texts[adapters_at:loaded_at] if known & ADAPTERS else None,
        loaded_adapters=texts[loaded_at:extra_at] if known & LOADED_ADAPTERS else None,
        block_tokens=counts[0] if known & 1 else None,
        capacity_tokens=counts[1] if known & 2 else None,
        running=counts[2] if known & 4 else None,
        waiting=counts[3] if known & 8 else None,
        waiting_tokens=counts[4] if known & 16 else None,
        kv_used_ratio=kv_used_ratio if known & KV_USED else None,
        truth=TRUTHS[truth],
        truth_reason=truth_reason,
        detail=detail,
        extra=dict(zip(texts[extra_at:], values, strict=True)),
    )
    return PostedReport(report, number, age_s, epoch, seq, has_snapshot)


def encode_left(worker: WorkerId) -> bytes:
    """In place of a report: the sidecar has stopped to watch the worker."""
    return seal(LEFT, name_bytes(worker))


def decode_left(data: bytes) -> WorkerId:
    """Raises BadMessage."""
    try:
        return WorkerId(str(unseal(data, LEFT, MAX_REPORT_BYTES, 0), "utf-8"))
    except UnicodeDecodeError:
        raise BadMessage("a name is not UTF-8") from None
