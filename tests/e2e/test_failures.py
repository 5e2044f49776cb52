"""Clients that leave and engines that die: nothing hangs, nothing is lost that could be saved, nothing stays counted."""

import asyncio
import json
import socket
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import openai
import pytest

from engines.launch import LocalEngine
from tests.e2e.cluster import MODEL, Cluster, busy_slots, post, until
from tests.e2e.conftest import ClusterMaker

LONG_TOKENS = 1500  # an answer that takes seconds
TOKENS_UNDER_LOAD = 300


@dataclass
class Stream:
    """One streamed request and what became of it; tells `begun` when its first token came."""

    number: int
    begun: "asyncio.Queue[Stream]" = field(repr=False)
    events: int = 0
    tokens: int = 0
    finish_reason: str | None = None
    error: openai.APIError | None = None

    @property
    def request_id(self) -> str:
        return f"stream-{self.number}"

    async def run(self, sdk: openai.AsyncOpenAI) -> None:
        """Streams one answer of TOKENS_UNDER_LOAD tokens, or keeps the error that ended it."""
        try:
            events = await sdk.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"{self.number} " * 40}],
                max_tokens=TOKENS_UNDER_LOAD,
                temperature=0,
                stream=True,
                extra_headers={"X-Request-ID": self.request_id},
                extra_body={"ignore_eos": True},
            )
            async for event in events:
                self.events += 1
                if event.choices and event.choices[0].delta.content:
                    self.tokens += 1
                    if self.tokens == 1:
                        self.begun.put_nowait(self)
                if event.choices and event.choices[0].finish_reason:
                    self.finish_reason = event.choices[0].finish_reason
        except openai.APIError as error:
            self.error = error


def sdk_of(cluster: Cluster) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=cluster.router.url + "/v1", api_key="none", max_retries=0, timeout=60)


def chat(cluster: Cluster, text: str, request_id: str) -> int:
    """The status of a short chat completion."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2, "temperature": 0}
    status, _, _ = post(cluster.router.url + "/v1/chat/completions", json.dumps(body).encode(), **{"X-Request-ID": request_id})
    return status


def none_in_flight(cluster: Cluster) -> bool:
    return all(row["in_flight"] == row["pending_prefill_tokens"] == 0 for row in cluster.router.workers())


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves(cluster: Cluster, stream: bool) -> None:
    """A client that closes its connection in mid-answer frees the router's count within a second and, when streaming, the
    engine's slot. (This llama.cpp itself does not notice who leaves a plain answer, not without a router either.)"""
    question = {"messages": [{"role": "user", "content": "Go on and on."}], "max_tokens": LONG_TOKENS, "ignore_eos": True}
    body = json.dumps({"model": MODEL, "stream": stream, **question}).encode()
    address = urlsplit(cluster.router.url)
    with socket.create_connection((address.hostname, address.port or 0), timeout=10) as client:
        client.sendall(head_of_post(address.netloc, len(body)) + body)
        until(lambda: sum(busy_slots(engine) for engine in cluster.engines) == 1, "an engine works on it")
        if stream:
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
    until(lambda: none_in_flight(cluster), "the lease is given back", deadline_s=1.0)
    until(lambda: idle(cluster), "the slot is free", deadline_s=1.0 if stream else 30.0)


def head_of_post(host: str, body_bytes: int) -> bytes:
    lines = ("POST /v1/chat/completions HTTP/1.1", f"Host: {host}", f"Content-Length: {body_bytes}")
    return "\r\n".join((*lines, "Content-Type: application/json", "", "")).encode()


def idle(cluster: Cluster) -> bool:
    return not any(busy_slots(engine) for engine in cluster.engines)


def test_sdk_that_stops_reading(client: openai.OpenAI, cluster: Cluster) -> None:
    """Leaving a stream through the SDK is a client's leaving too: the engine's slot is free within a second."""
    events = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Count."}],
        max_tokens=LONG_TOKENS,
        stream=True,
        extra_body={"ignore_eos": True},
        extra_headers={"X-Request-ID": "left-early"},
    )
    for _ in range(3):
        next(events)
    events.close()
    until(lambda: idle(cluster), "the slot is free", deadline_s=1.0)
    until(lambda: none_in_flight(cluster), "the lease is given back", deadline_s=1.0)
    assert cluster.decision("left-early")["outcome"] == "client_gone"


