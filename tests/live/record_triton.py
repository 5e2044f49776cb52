"""Records what a real Triton says: `make golden-triton`. Seconds; its model is `triton_models/tiny`, a Python one."""

import json
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engines.launch import LocalEngine, free_port
from engines.starters.triton import TritonOptions
from router.wire.metrics_text import MetricReader, total
from tests.live.places import TRITON_MODELS, Places
from tests.live.recording import Recording, ask, seconds_until, under_load
from tests.live.session import launch_watched

MODEL = "/v2/models/tiny"
PENDING, CANCELLED = "nv_inference_pending_request_count", 'nv_inference_request_failure{model="tiny",reason="CANCELED"'
QUEUE_CAP = 4  # of the model


def question(text: str = "one two three", **parameters: Any) -> dict[str, Any]:
    return {"text_input": text, "parameters": {"max_tokens": 3, **parameters}}


def record_pages(engine: LocalEngine, metrics: str, record: Recording) -> None:
    record.step = "idle"
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", MODEL, f"{MODEL}/ready", "/v2/models/other/ready", "/v1/models"):
        record.ask(engine.url, path)
    record.ask(engine.url, "/v2/repository/index", {})
    record.ask(metrics, "/metrics")
    record.step = "answers"
    record.ask(engine.url, f"{MODEL}/generate", question())
    record.ask(engine.url, f"{MODEL}/generate", {"text_input": "one two three", "max_tokens": 2, "id": "mine"})
    record.ask(engine.url, f"{MODEL}/generate_stream", question(stream=True))
    record.step = "errors"
    record.ask(engine.url, "/v2/models/other/generate", question())
    record.ask(engine.url, f"{MODEL}/generate", {"text": "no input"})
    record.ask(engine.url, f"{MODEL}/generate", b"{not json")
    record.ask(engine.url, f"{MODEL}/generate", question("fail"))
    record.ask(engine.url, f"{MODEL}/generate_stream", question("fail", stream=True))


def record_load(engine: LocalEngine, metrics: str, record: Recording) -> None:
    """One request runs, the queue is full, one more is refused, streamed and not."""
    record.step = "load"
    with under_load(engine, f"{MODEL}/generate", [question(max_tokens=60) for _ in range(QUEUE_CAP + 1)]):
        if seconds_until(lambda: value(metrics, PENDING) == QUEUE_CAP, 20.0) is None:
            raise SystemExit("the queue never filled")
        record.ask(metrics, "/metrics")
        record.step = "overload"
        record.ask(engine.url, f"{MODEL}/generate", question())
        record.ask(engine.url, f"{MODEL}/generate_stream", question(stream=True))


def value(metrics: str, name: str) -> float:
    return total(MetricReader([name]).read(ask(metrics, "/metrics").body), name) or 0.0


def record_abort(engine: LocalEngine, metrics: str, record: Recording, *, stream: bool) -> None:
    """A client that leaves in mid-answer: how soon the model takes the next request, and whether it counts as cancelled."""
    record.step = "abort"
    route = "generate_stream" if stream else "generate"
    body = json.dumps(question(max_tokens=500, stream=stream)).encode()
    address = urlsplit(engine.url)
    with socket.create_connection((address.hostname, address.port or 0), timeout=30) as client:
        head = f"POST {MODEL}/{route} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        if stream:
            client.recv(1)
        seconds_until(lambda: False, 0.5)
    next_s = seconds_until(lambda: ask(engine.url, f"{MODEL}/generate", question()).status == 200, 60.0)
    page = ask(metrics, "/metrics").body.decode()
    counted = [line for line in page.splitlines() if line.startswith(CANCELLED)]
    record.note(stream=stream, next_answer_after_s=next_s, counted=counted)


def record_dead_model(engine: LocalEngine, record: Recording) -> None:
    """The process that runs the model is killed: what health and requests say then."""
    record.step = "dead model"
    (child,) = [
        int(child) for path in Path(f"/proc/{engine.process.pid}/task").glob("*/children") for child in path.read_text().split()
    ]
    os.kill(child, signal.SIGKILL)
    for path in ("/v2/health/ready", f"{MODEL}/ready"):
        record.ask(engine.url, path)
    record.ask(engine.url, f"{MODEL}/generate", question())
    record.ask(engine.url, f"{MODEL}/generate_stream", question(stream=True))
    record.ask(engine.url, "/v2/health/ready")


def main(target: Path) -> None:
    places = Places.prepared()
    options = TritonOptions(places.triton, TRITON_MODELS, "tiny", free_port(), port=free_port())
    metrics = options.metrics_url.removesuffix("/metrics")
    record = Recording(target / "http.jsonl", {str(places.root): "/engines"})
    with tempfile.TemporaryDirectory() as scratch, launch_watched(options, Path(scratch) / "log", record) as engine:
        record_pages(engine, metrics, record)
        record_load(engine, metrics, record)
        for stream in (True, False):
            record_abort(engine, metrics, record, stream=stream)
        record_dead_model(engine, record)
    record.save()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
