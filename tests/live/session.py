"""The steps that recordings of vLLM and SGLang share: requests, the events after them, clients that leave."""

import json
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engines.launch import EngineOptions, LocalEngine, launch
from router.wire.metrics_text import MetricReader, total
from tests.live.recording import Recording, ask, seconds_until, under_load, while_loading
from tests.live.tap import Tap

RULES = "You keep the minutes of the gardening club. Answer in one short sentence and name the date. " * 4
START_DEADLINE_S = 180.0
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


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
        about: dict[str, Any] = {"prompt_ids": self.tokens_of(body)} if words else {}
        self.record.ask(self.engine.url, path, body, **about)
        self.record.frames("events", self.tap.heard())

    def tokens_of(self, body: dict[str, Any]) -> list[int]:
        asked = {key: body[key] for key in ("messages", "prompt") if key in body}
        tokens: list[int] = ask(self.engine.url, "/tokenize", {"model": "tiny", **asked}).json()["tokens"]
        return tokens

    def replay(self, name: str, start: int) -> None:
        self.record.step = name
        self.record.frames("replay", self.tap.replayed(start))


def record_answers(engine: LocalEngine, record: Recording) -> None:
    """Tokens, streams and the two families of answers."""
    record.step = "tokens"
    record.ask(engine.url, "/tokenize", {"model": "tiny", "prompt": "the prefix cache"})
    record.ask(engine.url, "/tokenize", {"model": "tiny", "messages": [{"role": "user", "content": "the prefix cache"}]})
    record.step = "streams"
    usage: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    record.ask(engine.url, CHAT, chat("Who brings the cake in May?", **usage))
    record.ask(engine.url, CHAT, chat("Who brings the cake in May?", stream=True))
    record.ask(engine.url, TEXT, completion("Leeks are", **usage))
    record.step = "messages"
    question = {"model": "tiny", "max_tokens": 2, "system": RULES, "messages": [{"role": "user", "content": "Leeks?"}]}
    record.ask(engine.url, "/v1/messages", question)
    record.ask(engine.url, "/v1/messages", {**question, "stream": True})


def record_errors(engine: LocalEngine, record: Recording) -> None:
    """Whose fault it is: an unknown model, a prompt too long, wrong types, missing fields, no JSON, an empty prompt."""
    record.step = "errors"
    record.ask(engine.url, CHAT, {**chat("?"), "model": "other"})
    record.ask(engine.url, TEXT, completion(list(range(100, 700))))
    record.ask(engine.url, CHAT, chat("?", temperature="hot"))
    record.ask(engine.url, CHAT, {"model": "tiny"})
    record.ask(engine.url, TEXT, b"{not json")
    record.ask(engine.url, TEXT, completion([]))


def record_load(engine: LocalEngine, record: Recording, waiting: str, *paths: str) -> None:
    """The pages while more requests are there than run at once; `waiting` is the gauge that says so."""
    record.step = "load"
    with under_load(engine, TEXT, [completion([number] * 40, max_tokens=300) for number in range(100, 112)]):
        if seconds_until(lambda: gauge(engine, waiting) > 0, 20.0) is None:
            raise SystemExit("twelve requests never made a queue")
        for path in paths:
            record.ask(engine.url, path)


def record_abort(engine: LocalEngine, record: Recording, running: str, *, stream: bool) -> None:
    """A client that leaves in mid-answer: how long the engine goes on, by its own gauge `running`."""
    record.step = "abort"
    data = json.dumps(completion([7] * 40, max_tokens=400, stream=stream)).encode()
    address = urlsplit(engine.url)
    with socket.create_connection((address.hostname, address.port or 0), timeout=30) as client:
        head = f"POST {TEXT} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        started = seconds_until(lambda: gauge(engine, running) == 1, 20.0)
    idle = seconds_until(lambda: gauge(engine, running) == 0, 60.0)
    record.note(stream=stream, running_after_s=started, idle_again_after_s=idle)


def gauge(engine: LocalEngine, name: str) -> float:
    return total(MetricReader([name]).read(ask(engine.url, "/metrics").body), name) or 0.0


def launch_watched(options: EngineOptions, log: Path, record: Recording) -> LocalEngine:
    """Starts the engine on its given port and keeps what its health route answered meanwhile."""
    ready, seen = threading.Event(), list[str]()
    url = f"http://127.0.0.1:{options.port}"
    watcher = threading.Thread(target=lambda: seen.extend(while_loading(url, options.health_path, ready)))
    watcher.start()
    try:
        engine = launch(options, log, START_DEADLINE_S)
    finally:
        ready.set()
        watcher.join()
    record.step = "loading"
    record.note(health=seen)
    return engine
