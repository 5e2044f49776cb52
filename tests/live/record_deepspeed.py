"""Records what MII's server says in front of DeepSpeed: `make golden-deepspeed`. About half a minute."""

import http.client
import sys
import tempfile
from pathlib import Path
from typing import Any

from engines.launch import LocalEngine, launch
from tests.live.places import Places
from tests.live.recording import Recording, ask, seconds_until, under_load
from tests.live.session import CHAT, START_DEADLINE_S, TEXT
from tests.live.stage import deepspeed_options

MAX_WAITING = 2


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "temperature": 0, **more}


def record_answers(server: LocalEngine, record: Recording) -> None:
    record.step = "idle"
    for path in ("/health", "/v1/models", "/metrics"):
        record.ask(server.url, path)
    record.step = "answers"
    record.ask(server.url, CHAT, chat())
    record.ask(server.url, CHAT, chat(stream=True, stream_options={"include_usage": True}))
    record.ask(server.url, TEXT, {"model": "tiny", "prompt": "one two", "max_tokens": 3})
    record.ask(server.url, TEXT, {"model": "tiny", "prompt": "one two", "max_tokens": 3, "stream": True})
    record.step = "errors"
    record.ask(server.url, CHAT, chat(model="other"))
    record.ask(server.url, CHAT, {"model": "tiny"})
    record.ask(server.url, CHAT, chat(temperature="hot"))
    record.ask(server.url, CHAT, chat(messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}]))
    record.ask(server.url, CHAT, b"{not json")
    record.ask(server.url, TEXT, {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 3})


def record_load(server: LocalEngine, back_end: LocalEngine, record: Recording) -> None:
    """The back end's page with a full queue, and what MII makes of a refusal."""
    record.step = "load"
    with under_load(server, CHAT, [chat(max_tokens=150)] * (MAX_WAITING + 3)):
        full = f"deepspeed_backend_requests_waiting {MAX_WAITING}".encode()
        if seconds_until(lambda: full in ask(back_end.url, "/metrics").body, 20.0) is None:
            raise SystemExit("the queue never filled")
        record.ask(back_end.url, "/metrics")
        record.step = "overload"
        record.ask(server.url, CHAT, chat())
        record_cut_stream(server, record)


def record_cut_stream(server: LocalEngine, record: Recording) -> None:
    """A stream that MII cuts off in the middle of its chunks."""
    try:
        record.ask(server.url, CHAT, chat(stream=True))
    except http.client.IncompleteRead as cut:
        record.note(path=CHAT, stream=True, cut_after=cut.partial.decode())


def main(target: Path) -> None:
    places = Places.prepared()
    with tempfile.TemporaryDirectory() as scratch:
        record = Recording(target / "http.jsonl", {str(places.root): "/engines"})
        (back_end_options, log), (server_options, server_log) = deepspeed_options(places, Path(scratch), MAX_WAITING)
        with (
            launch(back_end_options, log, START_DEADLINE_S) as back_end,
            launch(server_options, server_log, START_DEADLINE_S) as server,
        ):
            record_answers(server, record)
            record_load(server, back_end, record)
            record.step = "dead back end"
            back_end.kill()
            record.ask(server.url, "/health")
            record.ask(server.url, CHAT, chat())
            record_cut_stream(server, record)
        record.save()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