def test_sdk_that_times_out(client: openai.OpenAI, cluster: Cluster) -> None:
    """A client's time-out before the answer gives the lease back; the engine is not blamed."""
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Count on."}],
            max_tokens=LONG_TOKENS,
            extra_body={"ignore_eos": True},
        )
    until(lambda: none_in_flight(cluster), "the lease is given back", deadline_s=1.0)
    assert cluster.router.ready_workers() == 2
    until(lambda: idle(cluster), "the engine is done", deadline_s=30.0)


async def kill_under_load(cluster: Cluster, victim: LocalEngine) -> list[Stream]:
    """Twelve streams over two engines with two slots each; SIGKILL for `victim` once it has begun to answer one of them."""
    begun: asyncio.Queue[Stream] = asyncio.Queue()
    streams = [Stream(number, begun) for number in range(12)]
    victim_id = cluster.worker(victim)["id"]
    async with sdk_of(cluster) as sdk, asyncio.TaskGroup() as group:
        for stream in streams:
            group.create_task(stream.run(sdk))
        while (await asyncio.to_thread(cluster.router.decision, (await begun.get()).request_id))["worker"] != victim_id:
            pass
        await asyncio.to_thread(victim.kill)
    return streams


async def test_killed_engine(make_cluster: ClusterMaker) -> None:
    """SIGKILL of one of two engines under load. Requests of which nothing was sent are served by the other engine; streams
    already begun end in an error event; the dead engine gets nothing until it is back; no lease stays; its cache is
    forgotten when it returns on the same port."""
    cluster = make_cluster(slots=2, slot_context_tokens=2048)
    victim, survivor = cluster.engines
    victim_id, generation = cluster.worker(victim)["id"], cluster.worker(victim)["generation"]
    streams = await kill_under_load(cluster, victim)

    broken = [stream for stream in streams if stream.error is not None]
    assert broken and all(stream.events > 0 for stream in broken), "a request without a first byte was not saved"
    for stream in broken:
        assert "failed in mid-answer" in str(stream.error) and stream.error is not None
        assert stream.error.code == "upstream_broken"
        assert cluster.decision(stream.request_id)["worker"] == victim_id
    saved = [stream for stream in streams if stream.error is None]
    assert len(saved) > len(broken) and all(stream.finish_reason == "length" for stream in saved)
    until(lambda: none_in_flight(cluster), "no lease is left", deadline_s=2.0)

    until(lambda: cluster.worker(victim)["lifecycle"] == "down", "the dead engine is down", deadline_s=5.0)
    for number in range(6):
        assert chat(cluster, f"after {number}: " + "word " * 30, f"after-{number}") == 200
        assert cluster.engine_of(f"after-{number}") is survivor

    cluster.engines.remove(victim)
    reborn = cluster.start_missing(victim.port)
    until(lambda: cluster.worker(reborn)["lifecycle"] == "ready", "the engine is back", deadline_s=10.0)
    row = cluster.worker(reborn)
    assert row["id"] == victim_id and row["generation"] != generation
    assert row["blocks_held"] == 0, "the router believes in a cache that died"
    until(lambda: "back" if gets_requests(cluster, reborn) else None, "the engine gets requests again", deadline_s=20.0)
    assert cluster.router.process.is_running


def gets_requests(cluster: Cluster, engine: LocalEngine) -> bool:
    """Whether one of a few new prompts goes to `engine`; what it then says of cached tokens was predicted as none."""
    for number in range(6):
        request_id = f"new-{time.monotonic_ns()}"
        assert chat(cluster, f"{request_id} {number} " + "thing " * 50, request_id) == 200
        decision = cluster.decision(request_id)
        if cluster.engine_at(decision["worker"]) is engine:
            assert decision["predicted_cached_tokens"] < 48
            return True
    return False


