"""What the admin port shows of a router, put together from its parts when asked."""

import time
from collections.abc import Iterable, Sequence

from router.admin.figures import Bound, IndexFigures, WorkerFigures
from router.core.fleet import Worker
from router.core.types import Decision
from router.log import AccessLog
from router.proxy.plane import DataPlane


class Overview:
    """Read-only; every method answers from memory."""

    def __init__(self, plane: DataPlane, access_log: AccessLog | None) -> None:
        self._plane = plane
        self._access_log = access_log

    def workers(self) -> Sequence[WorkerFigures]:
        now_s = time.monotonic()
        return [self._figures(worker, now_s) for worker in self._plane.fleet.workers]

    def decision(self, request_id: str) -> Decision | None:
        return self._plane.placement.decision(request_id)

    def latest_decisions(self, limit: int) -> Sequence[Decision]:
        return self._plane.placement.latest_decisions(limit)

    def index(self) -> IndexFigures:
        index = self._plane.placement.index
        return IndexFigures(index.blocks, index.bytes, index.evictions)

    def bounds(self) -> Iterable[Bound]:
        plane = self._plane
        limits, settings, stats = plane.limits, plane.settings, plane.stats
        yield Bound("max_connections", stats.connections_open, limits.max_connections)
        yield Bound("max_requests_in_flight", stats.requests_in_flight, limits.max_requests_in_flight)
        yield Bound("max_buffered_bytes", stats.buffered_bytes, limits.max_buffered_bytes)
        yield Bound("index_bytes", plane.placement.index.bytes, settings.cache.index_bytes)
        yield Bound("decision_log_size", plane.placement.decisions_kept, settings.routing.decision_log_size)
        yield Bound("max_sessions", plane.placement.sessions_kept, settings.routing.max_sessions)
        yield Bound("memo_bytes", plane.keyer.memo.used_bytes, settings.tokens.memo_bytes)
        yield Bound("max_pending_tails", plane.keyer.bounds.tails, settings.tokens.max_pending_tails)
        yield Bound("max_workers", len(plane.fleet), settings.fleet.max_workers)
        waiting = self._access_log.waiting if self._access_log is not None else 0
        yield Bound("max_log_lines", waiting, settings.log.max_log_lines)
        counts = [(plane.pool.open_count(worker.id), plane.pool.idle_count(worker.id)) for worker in plane.fleet.workers]
        most_open, most_idle = (max(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        yield Bound("max_connections_per_worker", most_open, settings.upstream.max_connections_per_worker)
        yield Bound("max_idle_connections", most_idle, settings.upstream.max_idle_connections)

    def closing(self) -> bool:
        return self._plane.draining

    def _figures(self, worker: Worker, now_s: float) -> WorkerFigures:
        placement, report, load = self._plane.placement, worker.report, worker.load
        models = worker.models
        return WorkerFigures(
            id=worker.id,
            url=worker.spec.url,
            kind=worker.kind,
            weight=worker.weight,
            lifecycle=worker.lifecycle,
            why=worker.down_reason or (report.detail if report else "not seen yet"),
            models=None if models is None else tuple(sorted(models)),
            generation=worker.generation,
            truth=worker.truth,
            truth_reason=worker.truth_reason,
            in_flight=load.in_flight,
            pending_prefill_tokens=load.pending_tokens,
            running=report.running if report else None,
            waiting=report.waiting if report else None,
            waiting_tokens=report.waiting_tokens if report else None,
            adapters=report.adapters if report else None,
            loaded_adapters=report.loaded_adapters if report else None,
            kv_used_ratio=report.kv_used_ratio if report else None,
            report_age_s=now_s - report.reported_at_s if report else None,
            capacity_tokens=placement.capacity_tokens(worker),
            block_tokens=worker.block_tokens,
            blocks_held=placement.blocks_held(worker),
            prefill_tokens_per_s=placement.prefill_tokens_per_s(worker),
            predicted_cached_tokens=worker.predicted_tokens_mean,
            actual_cached_tokens=worker.actual_tokens_mean,
            cached_tokens_error=worker.error_tokens_mean,
            engine=dict(report.extra) if report else {},
        )
