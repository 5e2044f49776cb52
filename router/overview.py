"""What the admin port shows of a router, put together from its parts when asked."""

import time
from collections.abc import Iterable, Sequence

from router.admin.figures import Bound, IndexFigures, ModelFigures, ShapeFigures, SharedFigures, WorkerFigures, WorkerTokens
from router.catch_up import CatchUp
from router.core.fleet import Worker
from router.core.types import Decision, Truth
from router.log import AccessLog
from router.proxy.plane import DataPlane
from router.shared_pool import SharedPool
from router.tokens.key_sources import Shape, ShapeKeys
from router.tokens.parity import ModelParity
from router.tokens.parity_watch import ParityWatch


class Overview:
    """Read-only; every method answers from memory."""

    def __init__(
        self,
        plane: DataPlane,
        parity: ParityWatch,
        access_log: AccessLog | None,
        shared: SharedPool | None,
        catch_up: CatchUp,
    ) -> None:
        self._plane = plane
        self._parity = parity
        self._access_log = access_log
        self._shared = shared
        self._catch_up = catch_up

    def workers(self) -> Sequence[WorkerFigures]:
        now_s = time.monotonic()
        return [self._figures(worker, now_s) for worker in self._plane.fleet.workers]

    def decision(self, request_id: str) -> Decision | None:
        return self._plane.placement.decision(request_id)

    def latest_decisions(self, limit: int) -> Sequence[Decision]:
        return self._plane.placement.latest_decisions(limit)

    def index(self) -> IndexFigures:
        placement = self._plane.placement
        models, events, feed = placement.index, placement.cache_truth.events, placement.cache_truth.feed
        return IndexFigures(
            blocks=models.blocks + events.blocks,
            bytes=models.bytes + events.bytes,
            evicted_blocks=models.evictions,
            event_blocks=events.blocks,
            exact_workers=sum(worker.truth is Truth.EXACT for worker in self._plane.fleet.workers),
            refused_blocks=events.full_blocks,
            orphan_blocks=events.orphan_blocks,
            feed_gaps=feed.gaps,
            feed_stale=feed.stale,
            feed_strangers=feed.strangers,
        )

    def models(self) -> Sequence[ModelFigures]:
        return [
            ModelFigures(
                parity.name,
                parity.keys.entry.name,
                tuple(shape_figures(parity, shape, keys) for shape, keys in parity.keys.shapes()),
            )
            for parity in self._parity.models.values()
        ]

    def key_sources(self) -> Iterable[tuple[str, str, str]]:
        for parity in self._parity.models.values():
            for shape, keys in parity.keys.shapes():
                yield parity.name, shape, keys.source

    def bounds(self) -> Iterable[Bound]:
        plane = self._plane
        limits, settings, stats = plane.limits, plane.settings, plane.stats
        yield Bound("max_connections", stats.connections_open, limits.max_connections)
        yield Bound("max_requests_in_flight", stats.requests_in_flight, limits.max_requests_in_flight)
        yield Bound("max_buffered_bytes", stats.buffered_bytes, limits.max_buffered_bytes)
        yield Bound("index_bytes", self.index().bytes, settings.cache.index_bytes)
        yield Bound("decision_log_size", plane.placement.decisions_kept, settings.routing.decision_log_size)
        yield Bound("max_sessions", plane.placement.sessions_kept, settings.routing.max_sessions)
        yield Bound("max_heard_marks", len(plane.placement.elsewhere), settings.cache.max_heard_marks)
        yield Bound("memo_bytes", plane.keyer.memo.used_bytes, settings.tokens.memo_bytes)
        yield Bound("max_pending_tails", plane.keyer.bounds.tails, settings.tokens.max_pending_tails)
        yield Bound("max_token_asks", plane.keyer.asking.in_flight, settings.tokens.max_token_asks)
        yield Bound("max_workers", len(plane.fleet), settings.fleet.max_workers)
        waiting = self._access_log.waiting if self._access_log is not None else 0
        yield Bound("max_log_lines", waiting, settings.log.max_log_lines)
        recorded = plane.recorder.waiting_bytes() if plane.recorder is not None else 0
        yield Bound("max_recording_bytes", recorded, settings.log.max_recording_bytes)
        counts = [(plane.pool.open_count(worker.id), plane.pool.idle_count(worker.id)) for worker in plane.fleet.workers]
        most_open, most_idle = (max(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        yield Bound("max_connections_per_worker", most_open, settings.upstream.max_connections_per_worker)
        yield Bound("max_idle_connections", most_idle, settings.upstream.max_idle_connections)

    def shared(self) -> SharedFigures | None:
        pool = self._shared
        if pool is None:
            return None
        counts, loads = pool.follower.counts, pool.loads
        return SharedFigures(
            is_up=pool.health.is_up,
            read_age_s=pool.follower.stale_s,
            routers=loads.routers,
            counts={
                "reports": counts.reports,
                "deltas": counts.deltas,
                "blocks": counts.blocks,
                "gaps": counts.gaps,
                "snapshots": counts.snapshots,
                "bad_messages": counts.bad_messages + loads.bad_messages,
                "surprises": counts.surprises + loads.surprises + pool.surprises + self._catch_up.surprises,
                "refused_workers": pool.intake.refused,
                "told_loads": loads.told,
                "heard_loads": loads.heard,
                "lost_loads": loads.gaps,
                "refused_loads": loads.refused,
                "told_marks": loads.told_marks,
                "dropped_marks": loads.dropped_marks + self._plane.placement.elsewhere.dropped,
            },
            errors=dict(pool.health.errors),
        )

    def policy(self) -> str:
        return self._plane.settings.routing.policy

    def closing(self) -> bool:
        return self._plane.draining

    def _figures(self, worker: Worker, now_s: float) -> WorkerFigures:
        placement, report, load = self._plane.placement, worker.report, worker.load
        models = worker.models
        tokens_match, tokens_why = self._parity.verdict_on(worker)
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
            tokens_match=tokens_match,
            tokens_why=tokens_why,
            told_truth=worker.told_truth,
            demotions=worker.trust.demotions,
            other_requests=load.other_requests,
            other_prefill_tokens=load.other_tokens,
            engine=dict(report.extra) if report else {},
        )


def shape_figures(parity: ModelParity, shape: Shape, keys: ShapeKeys) -> ShapeFigures:
    rows = []
    for witness in parity.witnesses.values():
        worker, verdict = witness.worker, witness.verdict(shape)
        difference = keys.counted.differences.get(worker.id)
        share = 0.0 if difference is None else difference.share
        rows.append(WorkerTokens(worker.id, worker.kind, verdict.matches, verdict.why, share))
    return ShapeFigures(shape, keys.source, keys.why, tuple(rows))
