"""Engines' own generate routes through the data port: passed on unchanged, keyed, and answered in their own form.

Bodies and events of TGI are made from its router/src/server.rs and were not run live; Triton's were seen on the wire.
"""

import asyncio

import orjson
import pytest

from tests.proxy.rig import EngineRequest, rig, sized, split_answer, until

TEXT = "the same beginning of a prompt that is long enough to be keyed. " * 20
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
TGI_EVENT = (
    b'data:{"index":1,"token":{"id":5,"text":" a","logprob":-0.1,"special":false},"generated_text":null,"details":null}\n\n'
)
TRITON_EVENT = b'data: {"model_name":"m","model_version":"1","text_output":" a"}\n\n'


async def echo(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(sized(request.body))


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/generate", {"inputs": TEXT, "parameters": {"max_new_tokens": 1}}),
        ("/generate", {"text": TEXT, "sampling_params": {"max_new_tokens": 1}}),
        ("/v2/models/m/generate", {"text_input": TEXT, "parameters": {"max_tokens": 1}}),
        ("/mii/m", {"prompts": [TEXT], "max_length": 1}),
    ],
)
async def test_prompts_are_keyed_and_bodies_unchanged(path: str, fields: dict[str, object]) -> None:
    """The body reaches the engine as it was written, and the second request knows of the first."""
    body = orjson.dumps(fields)
    async with rig(echo, echo, policy="warm") as made:
        for number in range(2):
            status, _, answer = split_answer(await made.post(body, path, f"X-Request-Id: r{number}"))
            assert (status, answer) == (b"HTTP/1.1 200 OK", body)
            await made.settled()
        first, second = (made.plane.placement.decision(name) for name in ("r0", "r1"))
        assert first is not None and second is not None and first.worker == second.worker
        assert (second.reason, second.predicted_cached_tokens > 200, second.unkeyed_reason) == ("warm_prefix", True, None)
        assert made.nothing_left()


@pytest.mark.parametrize(("path", "event"), [("/generate_stream", TGI_EVENT), ("/v2/models/m/generate_stream", TRITON_EVENT)])
async def test_streams_of_engines_own_routes(path: str, event: bytes) -> None:
    """Their events pass through, tell the first token, and end without [DONE]."""

    async def stream(request: EngineRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + event + event)
        await writer.drain()
        writer.close()

    async with rig(stream) as made:
        body = orjson.dumps({"inputs": "a", "text_input": "a"})
        assert split_answer(await made.post(body, path, "X-Request-Id: r"))[2] == event * 2
        await until(made.nothing_left)
        decision = made.plane.placement.decision("r")
        assert decision is not None and decision.ttft_s is not None and decision.outcome == "ok"


async def test_errors_have_the_form_of_the_path() -> None:
    """Triton's and TGI's clients find the text of the router's own errors where they look for it."""
    async with rig() as made:
        status, _, body = split_answer(await made.post(b'{"text_input":"a"}', "/v2/models/other/generate"))
        assert status.startswith(b"HTTP/1.1 404") and orjson.loads(body)["error"] == "no worker serves model 'other'"
        status, _, body = split_answer(await made.post(b'{"inputs":"a","model":"other"}', "/generate"))
        assert orjson.loads(body)["error_type"] == "generation"
        assert (
            split_answer(await made.send(b"GET /v2/models/m/ready HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n"))[2]
            == b"{}"
        )
        status, _, body = split_answer(await made.post(b"{}", "/v2/repository/models/m/unload"))
        assert status.startswith(b"HTTP/1.1 404") and made.engines[0].requests == []
