"""From the lines of `GET /recording` to those of a trace file: hashes become numbers in the order first seen.

The file holds numbers, truth values and short code words only, whatever the router sends. docs/recording.md has the form.
"""

import json
import re
from array import array
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

CODE_WORD = re.compile(r"[a-z0-9_.-]{1,40}")
HOUR = re.compile(r"\d{4}-\d\d-\d\dT\d\d:00Z")
KEY_BYTES: Final = 8
MAX_NUMBERED_NAMES: Final = 1_000_000  # sessions, models
MAX_WORKERS: Final = 16_384
MAX_WHOLE: Final = 2**53  # what every reader of JSON keeps exactly


class NotARecording(Exception):
    """What came is not what a router sends; the text says where."""


class Numbers:
    """Keys to 0, 1, 2 … in the order first seen.

    About `limit` are remembered, those asked for latest: one that is asked for again after it was forgotten gets a new
    number. So kept in two halves: when the young one is full the old one is dropped, and it becomes the old one. Between
    calls only, so that of the blocks of one prompt the later ones are forgotten before the earlier ones.
    """

    def __init__(self, limit: int) -> None:
        self.next = 0
        self.forgotten = 0
        self._half = max(1, limit // 2)
        self._young: dict[Any, int] = {}
        self._old: dict[Any, int] = {}

    def of(self, keys: Iterable[Any]) -> list[int]:
        numbers = [self._of(key) for key in keys]
        if len(self._young) >= self._half:
            self.forgotten += len(self._old)
            self._old, self._young = self._young, {}
        return numbers

    def _of(self, key: Any) -> int:
        number = self._young.get(key)
        if number is None:
            number = self._old.pop(key, None)
            if number is None:
                number = self.next
                self.next += 1
            self._young[key] = number
        return number


class TraceLines:
    """One recording's lines. Every method raises NotARecording for what is not of the form it reads."""

    def __init__(self, max_blocks: int) -> None:
        self.requests = 0
        self.dropped = 0
        self.duration_ms = 0.0  # as far as the router told
        self.workers: list[dict[str, Any]] = []
        self._blocks = Numbers(max_blocks)
        self._sessions = Numbers(MAX_NUMBERED_NAMES)
        self._models = Numbers(MAX_NUMBERED_NAMES)

    def header(self, sent: Mapping[str, Any]) -> str:
        if sent.get("warmline_recording") != 1:
            raise NotARecording("the first line is not the head of a recording")
        self.workers = worker_rows(sent.get("workers"))
        hour = sent.get("recorded_at")
        return line(
            {
                "warmline_trace": 1,
                "block_tokens": whole(sent, "block_tokens"),
                "policy": code_word(sent, "policy"),
                "workers": self.workers,
                "recorded_at": hour if isinstance(hour, str) and HOUR.fullmatch(hour) else None,
            }
        )

    def request(self, sent: Mapping[str, Any]) -> str:
        blocks = self._blocks.of(keys_of(sent.get("keys")))
        runs = runs_of(blocks)
        made: dict[str, Any] = {
            "timestamp": number(sent, "timestamp"),
            "input_length": whole(sent, "input_length"),
            "output_length": whole(sent, "output_length"),
        }
        made.update({"hash_runs": runs} if 2 * len(runs) < len(blocks) else {"hash_ids": blocks})
        made |= {
            "key_form": code_word(sent, "key_form"),
            "session": name_number(self._sessions, sent, "session"),
            "model": name_number(self._models, sent, "model"),
        }
        for name, read in REQUEST_FIELDS:
            made[name] = read(sent, name)
        if sent.get("partial") is True:
            made["partial"] = True
        self.duration_ms = max(self.duration_ms, (made["timestamp"] or 0.0) + (made["duration_ms"] or 0.0))
        self.requests += 1
        return line(made)

    def state(self, sent: Any) -> None:
        if not isinstance(sent, dict):
            raise NotARecording("the state of the recording is no object")
        self.dropped = whole(sent, "dropped") or 0
        self.duration_ms = max(self.duration_ms, number(sent, "timestamp") or 0.0)
        if "workers" in sent:
            self.workers = worker_rows(sent["workers"])

    def footer(self, ended: str) -> str:
        """`ended`: why."""
        return line(
            {
                "warmline_trace_end": 1,
                "ended": ended,
                "duration_ms": self.duration_ms,
                "requests": self.requests,
                "dropped": self.dropped,
                "blocks": self._blocks.next,
                "forgotten_blocks": self._blocks.forgotten,
                "workers": self.workers,
            }
        )


def keys_of(text: Any) -> "array[int]":
    try:
        packed = a2b_base64(text, strict_mode=True)
    except (TypeError, ValueError, Base64Error):
        raise NotARecording("keys are not base64") from None
    if len(packed) % KEY_BYTES:
        raise NotARecording("keys are not of 8 bytes each")
    return array("q", packed)


def runs_of(numbers: Iterable[int]) -> list[list[int]]:
    """[first, count] of each stretch in which every number is one more than the one before."""
    runs: list[list[int]] = []
    after = -1
    for value in numbers:
        if value == after:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
        after = value + 1
    return runs


def whole(sent: Mapping[str, Any], name: str) -> int | None:
    value = sent.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MAX_WHOLE:
        raise NotARecording(f"{name} is no count")
    return value


def number(sent: Mapping[str, Any], name: str) -> float | None:
    value = sent.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < MAX_WHOLE:
        raise NotARecording(f"{name} is no number from 0 on")
    return value


def truth_value(sent: Mapping[str, Any], name: str) -> bool:
    return sent.get(name) is True


def code_word(sent: Mapping[str, Any], name: str) -> str | None:
    """Names of rules, kinds and failures; whatever else it might be does not get into the file."""
    value = sent.get(name)
    if value is not None and not (isinstance(value, str) and CODE_WORD.fullmatch(value)):
        raise NotARecording(f"{name} is no code word")
    return value


def name_number(numbers: Numbers, sent: Mapping[str, Any], name: str) -> int | None:
    value = sent.get(name)
    if value is not None and not isinstance(value, str):
        raise NotARecording(f"{name} is no text")
    return None if value is None else numbers.of((value,))[0]


REQUEST_FIELDS: tuple[tuple[str, Callable[[Mapping[str, Any], str], Any]], ...] = (
    ("worker", whole),
    ("ttft_ms", number),
    ("duration_ms", number),
    ("cached_tokens", whole),
    ("predicted_cached_tokens", whole),
    ("reason", code_word),
    ("stream", truth_value),
    ("outcome", code_word),
    ("status", whole),
)
WORKER_FIELDS: tuple[tuple[str, Callable[[Mapping[str, Any], str], Any]], ...] = (
    ("kind", code_word),
    ("truth", code_word),
    ("capacity_tokens", whole),
    ("block_tokens", whole),
    ("prefill_tokens_per_s", number),
    ("weight", number),
)


def worker_rows(sent: Any) -> list[dict[str, Any]]:
    if not isinstance(sent, list) or len(sent) > MAX_WORKERS or not all(isinstance(row, dict) for row in sent):
        raise NotARecording("workers are no list of objects")
    return [{name: read(row, name) for name, read in WORKER_FIELDS} for row in sent]


def line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"
