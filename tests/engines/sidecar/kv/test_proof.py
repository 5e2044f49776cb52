"""engines.sidecar.kv.proof: the self-test against engines that fail one precondition each."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from router.core.types import Truth
from tests.engines.fake_engine import as_json
from tests.engines.sidecar.kv.live_engine import EVENTS, LiveEngine, watched
from tests.engines.sidecar.kv.publisher import EnginePublisher, stored_map


def only_window(engine: LiveEngine) -> None:
    """Blocks of a sliding-window group only."""

    def compute(tokens: list[int]) -> int:
        engine.publisher.publish(stored_map(engine.blocks_of(tokens), kv_cache_spec_kind="sliding_window"))
        return 0

    engine.compute = compute  # type: ignore[method-assign]


def set_to(**values: object) -> Callable[[LiveEngine], None]:
    def change(engine: LiveEngine) -> None:
        for name, value in values.items():
            setattr(engine, name, value)

    return change


BROKEN: list[tuple[str, Callable[[LiveEngine], None], str]] = [
    ("events off", set_to(tells=False), "events off: 48 tokens of the probe prompt were cached and no KV event told so"),
    ("prefix caching off", set_to(caches=False), "prefix caching off: the probe prompt sent once more found nothing cached"),
    ("token ids differ", set_to(shift=1), "token ids differ: its KV events tell of other blocks"),
    ("tokens added", set_to(counted_more=1, shift=1), "token ids differ: 49 were sent, the engine counted 50"),
    ("no group that counts", only_window, "block size unknown: its KV events tell of no block of full attention"),
    ("topic", lambda engine: engine.show_sources(topic="mine"), "topic: its KV events come under '', not 'mine'"),
    ("refused", lambda engine: engine.routes.update({"/v1/completions": as_json({"error": "no"}, 400)}), "(400: no)"),
]


@pytest.mark.parametrize(("change", "words"), [pytest.param(change, words, id=name) for name, change, words in BROKEN])
async def test_precondition_that_fails(change: Callable[[LiveEngine], None], words: str) -> None:
    """The reason names it; mended, the next test passes."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        change(engine)
        async with watched(engine) as heard:
            await heard.untrusted(words)
            engine.caches = engine.tells = True
            engine.shift = engine.counted_more = 0
            engine.routes.pop("/v1/completions", None)
            if "compute" in vars(engine):
                del engine.compute
            if "topic" in words or "full attention" in words:  # these stay as they are for an engine's life
                return
            await heard.exact()


async def test_engine_that_does_not_answer() -> None:
    """No answer within the time is a reason like others."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher)
        engine.routes["/v1/completions"] = replace(as_json({}), hangs=True)
        async with watched(engine, replace(EVENTS, self_test_timeout_s=0.1)) as heard:
            await heard.untrusted("the engine did not answer the probe prompt: /v1/completions: no answer within 0.1 s")


async def test_unknown_block_size() -> None:
    """Where nothing tells the block size beforehand, the prompt is long enough for any usual one, and events tell it."""
    with EnginePublisher() as publisher:
        engine = LiveEngine(publisher, 256)
        engine._page = lambda: b""  # type: ignore[method-assign]
        async with watched(engine) as heard:
            report = await heard.exact()
            assert len(engine.probes[0]) == 513 and report.block_tokens == 256
            assert report.truth is Truth.EXACT
