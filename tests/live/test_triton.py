"""A real Triton server with a Python model behind the router: `make test-triton`."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from engines.launch import LocalEngine, free_port, launch
from engines.starters.triton import TritonOptions
from loadtest.demo.router_process import LocalRouter
from tests.e2e.cluster import post, until
from tests.live.conftest import Routers
from tests.live.places import TRITON_MODELS, Places
from tests.live.recording import under_load
from tests.live.stage import row_of

GENERATE, STREAM = "/v2/models/tiny/generate", "/v2/models/tiny/generate_stream"
START_DEADLINE_S = 30.0


@pytest.fixture
def triton(places: Places, tmp_path: Path) -> Iterator[LocalEngine]:
    options = TritonOptions(places.triton, TRITON_MODELS, "tiny", metrics_port=free_port())
    with launch(options, tmp_path / "triton.log", START_DEADLINE_S) as engine:
        yield engine


@pytest.fixture
def router(triton: LocalEngine, routers: Routers) -> LocalRouter:
    assert isinstance(triton.options, TritonOptions)
    return routers.start([f"triton={triton.url},metrics={triton.options.metrics_url}"])


def ask(router: LocalRouter, path: str, **question: Any) -> tuple[int, bytes]:
    status, _, body = post(router.url + path, json.dumps({"text_input": "one two three", **question}).encode())
    return status, body


def test_generate_through_the_router(triton: LocalEngine, router: LocalRouter) -> None:
    """Generate and generate_stream answer as Triton does; the model is learnt from the repository's index."""
    assert row_of(router, triton.url)["models"] == ["tiny"]
    status, body = ask(router, GENERATE, max_tokens=4)
    assert (status, json.loads(body)["text_output"]) == (200, "one two three one")
    status, body = ask(router, STREAM, parameters={"max_tokens": 3, "stream": True})
    pieces = [json.loads(line[6:])["text_output"] for line in body.split(b"\n\n") if line.startswith(b"data: ")]
    assert (status, pieces) == (200, ["one ", "two ", "three "])


def test_errors_pass_through(triton: LocalEngine, router: LocalRouter) -> None:
    """What the model refuses reaches the client, streamed and not, and is not held against the worker."""
    for path in (GENERATE, STREAM):
        status, body = ask(router, path, text_input="fail")
        assert status == 400 and b"the prompt asks for a failure" in body
    assert row_of(router, triton.url)["lifecycle"] == "ready"


def test_queue_is_read(triton: LocalEngine, router: LocalRouter) -> None:
    """Requests that wait in Triton's queue show as waiting, read from its metrics port."""
    with under_load(triton, GENERATE, [{"text_input": "one", "max_tokens": 100}] * 4):
        until(lambda: row_of(router, triton.url)["waiting"] == 3, "the queue shows")
    until(lambda: row_of(router, triton.url)["waiting"] == 0, "the queue is empty again")


@pytest.mark.parametrize(("path", "goes_on"), [(GENERATE, True), (STREAM, False)])
def test_client_that_leaves(triton: LocalEngine, router: LocalRouter, path: str, goes_on: bool) -> None:
    """The router's count is given back at once. Triton stops a stream, and goes on with a plain answer to its end."""
    wanted = {"max_tokens": 150} if path == GENERATE else {"parameters": {"max_tokens": 150, "stream": True}}
    body = json.dumps({"text_input": "one two", **wanted}).encode()
    address = urlsplit(router.url)
    with socket.create_connection((address.hostname, address.port or 0), timeout=10) as client:
        head = f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: row_of(router, triton.url)["in_flight"] == 1, "it is sent")
        time.sleep(0.3)
    until(lambda: row_of(router, triton.url)["in_flight"] == 0, "the count is given back", 2.0)
    began_s = time.monotonic()
    assert ask(router, GENERATE, max_tokens=1)[0] == 200  # the model answers one at a time, a word in 20 ms
    assert (time.monotonic() - began_s > 1.5) is goes_on


def test_no_cache_credit(triton: LocalEngine, router: LocalRouter) -> None:
    """A model that reports no cached tokens gets none predicted as certain: truth is never exact."""
    ask(router, GENERATE, max_tokens=1)
    assert row_of(router, triton.url)["truth"] != "exact"


def test_model_that_died(triton: LocalEngine, router: LocalRouter) -> None:
    """Triton says ready though the process of its model is gone; its refusals still reach the client."""
    tasks = Path(f"/proc/{triton.process.pid}/task")
    (child,) = [int(child) for path in tasks.glob("*/children") for child in path.read_text().split()]
    os.kill(child, signal.SIGKILL)
    status, body = ask(router, GENERATE, max_tokens=1)
    assert status == 400 and b"not healthy" in body
    assert row_of(router, triton.url)["lifecycle"] == "ready"
    triton.kill()  # its own end would wait half a minute for the dead model
    until(lambda: row_of(router, triton.url)["lifecycle"] == "down", "the router sees it gone")
