"""What the admin port is told."""

from pathlib import Path

from router.admin.metrics import SHARED_COUNTERS
from router.catch_up import CatchUp
from router.core.types import Truth
from router.intake import Intake
from router.overview import Overview
from router.proxy.plane import DataPlane
from router.settings import Settings, StateSettings
from router.shared_pool import SharedPool
from router.tokens.parity_watch import ParityWatch
from router.tokens.pre_tokenizers import GPT2
from tests.proxy.rig import Rig, chat, rig
from tests.tokens.token_engine import TokenEngine
from tests.tokens.vocabularies import CHATML, byte_level, entry_of, write_folder


def catch_up_of(plane: DataPlane) -> CatchUp:
    return CatchUp(plane.placement, plane.clock, lambda worker: None)


def overview_of(made: Rig, engine: TokenEngine | None = None) -> tuple[Overview, ParityWatch]:
    """With an engine that tells the tokens of all workers."""
    plane = made.plane
    watch = ParityWatch(plane.settings.tokens, plane.fleet, plane.keyer.sources, lambda worker: engine, plane.clock)
    return Overview(plane, watch, None, None, catch_up_of(plane)), watch


async def test_figures_follow_the_router() -> None:
    """Workers, bounds and the index show what a request left behind."""
    async with rig() as made:
        overview, _ = overview_of(made)
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
        bounds = {bound.knob: bound for bound in overview_of(made)[0].bounds()}
        assert all(0 <= bound.size <= bound.limit for bound in bounds.values())
        sections = vars(Settings())
        assert all(any(hasattr(section, knob) for section in sections.values()) for knob in bounds)
        assert bounds["max_idle_connections"].size == 1 and bounds["decision_log_size"].size == 1


async def test_tokens_that_differ_are_shown(tmp_path: Path) -> None:
    """The model's figures, its metric's rows and the worker's own say that an engine makes other tokens, and where."""
    tokenizer = write_folder(tmp_path / "m", byte_level((GPT2,)), chat_template=CHATML)
    other = entry_of(byte_level((GPT2,)), CHATML.replace("<|im_end|>", ""))
    async with rig(tokenizer=(str(tokenizer),)) as made:
        overview, watch = overview_of(made, TokenEngine(other))
        assert overview.workers()[0].tokens_match is None
        await watch.round()
        (worker,) = overview.workers()
        assert worker.tokens_match is False and worker.tokens_why.startswith("the chat template differs from token")
        (model,) = overview.models()
        assert (model.model, model.tokenizer) == ("m", "m")
        found = {shape.shape: (shape.keys_from, [row.matches for row in shape.workers]) for shape in model.prompts}
        assert found == {
            "chat": ("engine", [False]),
            "parts": ("engine", [False]),
            "tools": ("engine", [False]),
            "text": ("tokenizer", [True]),
        }
        assert list(overview.key_sources()) == [("m", shape, source) for shape, (source, _) in found.items()]
        keys = made.plane.keyer.sources.of("m")
        assert keys is not None
        keys.chat.counted.note(worker.id, 1, 2)
        assert overview.models()[0].prompts[0].workers[0].differing_share == 0.1


async def test_shared_state_where_there_is_one() -> None:
    """Without Redis there is nothing to show; with it, what was read and told, and that nothing was read yet."""
    async with rig() as made:
        overview, watch = overview_of(made)
        assert overview.shared() is None
        plane = made.plane
        settings = Settings(state=StateSettings(redis="redis://127.0.0.1:1"))
        intake = Intake(plane.fleet, plane.placement, plane.clock, lambda worker: None)
        pool = SharedPool(settings, plane.fleet, plane.placement, intake, lambda worker: None)
        pool.intake.refused = 2
        shown = Overview(plane, watch, None, pool, catch_up_of(plane)).shared()
        assert shown is not None
        assert (shown.is_up, shown.read_age_s, shown.routers, shown.errors) == (False, None, 0, {})
        assert shown.counts.keys() == SHARED_COUNTERS.keys() and shown.counts["refused_workers"] == 2
