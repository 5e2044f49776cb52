"""engines.kinds: every row of the table has its adapter."""

from engines.adapter import Adapter
from engines.kinds import adapter_of
from router.core.types import Lifecycle
from router.kinds import KINDS
from tests.engines.fake_engine import Connected, FakeEngine, Reply, as_json


async def test_every_adapter_takes_a_plain_server() -> None:
    """Routes that an engine does not have never make it unfit: /health and a model list are enough for every kind."""
    routes = {"/health": Reply(), "/v1/models": as_json({"data": [{"id": "m"}]})}
    async with FakeEngine(routes) as engine, Connected(engine) as http:
        for kind in KINDS:
            adapter: Adapter = adapter_of(kind, http)
            assert (await adapter.health()).lifecycle is Lifecycle.READY
            assert (await adapter.describe(fresh=True)).models == ("m",)
            look = await adapter.scrape()
            assert look is None or look.running is None


async def test_every_worker_has_its_own_adapter() -> None:
    """What one engine cannot do is not held against another."""
    async with FakeEngine({}) as engine, Connected(engine) as http:
        for kind in KINDS:
            assert adapter_of(kind, http) is not adapter_of(kind, http)
