"""engines.kinds: the table and the settings name the same kinds."""

from engines.kinds import ADAPTERS, adapter_of
from router.core.types import Lifecycle
from router.settings import KINDS
from tests.engines.fake_engine import Connected, FakeEngine, Reply, as_json


def test_every_kind_has_its_row() -> None:
    """A kind that settings accept has an adapter, and no adapter is out of reach."""
    assert set(ADAPTERS) == set(KINDS)


async def test_every_adapter_takes_a_plain_server() -> None:
    """Routes that an engine does not have never make it unfit: /health and a model list are enough for every kind."""
    routes = {"/health": Reply(), "/v1/models": as_json({"data": [{"id": "m"}]})}
    async with FakeEngine(routes) as engine, Connected(engine) as http:
        for kind in KINDS:
            adapter = adapter_of(kind, http)
            assert (await adapter.health()).lifecycle is Lifecycle.READY
            assert (await adapter.describe(fresh=True)).models == ("m",)
            look = await adapter.scrape()
            assert look is None or look.running is None
