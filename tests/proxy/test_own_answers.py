"""Health and the list of models on the data port."""

import orjson
import pytest

from router.core.fleet import Fleet
from router.core.types import Lifecycle, WorkerId, WorkerReport
from router.errors import MethodNotAllowed, ModelNotFound, NoWorker, ShuttingDown
from router.proxy.own_answers import own_answer
from router.settings import EngineSpec, FleetSettings


def fleet(**models: tuple[str, ...]) -> Fleet:
    """A ready worker per keyword, serving those models."""
    made = Fleet(FleetSettings())
    for name, served in models.items():
        made.add(EngineSpec("openai", f"http://{name}:1"), 0.0)
        made.apply(WorkerReport(WorkerId(f"{name}:1"), "openai", "", "1", Lifecycle.READY, 1.0, models=served), 1.0)
    return made


def test_health_follows_the_fleet_and_the_drain() -> None:
    """200 with one ready worker, 503 without one and from the first moment of draining."""
    assert own_answer(b"GET", "/health", "/health", fleet(a=("m",)), False) == b'{"status":"ok"}'
    with pytest.raises(NoWorker):
        own_answer(b"GET", "/health", "/health", fleet(), False)
    with pytest.raises(ShuttingDown):
        own_answer(b"GET", "/health", "/health", fleet(a=("m",)), True)


def test_kserve_health() -> None:
    """KServe's health routes follow the fleet like /health; alive is alive even without a worker and while draining."""
    ready = fleet(a=("m",))
    assert own_answer(b"GET", "/health", "/v2/health/live", fleet(), True) == b"{}"
    assert own_answer(b"GET", "/health", "/v2/health/ready", ready, False) == b'{"status":"ok"}'
    with pytest.raises(NoWorker):
        own_answer(b"GET", "/health", "/v2/health/ready", fleet(), False)
    assert own_answer(b"GET", "/v1/models", "/v2/models/m/ready", ready, False) == b"{}"
    with pytest.raises(ModelNotFound):
        own_answer(b"GET", "/v1/models", "/v2/models/x/ready", ready, False)


def test_models_are_the_union_without_duplicates() -> None:
    """Every model of a ready worker once, in the order of workers; a single one by its name, slashes included."""
    both = fleet(a=("m", "org/n"), b=("m", "x"))
    listed = orjson.loads(own_answer(b"GET", "/v1/models", "/v1/models", both, False))
    assert [model["id"] for model in listed["data"]] == ["m", "org/n", "x"]
    assert orjson.loads(own_answer(b"GET", "/v1/models", "/v1/models/org/n", both, False))["id"] == "org/n"
    assert orjson.loads(own_answer(b"HEAD", "/v1/models", "/v1/models/org%2Fn", both, False))["id"] == "org/n"
    with pytest.raises(MethodNotAllowed):
        own_answer(b"DELETE", "/v1/models", "/v1/models/m", both, False)
    with pytest.raises(ModelNotFound):
        own_answer(b"GET", "/v1/models", "/v1/models/none", both, False)
