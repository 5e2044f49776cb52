"""What the admin port is told."""

from router.core.types import Truth
from router.overview import Overview
from router.settings import Settings
from tests.proxy.rig import chat, rig


async def test_figures_follow_the_router() -> None:
    """Workers, bounds and the index show what a request left behind."""
    async with rig() as made:
        overview = Overview(made.plane, None)
        await made.post(chat("hello " * 100))
        worker = overview.workers()[0]
        assert (worker.id, worker.in_flight, worker.models) == (made.engines[0].worker_id, 0, ("m",))
        assert worker.blocks_held == overview.index().blocks > 0
        assert (worker.told_truth, worker.demotions, worker.other_requests) == (Truth.MODELLED, 0, 0)
        assert worker.report_age_s is not None and worker.report_age_s >= 0
        decision = overview.latest_decisions(1)[0]
        assert overview.decision(decision.request_id) is decision
        assert not overview.closing()


async def test_every_bound_has_a_size_and_its_knob() -> None:
    """Each bounded thing is shown beside the knob that bounds it, never above it."""
    async with rig() as made:
        await made.post(chat())
        bounds = {bound.knob: bound for bound in Overview(made.plane, None).bounds()}
        assert all(0 <= bound.size <= bound.limit for bound in bounds.values())
        sections = vars(Settings())
        assert all(any(hasattr(section, knob) for section in sections.values()) for knob in bounds)
        assert bounds["max_idle_connections"].size == 1 and bounds["decision_log_size"].size == 1
