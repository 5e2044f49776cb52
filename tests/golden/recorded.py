"""Reads what real engines said (see README.md here)."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
Line = dict[str, Any]


def lines(recording: str, step: str | None = None, what: str | None = None) -> list[Line]:
    """The lines of `vllm-0.32.0/events` in order, only those of one step or kind (answer, frames, note) if given."""
    text = (FOLDER / f"{recording}.jsonl").read_text("utf-8")
    found: list[Line] = [json.loads(line) for line in text.splitlines()]
    return [line for line in found if step in (None, line["step"]) and what in (None, line["what"])]


def answer(recording: str, step: str, path: str) -> Line:
    """The first answer of that step and path: request, status, headers, body."""
    return next(line for line in lines(recording, step, "answer") if line["request"]["path"] == path)


def frames(recording: str, step: str | None = None, socket: str = "events") -> list[list[bytes]]:
    """The messages of a ZeroMQ socket, frame by frame."""
    return [
        [bytes.fromhex(frame) for frame in line["frames"]]
        for line in lines(recording, step, "frames")
        if line["socket"] == socket
    ]
