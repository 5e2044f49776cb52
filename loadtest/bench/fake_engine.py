"""A light stand-in for inference engines: several workers in one process, fixed answers, never a model.

Each worker listens on its own port and answers like an OpenAI-compatible engine: `/health`, `/v1/models`, `/metrics`
(vLLM's names), chat and completions with a fixed JSON text, or with server-sent events that a worker writes to all of
its streams once per step, as continuous batching does: every event is a write of its own. `GET /arrivals` returns
when requests arrived (monotonic clock, shared by all processes of the machine) and forgets them.

Run alone: `python -m loadtest.bench.fake_engine --ports 9001,9002`. The first line on standard output is JSON with the
ports in use; port 0 takes a free one.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import httptools
import uvloop

MODEL = "bench"
MAX_ARRIVALS = 100_000
SERVER_HEADERS = b"date: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
CHAT_ANSWER = (
    b'{"id":"chatcmpl-bench","object":"chat.completion","created":1760000000,"model":"bench","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"Here is a short answer of the usual kind."},"logprobs":null,'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":512,"completion_tokens":9,"total_tokens":521,'
    b'"prompt_tokens_details":null}}'
)
EVENT = (
    b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1760000000,"model":"bench","choices":'
    b'[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]}\n\n'
)
METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} 0.25
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="{model}"}} {answered}
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="16384",enable_prefix_caching="True"}} 1.0
"""


