"""engines.sidecar.kv.sources: where events are published, by settings or by the engine's own word."""

from typing import Any

import pytest

from engines.sidecar.kv.sources import EventSource, NoSource, find_source, given_source
from router.settings import EngineSpec
from tests.engines.fake_engine import Connected, FakeEngine, Reply, as_json

URL = "http://10.0.0.7:8000"


@pytest.mark.parametrize(
    ("options", "rank", "source"),
    [
        pytest.param({}, None, None, id="nothing given"),
        pytest.param({"events": "tcp://h:5557"}, None, EventSource("tcp://h:5557"), id="events only"),
        pytest.param(
            {"events": "tcp://h:5557#kv@", "replay": "tcp://h:5657"}, 3,
            EventSource("tcp://h:5560", "tcp://h:5660", "kv@"), id="rank and topic",
        ),
        pytest.param({"events": "tcp://*:5557"}, None, EventSource("tcp://*:5557", binds=True), id="the engine connects"),
        pytest.param({"events": "ipc:///run/kv"}, 0, EventSource("ipc:///run/kv"), id="a socket file"),
    ],
)  # fmt: skip
def test_given(options: dict[str, Any], rank: int | None, source: EventSource | None) -> None:
    """`events=` and `replay=` are the addresses of rank 0; an address with a wildcard is bound."""
    assert given_source(EngineSpec("vllm", URL, rank=rank, **options)) == source


CONFIG = {"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": None, "topic": "kv"}
TWO = {"0": CONFIG, "1": {**CONFIG, "endpoint": "tcp://*:5558", "replay_endpoint": "tcp://*:5658"}}


async def ask(kind: str, path: str, reply: Reply, rank: int | None = None, **options: Any) -> EventSource:
    async with FakeEngine({path: reply}) as engine, Connected(engine) as http:
        return await find_source(engine.spec(kind, rank=rank, **options), http)


async def refusal(kind: str, path: str, reply: Reply, rank: int | None = None) -> str:
    with pytest.raises(NoSource) as raised:
        await ask(kind, path, reply, rank)
    return str(raised.value)


@pytest.mark.parametrize(
    ("value", "rank", "source"),
    [
        pytest.param({"0": CONFIG}, None, EventSource("tcp://127.0.0.1:5557", None, "kv"), id="vLLM 0.32"),
        pytest.param(TWO, 1, EventSource("tcp://127.0.0.1:5558", "tcp://127.0.0.1:5658", "kv"), id="a rank"),
        pytest.param(
            [{"data_parallel_rank": 2, "endpoint": "tcp://10.1.1.1:41002", "replay_endpoint": None, "topic": ""}], None,
            EventSource("tcp://10.1.1.1:41002"), id="a list, port chosen by the system",
        ),
        pytest.param(
            {"sources": [{"data_parallel_rank": 0, "endpoint": "tcp://[::]:1", "replay_endpoint": "tcp://0.0.0.0:2"}]}, 0,
            EventSource("tcp://127.0.0.1:1", "tcp://127.0.0.1:2"), id="a list in an object",
        ),
    ],
)  # fmt: skip
async def test_vllm_tells(value: Any, rank: int | None, source: EventSource) -> None:
    """All forms of /kv_event_sources are understood; a wildcard is the engine's own host."""
    assert await ask("vllm", "/kv_event_sources", as_json(value), rank) == source


@pytest.mark.parametrize(
    ("reply", "rank", "words"),
    [
        (as_json({}), None, "KV events are off: start vLLM with --kv-events-config"),
        (as_json({"0": None}), 0, "KV events are off"),
        (as_json([]), None, "KV events are off"),
        (as_json("?"), None, "KV events are off"),
        (as_json({"0": {"endpoint": 7}}), None, "KV events are off"),
        (as_json(TWO), None, "2 data-parallel ranks publish KV events"),
        (as_json(TWO), 5, "KV events are off"),
        (as_json({}, 404), None, "name their endpoint with events="),
        (as_json({}, 500), None, "/kv_event_sources answered 500"),
        (Reply(b"<html>"), None, "did not say where"),
    ],
)
async def test_vllm_tells_nothing(reply: Reply, rank: int | None, words: str) -> None:
    """Why there is no source is said in words."""
    assert words in await refusal("vllm", "/kv_event_sources", reply, rank)


KV = {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557, "topic": "kv", "block_size": 16, "dp_size": 1}


@pytest.mark.parametrize(
    ("kv_events", "rank", "source"),
    [
        pytest.param(KV, None, EventSource("tcp://127.0.0.1:5557", None, "kv"), id="one rank"),
        pytest.param(
            {**KV, "dp_size": 4, "replay_endpoint_port_base": 5657, "endpoint_host": "10.1.1.1", "topic": None}, 2,
            EventSource("tcp://10.1.1.1:5559", "tcp://10.1.1.1:5659"), id="ranks behind one another",
        ),
    ],
)  # fmt: skip
async def test_sglang_tells(kv_events: Any, rank: int | None, source: EventSource) -> None:
    """SGLang's /server_info has base ports, to which the rank is added; older releases call the route otherwise."""
    for path in ("/server_info", "/get_server_info"):
        assert await ask("sglang", path, as_json({"kv_events": kv_events, "api_key": "x"}), rank) == source


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"kv_events": None}, "KV events are off: start SGLang with --kv-events-config"),
        ({"kv_events": {"endpoint_port_base": "x"}}, "KV events are off"),
        ({"kv_events": {**KV, "dp_size": 2}}, "2 data-parallel ranks"),
        ({}, "name their endpoint with events="),
    ],
)
async def test_sglang_tells_nothing(info: Any, words: str) -> None:
    """Why there is no source is said in words."""
    assert words in await refusal("sglang", "/server_info", as_json(info))


async def test_other_refusals() -> None:
    """A failing route and a kind without events; what is given is not asked for."""
    assert "answered 500" in await refusal("sglang", "/server_info", as_json({}, 500))
    assert await refusal("llama.cpp", "/x", as_json({})) == ""
    assert await ask("openai", "/x", as_json({}), events="tcp://h:1") == EventSource("tcp://h:1")
