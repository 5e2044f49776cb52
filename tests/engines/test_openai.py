"""engines.openai: the generic kind, and the model list that every kind reads."""

import pytest

from engines.adapter import Look
from engines.fetch import Answer
from engines.openai import OpenAi, error_text, health_by_route, list_models, read_models
from router.core.types import Lifecycle
from tests.engines.fake_engine import Connected, FakeEngine, Reply, as_json

MODELS = as_json({"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x"}]})


async def test_model_list_is_all_there_is() -> None:
    """A server that lists models is ready; it shows no load, so every number is unknown."""
    async with FakeEngine({"/v1/models": MODELS}) as engine, Connected(engine) as http:
        adapter = OpenAi(http)
        assert (await adapter.health()).lifecycle is Lifecycle.READY
        assert (await adapter.describe(fresh=True)).models == ("m",)
        assert await adapter.scrape() is None
        assert engine.asked == ["/v1/models"]


async def test_no_model_list() -> None:
    """Without /v1/models the health route decides, and the models stay unknown."""
    async with FakeEngine({"/health": Reply()}) as engine, Connected(engine) as http:
        adapter = OpenAi(http)
        assert (await adapter.health()).lifecycle is Lifecycle.READY
        assert (await adapter.describe(fresh=True)).models is None


async def test_describe_alone_asks() -> None:
    """The list is fetched when no probe has done so yet."""
    async with FakeEngine({"/v1/models": MODELS}) as engine, Connected(engine) as http:
        assert (await OpenAi(http).describe(fresh=True)).models == ("m",)


@pytest.mark.parametrize(
    ("reply", "lifecycle", "detail"),
    [
        (Reply(status=401), Lifecycle.READY, "/v1/models answered 401"),
        (Reply(status=429), Lifecycle.READY, "/v1/models answered 429"),
        (Reply(status=404), Lifecycle.DOWN, "/health answered 404: Not Found"),
        (as_json({"error": {"message": "starting"}}, 503), Lifecycle.LOADING, "/v1/models answered 503: starting"),
        (Reply(b"<html>", 502), Lifecycle.DOWN, "/v1/models answered 502"),
        (Reply(status=302), Lifecycle.DOWN, "/v1/models answered 302"),
    ],
)
async def test_health_of_other_statuses(reply: Reply, lifecycle: Lifecycle, detail: str) -> None:
    """A refused key or a rate limit comes from a living server; 503 is loading; the rest is down, with its own words."""
    routes = {"/v1/models": reply}
    if reply.status == 404:
        routes["/health"] = as_json({"message": "Not Found"}, 404)
    async with FakeEngine(routes) as engine, Connected(engine) as http:
        health = await OpenAi(http).health()
        assert (health.lifecycle, health.detail) == (lifecycle, detail)


@pytest.mark.parametrize("status", [404, 405, 501, 401, 403])
async def test_missing_health_route_is_no_illness(status: int) -> None:
    """Where a front end hides /health, the model list tells whether the engine lives."""
    routes = {"/health": Reply(status=status), "/v1/models": MODELS}
    async with FakeEngine(routes) as engine, Connected(engine) as http:
        assert (await health_by_route(http)).lifecycle is Lifecycle.READY
        engine.routes["/v1/models"] = Reply(status=500)
        assert (await health_by_route(http)).lifecycle is Lifecycle.DOWN


async def test_list_that_its_kind_always_has() -> None:
    """An engine without the model list of its kind is marked; any other failure of the list leaves the models unknown only."""
    async with FakeEngine({"/v1/models": MODELS}) as engine, Connected(engine) as http:
        assert not (await list_models(http)).unlisted
        engine.routes["/v1/models"] = Reply(status=401)
        assert not (await list_models(http)).unlisted
        engine.routes["/v1/models"] = Reply(status=404)
        look = await list_models(http)
        assert (look.unlisted, look.models, look.detail) == (True, None, "models unknown: /v1/models answered 404")


def listed(body: bytes, status: int = 200) -> Look:
    return read_models(Answer("/v1/models", status, {}, body))


@pytest.mark.parametrize(
    ("body", "models"),
    [
        (b'{"data":[{"id":"a"},{"id":"b"},{"id":"a"}]}', ("a", "b")),
        (b'{"data":[{"id":"a","aliases":["a","short"]}]}', ("a", "short")),
        (b'{"data":[{"id":"a","aliases":"a"},{"id":7},{"id":""},{},null,"x"]}', ("a",)),
        (b'{"data":[{"id":"' + b"x" * 600 + b'"}]}', ()),
        (b'{"data":[]}', ()),
        (b'{"data":null}', None),
        (b"[]", None),
        (b"<html>", None),
        (b"\xff", None),
    ],
)
def test_model_lists(body: bytes, models: tuple[str, ...] | None) -> None:
    """Ids and aliases in order, once each; entries of wrong types are left out; what is no list is unknown, with a reason."""
    look = listed(body)
    assert look.models == models
    assert bool(look.detail) is not bool(models)


@pytest.mark.parametrize(
    ("entry", "adapters"),
    [
        (b'"parent":"base","root":"/a"', {"x": "/a"}),
        (b'"parent":"base"', {"x": ""}),
        (b'"parent":"base","root":7', {"x": ""}),
        (b'"parent":null,"root":"/a"', {}),
        (b'"parent":"","root":"/a"', {}),
        (b'"parent":7', {}),
    ],
)
def test_adapters_in_lists(entry: bytes, adapters: dict[str, str]) -> None:
    """A card with a parent is an adapter; its root tells where the weights are from."""
    look = listed(b'{"data":[{"id":"base"},{"id":"x",' + entry + b"}]}")
    assert (look.models, look.adapters) == (("base", "x"), adapters)


def test_model_list_is_bounded() -> None:
    """An engine cannot fill the router with names."""
    body = b'{"data":[' + b",".join(b'{"id":"m%d"}' % i for i in range(5000)) + b"]}"
    assert len(listed(body).models or ()) == 1000
    assert (
        len(listed(b'{"data":[{"id":"a","aliases":[' + b",".join(b'"n%d"' % i for i in range(5000)) + b"]}]}").models or ())
        == 1000
    )


def test_refused_list() -> None:
    """A list that needs another key leaves the models unknown and says so."""
    assert listed(b"", 401).detail == "models unknown: /v1/models answered 401"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', "Loading model"),
        (b'{"object":"error","message":"queue is full","code":503}', "queue is full"),
        (b'{"error":"Unauthorized"}', "Unauthorized"),
        (b'{"error":{"message":7}}', ""),
        (b'{"error":null}', ""),
        (b"<html>", ""),
    ],
)
def test_error_texts(body: bytes, words: str) -> None:
    """The message of nested, flat and plain error bodies; nothing from the rest."""
    assert error_text(Answer("/health", 503, {}, body)) == words