def sized_answer(status: bytes, content_type: bytes, body: bytes) -> bytes:
    """A whole HTTP/1.1 answer with Content-Length."""
    head = b"HTTP/1.1 %s\r\n%scontent-length: %d\r\ncontent-type: %s\r\n\r\n"
    return head % (status, SERVER_HEADERS, len(body), content_type) + body


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def stream_writes(events: int) -> list[bytes]:
    """What a stream writes, one item per step: head with the role event, contents, the finish, then `[DONE]` and the end.

    `events` counts the JSON events, at least 2; `[DONE]` goes out with the last one, as engines do.
    """
    if events < 2:
        raise ValueError(f"a stream has a first and a last event, not {events}")
    head = (
        b"HTTP/1.1 200 OK\r\n" + SERVER_HEADERS + b"content-type: text/event-stream; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    first = chunk(EVENT % (b'{"role":"assistant","content":""}', b"null"))
    middle = [chunk(EVENT % (b'{"content":" word%02d"}' % (i % 100), b"null")) for i in range(events - 2)]
    last = chunk(EVENT % (b"{}", b'"stop"')) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    return [head + first, *middle, last]


def wants_stream(body: bytes) -> bool:
    """Whether the JSON text asks for a stream, found without parsing (bodies here come from this load generator)."""
    at = body.rfind(b'"stream"')
    return at >= 0 and body[at + 8 : at + 20].lstrip(b" :").startswith(b"true")


@dataclass(slots=True)
class Arrival:
    """One request as the engine saw it; seconds on the monotonic clock, when its first and last bytes were read."""

    first_byte_s: float
    last_byte_s: float
    body_bytes: int


@dataclass
class FakeWorker:
    """State of one port: answers, running streams, arrivals."""

    step_s: float
    writes: list[bytes]
    model: str = MODEL
    answered: int = 0
    running: dict["EngineConnection", int] = field(default_factory=dict)
    arrivals: deque[Arrival] = field(default_factory=lambda: deque(maxlen=MAX_ARRIVALS))
    stepping: bool = False

    def start_stream(self, connection: "EngineConnection") -> None:
        """The first event goes out at once; the rest with the steps of the worker."""
        connection.transport.write(self.writes[0])
        self.running[connection] = 1
        if not self.stepping:
            self.stepping = True
            asyncio.get_running_loop().call_later(self.step_s, self.step)

    def step(self) -> None:
        """One engine step: every running stream gets its next event."""
        started = asyncio.get_running_loop().time()
        last = len(self.writes) - 1
        for connection, at in list(self.running.items()):
            connection.transport.write(self.writes[at])
            if at == last:
                del self.running[connection]
                connection.answer_ended()
            else:
                self.running[connection] = at + 1
        self.stepping = bool(self.running)
        if self.stepping:
            asyncio.get_running_loop().call_at(started + self.step_s, self.step)

    def page(self, path: bytes) -> bytes:
        """The whole answer to a GET."""
        if path == b"/health":
            return sized_answer(b"200 OK", b"application/json", b"")
        if path == b"/v1/models":
            card = {"id": self.model, "object": "model", "created": 1760000000, "owned_by": "bench", "max_model_len": 1 << 20}
            return sized_answer(b"200 OK", b"application/json", json.dumps({"object": "list", "data": [card]}).encode())
        if path == b"/metrics":
            text = METRICS.format(model=self.model, running=len(self.running), answered=self.answered * 512)
            return sized_answer(b"200 OK", b"text/plain; version=0.0.4", text.encode())
        if path == b"/arrivals":
            rows = [(a.first_byte_s, a.last_byte_s, a.body_bytes) for a in self.arrivals]
            self.arrivals.clear()
            return sized_answer(b"200 OK", b"application/json", json.dumps(rows).encode())
        return sized_answer(b"404 Not Found", b"application/json", b'{"error":{"message":"not found","code":404}}')


class EngineConnection(asyncio.Protocol):
    """One keep-alive connection: requests are answered in order, one at a time."""

    transport: asyncio.Transport

    def __init__(self, worker: FakeWorker) -> None:
        self.worker = worker
        self.parser = httptools.HttpRequestParser(self)
        self.body: list[bytes] = []
        self.url = b""
        self.began_s = 0.0
        self.close_after = False
        self.streaming = False
        self.waiting: deque[tuple[bytes, bytes, bool]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class does not inherit from it

    def connection_lost(self, exc: Exception | None) -> None:
        self.worker.running.pop(self, None)

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.write(sized_answer(b"400 Bad Request", b"text/plain", b"cannot read this"))
            self.transport.close()

    def on_message_begin(self) -> None:
        self.began_s = time.monotonic()
        self.body = []

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 6 and name.lower() == b"expect":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        close = not self.parser.should_keep_alive()
        if self.streaming:
            self.waiting.append((self.url, body, close))
        else:
            self.answer(self.url, body, close)

    def answer(self, url: bytes, body: bytes, close: bool) -> None:
        worker = self.worker
        self.close_after = close
        if body and b"/v1/" in url:  # whatever comes before it
            worker.arrivals.append(Arrival(self.began_s, time.monotonic(), len(body)))
            worker.answered += 1
            if wants_stream(body):
                self.streaming = True
                worker.start_stream(self)
                return
            self.transport.write(CHAT_RESPONSE)
        else:
            self.transport.write(worker.page(url.partition(b"?")[0]))
        if close:
            self.transport.close()

    def answer_ended(self) -> None:
        """The stream is over: close if asked to, else take up a request that came in meanwhile."""
        self.streaming = False
        if self.close_after:
            self.transport.close()
        while self.waiting and not self.streaming:
            self.answer(*self.waiting.popleft())


CHAT_RESPONSE = sized_answer(b"200 OK", b"application/json", CHAT_ANSWER)


async def listen(
    host: str, ports: Sequence[int], *, step_s: float = 0.002, events: int = 64, model: str = MODEL
) -> list[asyncio.Server]:
    """One listening server per port, each a worker of its own."""
    loop = asyncio.get_running_loop()
    servers = []
    for port in ports:
        worker = FakeWorker(step_s=step_s, writes=stream_writes(events), model=model)

        def connection(worker: FakeWorker = worker) -> EngineConnection:
            return EngineConnection(worker)

        servers.append(await loop.create_server(connection, host, port, backlog=1024, reuse_port=False))
    return servers


def port_of(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


async def serve_until_signalled(arguments: argparse.Namespace) -> None:
    until = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, until.set)
    ports = [int(port) for port in arguments.ports.split(",")]
    step_s = arguments.step_ms / 1000
    servers = await listen(arguments.host, ports, step_s=step_s, events=arguments.events, model=arguments.model)
    print(json.dumps({"ports": [port_of(server) for server in servers]}), flush=True)
    await until.wait()
    for server in servers:
        server.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.fake_engine", description="light fake engines on fixed answers"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--ports", default="9001,9002", help="comma-separated, one worker each; 0 takes a free port")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--events", type=int, default=64, help="JSON events of a stream")
    parser.add_argument("--step-ms", type=float, default=2.0, help="time between two events of a stream")
    arguments = parser.parse_args(argv)
    uvloop.run(serve_until_signalled(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
