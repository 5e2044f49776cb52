"""Records what a real vLLM says: `make golden-vllm`. About three minutes, two lives of one engine with a small cache."""

import json
import socket
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engines.launch import LocalEngine, free_port, launch
from engines.starters.vllm import VllmOptions
from router.wire.metrics_text import MetricReader, total
from tests.live.places import Places
from tests.live.recording import Recording, ask, seconds_until, under_load, while_loading
from tests.live.tap import Tap

RULES = "You keep the minutes of the gardening club. Answer in one short sentence and name the date. " * 4
START_DEADLINE_S = 180.0
QUEUE_CAP = 3


def chat(question: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": question}]
    return {"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0, **more}


def completion(prompt: Any, max_tokens: int = 2, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}


class Session:
    """One engine, one tap, one file: each step is a request and the events that followed it."""

    def __init__(self, engine: LocalEngine, tap: Tap, record: Recording) -> None:
        self.engine = engine
        self.tap = tap
        self.record = record

    def step(self, name: str, path: str, body: Any) -> None:
        """The engine's own token ids of a prompt in words are kept beside the answer."""
        self.record.step = name
        words = isinstance(body, dict) and not isinstance(body.get("prompt"), list)
        self.record.ask(self.engine.url, path, body, **({"prompt_ids": self.tokens_of(body)} if words else {}))
        self.record.frames("events", self.tap.heard())

    def tokens_of(self, body: dict[str, Any]) -> list[int]:
        asked = {key: body[key] for key in ("model", "messages", "prompt") if key in body}
        tokens: list[int] = ask(self.engine.url, "/tokenize", asked).json()["tokens"]
        return tokens

    def replay(self, name: str, start: int) -> None:
        self.record.step = name
        self.record.frames("replay", self.tap.replayed(start))


def record_events(session: Session) -> None:
    """All that a block can go through: stored, found, shared, generated, computed twice, salted, repeated, evicted, cleared."""
    chats, texts = "/v1/chat/completions", "/v1/completions"
    session.step("store", chats, chat("When do we plant the leeks?"))
    session.step("same again", chats, chat("When do we plant the leeks?"))
    session.step("shared prefix", chats, chat("Who brings the cake in May?"))
    session.step("generated blocks", texts, completion(list(range(1000, 1040)), max_tokens=60))
    session.step("aligned", texts, completion(list(range(2000, 2064))))
    session.step("aligned again", texts, completion(list(range(2000, 2064))))
    session.step("salted", chats, chat("When do we plant the leeks?", cache_salt="tenant-a"))
    session.step("full report", chats, chat("Who waters in July?", vllm_xargs={"kv_cache_report_mode": "full"}))
    for number in range(3):
        session.step(f"evict {number}", texts, completion(list(range(3000 + 200 * number, 3200 + 200 * number))))
    session.step("after eviction", chats, chat("When do we plant the leeks?"))
    session.step("clear", "/reset_prefix_cache", b"")
    session.step("after clearing", texts, completion(list(range(2000, 2064))))
    session.replay("replay", 11)
    session.replay("replay beyond the end", 10_000)


def record_pages(engine: LocalEngine, record: Recording) -> None:
    record.step = "idle"
    for path in ("/health", "/v1/models", "/version", "/load", "/kv_event_sources", "/metrics", "/no-such-route"):
        record.ask(engine.url, path)
    record.step = "tokens"
    record.ask(engine.url, "/tokenize", {"model": "tiny", "prompt": "the prefix cache"})
    record.ask(engine.url, "/tokenize", {"model": "tiny", "messages": [{"role": "user", "content": "the prefix cache"}]})
    record.step = "streams"
    usage: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    record.ask(engine.url, "/v1/chat/completions", chat("Who brings the cake in May?", **usage))
    record.ask(engine.url, "/v1/chat/completions", chat("Who brings the cake in May?", stream=True))
    record.ask(engine.url, "/v1/completions", completion("Leeks are", **usage))
    record.step = "messages"
    question = {"model": "tiny", "max_tokens": 2, "system": RULES, "messages": [{"role": "user", "content": "Leeks?"}]}
    record.ask(engine.url, "/v1/messages", question)
    record.ask(engine.url, "/v1/messages", {**question, "stream": True})
    record.step = "errors"
    record.ask(engine.url, "/v1/chat/completions", {**chat("?"), "model": "other"})
    record.ask(engine.url, "/v1/completions", completion(list(range(100, 700))))
    record.ask(engine.url, "/v1/chat/completions", chat("?", temperature="hot"))
    record.ask(engine.url, "/v1/chat/completions", {"model": "tiny"})
    record.ask(engine.url, "/v1/completions", b"{not json")
    record.ask(engine.url, "/v1/completions", completion([]))
    record.step = "load"
    with under_load(engine, "/v1/completions", [completion([n] * 40, max_tokens=300) for n in range(100, 112)]):
        if seconds_until(lambda: gauge(engine, "vllm:num_requests_waiting") > 0, 20.0) is None:
            raise SystemExit("twelve requests never made a queue")
        record.ask(engine.url, "/metrics")


def record_overload(engine: LocalEngine, record: Recording) -> None:
    """Refusals at the cap of QUEUE_CAP, which counts running requests as well; streamed and not."""
    record.step = "overload"
    with under_load(engine, "/v1/completions", [completion([n] * 40, max_tokens=300) for n in range(QUEUE_CAP)]):
        if seconds_until(lambda: gauge(engine, "vllm:num_requests_running") == QUEUE_CAP, 20.0) is None:
            raise SystemExit(f"{QUEUE_CAP} requests never ran at once")
        record.ask(engine.url, "/v1/completions", completion("One too many"))
        record.ask(engine.url, "/v1/chat/completions", chat("One too many", stream=True))
    record.note(admission_rejections=gauge(engine, "vllm:admission_rejections_total"))


def gauge(engine: LocalEngine, name: str) -> float:
    return total(MetricReader([name]).read(ask(engine.url, "/metrics").body), name) or 0.0


def record_abort(engine: LocalEngine, record: Recording, *, stream: bool) -> None:
    """A client that leaves in mid-answer: how long the engine goes on, by its own gauge."""
    record.step = "abort"
    body = completion([7] * 40, max_tokens=400, stream=stream)
    address = urlsplit(engine.url)
    data = json.dumps(body).encode()
    with socket.create_connection((address.hostname, address.port or 0), timeout=30) as client:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        started = seconds_until(lambda: gauge(engine, "vllm:num_requests_running") == 1, 20.0)
    idle = seconds_until(lambda: gauge(engine, "vllm:num_requests_running") == 0, 60.0)
    record.note(stream=stream, running_after_s=started, idle_again_after_s=idle)


def record_adapters(session: Session) -> None:
    """The same prompt with an adapter, another one loaded at run time, the same name loaded again in place."""
    chats, record, url = "/v1/chat/completions", session.record, session.engine.url
    record.step = "adapters"
    record.ask(url, "/v1/models")
    session.step("adapter", chats, {**chat("When do we plant the leeks?"), "model": "red"})
    session.step("adapter again", chats, {**chat("When do we plant the leeks?"), "model": "red"})
    record.step = "adapter at run time"
    blue = str(Places.prepared().adapter("blue"))
    record.ask(url, "/v1/load_lora_adapter", {"lora_name": "blue", "lora_path": blue})
    session.step("adapter at run time", chats, {**chat("When do we plant the leeks?"), "model": "blue"})
    record.ask(url, "/v1/models")
    record.step = "adapter in place"
    record.ask(url, "/v1/load_lora_adapter", {"lora_name": "blue", "lora_path": blue, "load_inplace": True})
    session.step("adapter in place", chats, {**chat("When do we plant the leeks?"), "model": "blue"})
    record.step = "adapter errors"
    record.ask(url, "/v1/load_lora_adapter", {"lora_name": "blue", "lora_path": blue})
    record.ask(url, "/v1/load_lora_adapter", {"lora_name": "green", "lora_path": "/nowhere"})
    record.ask(url, "/v1/unload_lora_adapter", {"lora_name": "green"})
    record.ask(url, "/v1/unload_lora_adapter", {"lora_name": "blue"})


def main(target: Path) -> None:
    places = Places.prepared()
    with tempfile.TemporaryDirectory(prefix="kv") as scratch:
        events, replay = f"ipc://{scratch}/events", f"ipc://{scratch}/replay"
        options = VllmOptions(
            places.vllm, places.model, "tiny", port=free_port(), context_tokens=512, cache_blocks=24,
            events=events, replay=replay, topic="kv@127.0.0.1:8000@tiny", developer=True,
        )  # fmt: skip
        folders = {scratch: "/run/kv", str(places.root): "/engines"}
        http, kv = Recording(target / "http.jsonl", folders), Recording(target / "events.jsonl", folders)
        with Tap(events, replay) as tap:
            with launch_watched(options, Path(scratch) / "log", http) as engine:
                record_events(Session(engine, tap, kv))
                record_pages(engine, http)
                record_abort(engine, http, stream=True)
                record_abort(engine, http, stream=False)
                tap.heard()
            queue = ("--max-num-queued-reqs", str(QUEUE_CAP))
            second = replace(options, adapters=(("red", places.adapter("red")),), flags=queue)
            with launch(second, Path(scratch) / "log", START_DEADLINE_S) as engine:
                session = Session(engine, tap, kv)
                session.step("restarted", "/v1/chat/completions", chat("When do we plant the leeks?"))
                session.replay("replay after the restart", 0)
                record_adapters(session)
                record_overload(engine, http)
        for recording in (http, kv):
            recording.save()


def launch_watched(options: VllmOptions, log: Path, record: Recording) -> LocalEngine:
    """Starts the engine and keeps what its health route answered meanwhile."""
    ready, seen = threading.Event(), []
    watcher = threading.Thread(target=lambda: seen.extend(while_loading(f"http://127.0.0.1:{options.port}", "/health", ready)))
    watcher.start()
    try:
        engine = launch(options, log, START_DEADLINE_S)
    finally:
        ready.set()
        watcher.join()
    record.step = "loading"
    record.note(health=seen)
    return engine


if __name__ == "__main__":
    main(Path(sys.argv[1]))
