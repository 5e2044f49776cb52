"""Traces from files of JSON lines: block ids, lengths and times, as Mooncake and Bailian publish them."""

import gzip
import json
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

from loadtest.traces.request import Trace, TraceRequest

KEY_TOKENS: Final = 16
BLOCK_TOKENS: Final = {"mooncake": 512, "toolagent": 512, "agentic": 64, "shared_prefix": 16, "bailian": 16, "qwen": 16}
MIXER: Final = 0x9E3779B97F4A7C15  # spreads consecutive ids over 64 bits (2^64 over the golden ratio)
MASK: Final = 2**64 - 1
MAX_LINE_BYTES: Final = 32 * 1024 * 1024
MAX_PROMPT_TOKENS: Final = 16 * 1024 * 1024
MAX_WHOLE: Final = 2**53


class TraceError(Exception):
    """The file is no trace; the message names the line and what is wrong with it."""


@dataclass(frozen=True)
class Cut:
    """Which part of a trace, and how it is made smaller: lengths divided by `scale`, times by `speed`."""

    block_tokens: int | None = None  # of the file's ids; None: known by the file's name
    scale: float = 1.0
    speed: float = 1.0
    first: int = 0
    requests: int | None = None
    jitter_s: float = 0.0  # uniform, added to each arrival: for traces with coarse time stamps
    max_output_tokens: int | None = None
    redraw_starts_s: float | None = None  # sessions start at new random moments of so many seconds
    seed: int = 1


def block_tokens_of(path: Path) -> int:
    """By the file's name. Raises TraceError if that says nothing."""
    for part, tokens in BLOCK_TOKENS.items():
        if part in path.name.lower():
            return tokens
    raise TraceError(f"{path.name}: give the tokens of one of its blocks with --block-tokens")


def records_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, JSON object) of a file of JSON lines; empty lines are passed by. Raises TraceError, OSError."""
    for number, data in lines_of(path, cut_off=False):
        if data.strip():
            yield number, object_of(path, number, data)


def lines_of(path: Path, cut_off: bool) -> Iterator[tuple[int, bytes]]:
    """(number, line), gzipped or not. `cut_off`: the file may be, and ends with its last whole line. Raises TraceError for a
    line of MAX_LINE_BYTES or a file that ends where it should not, OSError."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        lines = gzip.GzipFile(fileobj=raw) if packed else raw
        number = 0
        while True:
            number += 1
            try:
                data = lines.readline(MAX_LINE_BYTES)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                if cut_off:
                    return
                raise TraceError(f"{path.name}: {error}") from error
            if len(data) >= MAX_LINE_BYTES:
                raise TraceError(f"{path.name}, line {number}: longer than {MAX_LINE_BYTES} bytes")
            if not data or (cut_off and not data.endswith(b"\n")):
                return
            yield number, data


def object_of(path: Path, number: int, data: bytes) -> dict[str, Any]:
    """The JSON object in a line. Raises TraceError."""
    try:
        record = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path.name}, line {number}: no JSON: {error}") from None
    if not isinstance(record, dict):
        raise TraceError(f"{path.name}, line {number}: not a JSON object")
    return record


def read_trace(path: Path, cut: Cut = Cut()) -> Trace:
    """The requests of the cut, in order of arrival, the first at 0 s. Raises TraceError, OSError."""
    block = (cut.block_tokens or block_tokens_of(path)) / cut.scale
    rng = Random(cut.seed)
    found: list[TraceRequest] = []
    for number, record in chosen(path, cut, rng):
        try:
            found.append(request_of(record, block, cut, rng))
        except TraceError as error:
            raise TraceError(f"{path.name}, line {number}: {error}") from None
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TraceError(f"{path.name}, line {number}: {error!r}") from error
    if not found:
        raise TraceError(f"{path.name}: no request in this part of it")
    found.sort(key=lambda request: request.at_s)
    begin_s = found[0].at_s
    for request in found:
        request.at_s = (request.at_s - begin_s) / cut.speed
    return Trace(path.name.split(".")[0], found)


def chosen(path: Path, cut: Cut, rng: Random) -> Iterator[tuple[int, dict[str, Any]]]:
    """The records of the cut."""
    end = None if cut.requests is None else cut.first + cut.requests
    records = records_of(path) if cut.redraw_starts_s is None else iter(redrawn(path, cut.redraw_starts_s, rng))
    return islice(records, cut.first, end)


def redrawn(path: Path, within_s: float, rng: Random) -> list[tuple[int, dict[str, Any]]]:
    """All records, each session moved as a whole to a new start, in order of their new times."""
    moved: list[tuple[int, dict[str, Any]]] = []
    shifts: dict[object, float] = {}
    for number, record in records_of(path):
        try:
            session, at_ms = record["session"], float(record["timestamp"])
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path.name}, line {number}: {error!r}") from error
        if session not in shifts:
            shifts[session] = rng.uniform(0.0, within_s * 1000.0) - at_ms
        record["timestamp"] = at_ms + shifts[session]
        moved.append((number, record))
    moved.sort(key=lambda entry: entry[1]["timestamp"])
    return moved


def request_of(record: dict[str, Any], block: float, cut: Cut, rng: Random) -> TraceRequest:
    prompt_tokens = max(1, round(record["input_length"] / cut.scale))
    output_tokens = max(1, round(record["output_length"] / cut.scale))
    if cut.max_output_tokens is not None:
        output_tokens = min(output_tokens, cut.max_output_tokens)
    bailian = "parent_chat_id" in record  # its times are seconds, its turns say whom they follow
    at_s = float(record["timestamp"]) / (1.0 if bailian else 1000.0) + rng.uniform(0.0, cut.jitter_s)
    session = record.get("session")
    think_ms = record.get("think_ms")
    return TraceRequest(
        at_s=at_s,
        keys=spread(ids_of(record), block, prompt_tokens // KEY_TOKENS),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        session=None if session is None else str(session),
        think_s=None if think_ms is None else think_ms / 1000.0 / cut.speed,
    )


def spread(ids: Sequence[int], block: float, most: int) -> "array[int]":
    """Ids of blocks of `block` tokens to keys of blocks of 16: several keys for an id, or one for several ids (the last
    of them, which names all before it). At most `most` keys."""
    keys = array("Q")
    count = min(most, int(len(ids) * block) // KEY_TOKENS)
    for at in range(count):
        last_token = (at + 1) * KEY_TOKENS - 1
        index = int(last_token / block)
        part = at - int(index * block) // KEY_TOKENS
        keys.append(((ids[index] + 1) * MIXER + part * (MIXER >> 7)) & MASK)
    return keys


def ids_of(record: Mapping[str, Any]) -> Sequence[int]:
    """The numbers of the prompt's blocks, written one by one or as runs."""
    runs = record.get("hash_runs")
    if runs is None:
        ids = record.get("hash_ids", [])
        if not isinstance(ids, list):
            raise TraceError("hash_ids is no list")
    else:
        ids = []
        for first, count in runs:
            if len(ids) + is_whole(count, "hash_runs") > MAX_PROMPT_TOKENS:
                raise TraceError("hash_runs has more blocks than a prompt")
            ids.extend(range(is_whole(first, "hash_runs"), first + count))
    if not all(type(number) is int and 0 <= number < MAX_WHOLE for number in ids):
        raise TraceError("a block's number is no count")
    return ids


def is_whole(value: Any, name: str) -> int:
    """The value. Raises TraceError for what is no count."""
    if type(value) is not int or not 0 <= value < MAX_WHOLE:
        raise TraceError(f"{name} is no count")
    return value
