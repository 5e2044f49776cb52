"""Counters and histograms of the data plane: plain numbers, bumped in place and read when metrics are scraped.

Why not prometheus-client on this path: one labelled `inc` plus `observe` costs 3–4 µs of a request's 60;
an attribute increment costs 0.03. Counts by label are plain dicts: Counter's `+= 1` costs twice as much.
`admin/metrics.py` turns these into Prometheus families.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

LATENCY_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0,
)  # fmt: skip
DECISION_BUCKETS_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25)


class Histogram:
    """Cumulative buckets are made on reading; `observe` touches one count and the sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper bound, observations at most that), the last bound infinite."""
        rows, total = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows


class Stats:
    """Every number the data plane counts. Label values come from bounded sets only (routes, workers, reasons)."""

    def __init__(self) -> None:
        self.requests: defaultdict[tuple[str, str, int], int] = defaultdict(int)  # (route, worker or "", status)
        self.errors: defaultdict[str, int] = defaultdict(int)  # reason of each error answered by the router
        self.decisions: defaultdict[tuple[str, str], int] = defaultdict(int)  # (policy, reason)
        self.unkeyed: defaultdict[str, int] = defaultdict(int)  # reason
        self.key_forms: defaultdict[str, int] = defaultdict(int)
        self.retries: defaultdict[str, int] = defaultdict(int)  # reason of the failure retried
        self.upstream_failures: defaultdict[tuple[str, str], int] = defaultdict(int)  # (worker, reason)
        self.client_gone = 0
        self.prompt_tokens = 0
        self.predicted_cached_tokens = 0
        self.actual_cached_tokens = 0
        self.actual_known_prompt_tokens = 0  # prompt tokens of requests whose engine reported cached tokens
        self.completion_tokens = 0
        self.usage_unknown = 0
        self.ttft_s: dict[str, Histogram] = {}  # by worker
        self.duration_s = Histogram(LATENCY_BUCKETS_S)
        self.decision_s = Histogram(DECISION_BUCKETS_S)
        self.key_wait_s = Histogram(DECISION_BUCKETS_S)
        self.key_deadline_missed = 0
        self.token_asks: defaultdict[str, int] = defaultdict(int)  # told, remembered, failed or refused (too many at a time)
        self.tails_dropped = 0  # prompts not tokenised to their end after dispatch: too many waited
        self.connections_open = 0
        self.connections_total = 0
        self.connections_refused = 0
        self.requests_in_flight = 0
        self.buffered_bytes = 0
        self.upstream_connections: defaultdict[str, int] = defaultdict(int)  # opened, by worker
        self.upstream_reused: defaultdict[str, int] = defaultdict(int)
        self.stale_connection_retries = 0
        self.loop_lag_s = Histogram(DECISION_BUCKETS_S)
        self.log_lines_dropped = 0
        self.recordings = 0  # going on
        self.recording_dropped = 0  # requests that a recording had no room for

    def ttft_of(self, worker: str) -> Histogram:
        """The histogram of one worker, made on first use."""
        histogram = self.ttft_s.get(worker)
        if histogram is None:
            histogram = self.ttft_s[worker] = Histogram(LATENCY_BUCKETS_S)
        return histogram

    def forget_worker(self, worker: str) -> None:
        """A removed worker's series vanish with it (user-pain P40)."""
        self.ttft_s.pop(worker, None)
        for counts in (self.upstream_connections, self.upstream_reused):
            counts.pop(worker, None)
        for key in [key for key in self.upstream_failures if key[0] == worker]:
            del self.upstream_failures[key]
        for row in [row for row in self.requests if row[1] == worker]:
            del self.requests[row]