async def test_killed_in_prefill(make_cluster: ClusterMaker) -> None:
    """An engine that dies while it computes a long prompt has told the client nothing, though llama.cpp sent its head at
    once: the other engine serves the request as if nothing had happened."""
    cluster = make_cluster(slots=1, slot_context_tokens=8192)
    body = {"model": MODEL, "stream": True, "max_tokens": 3, "messages": [{"role": "user", "content": "word " * 7000}]}
    async with asyncio.TaskGroup() as group:
        url = cluster.router.url + "/v1/chat/completions"
        asked = group.create_task(asyncio.to_thread(post, url, json.dumps(body).encode(), **{"X-Request-ID": "long"}))
        (victim,) = await asyncio.to_thread(until, lambda: [e for e in cluster.engines if busy_slots(e)], "a prefill runs")
        await asyncio.to_thread(victim.kill)
        status, headers, answer = await asked
    assert status == 200 and headers["content-type"] == "text/event-stream"
    assert answer.endswith(b"data: [DONE]\n\n") and b"error" not in answer
    decision = cluster.decision("long")
    assert decision["reason"] == "retry" and cluster.engine_of("long") is not victim
    until(lambda: none_in_flight(cluster), "no lease is left", deadline_s=2.0)


def test_whole_pool_dies(make_cluster: ClusterMaker) -> None:
    """Without any engine the router answers 503 or 502 in JSON, at once, and recovers when one returns."""
    cluster = make_cluster(slots=2, slot_context_tokens=512)
    for engine in cluster.engines:
        engine.kill()
    started_at = time.monotonic()
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "anyone?"}]}).encode()
    status, _, answer = post(cluster.router.url + "/v1/chat/completions", body)
    assert status in (502, 503) and json.loads(answer)["error"]["code"] and time.monotonic() - started_at < 5.0
    until(lambda: all(row["lifecycle"] == "down" for row in cluster.router.workers()), "all are down", 10.0)
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(cluster.router.url + "/health", timeout=10)
    with raised.value:
        assert raised.value.code == 503
    status, headers, answer = post(cluster.router.url + "/v1/chat/completions", body)
    assert status == 503 and json.loads(answer)["error"]["code"] == "no_worker" and int(headers["retry-after"]) >= 1
    cluster.start_missing(cluster.engines.pop().port)
    until(lambda: cluster.router.ready_workers() == 1, "one is back", 10.0)
    assert chat(cluster, "anyone now?", "after-the-dark") == 200


def test_start_with_a_missing_worker(make_cluster: ClusterMaker) -> None:
    """A router starts and serves with one of its engines missing, and uses it soon after it appears."""
    cluster = make_cluster(missing=1)
    (missing_port,) = cluster.missing_ports

    def why_absent() -> str:
        (row,) = [row for row in cluster.router.workers() if row["url"].endswith(f":{missing_port}")]
        assert row["lifecycle"] in ("loading", "down")
        return str(row["why"])

    until(why_absent, "the router says why the worker is missing", deadline_s=5.0)
    for number in range(4):
        assert chat(cluster, f"early {number} " + "word " * 40, f"early-{number}") == 200
        assert cluster.engine_of(f"early-{number}") is cluster.engines[0]
    late = cluster.start_missing(missing_port)
    until(lambda: cluster.worker(late)["lifecycle"] == "ready", "the late engine joins", deadline_s=10.0)
    until(lambda: "used" if gets_requests(cluster, late) else None, "the late engine is used", deadline_s=20.0)


def test_router_drains_on_sigterm(make_cluster: ClusterMaker) -> None:
    """SIGTERM lets a running answer end before the router exits with 0."""
    cluster = make_cluster(slots=2)
    question = {"messages": [{"role": "user", "content": "Last words."}], "max_tokens": 600, "ignore_eos": True}
    body = json.dumps({"model": MODEL, "stream": True, **question}).encode()
    address = urlsplit(cluster.router.url)
    with socket.create_connection((address.hostname, address.port or 0), timeout=30) as client:
        client.sendall(head_of_post(address.netloc, len(body)) + body)
        received = client.recv(4096)
        stopping = cluster.router.process
        stopping.terminate()
        while piece := client.recv(65536):
            received += piece
    assert received.startswith(b"HTTP/1.1 200 ") and b"data: [DONE]\n\n" in received
    assert stopping.wait(deadline_s=10.0) == 0
    with pytest.raises(OSError):
        socket.create_connection((address.hostname, address.port or 0), timeout=1)
