"""Traces that `warmline record` wrote, with what was measured of each request. docs/recording.md has their form."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from loadtest.traces.read import (
    KEY_TOKENS,
    MASK,
    MAX_PROMPT_TOKENS,
    MAX_WHOLE,
    MIXER,
    TraceError,
    ids_of,
    is_whole,
    lines_of,
    object_of,
    spread,
)
from loadtest.traces.request import Measured, Trace, TraceRequest

MAX_REQUESTS: Final = 5_000_000
MAX_BLOCKS: Final = 100_000_000  # of all prompts together, 8 bytes each
TOKEN_S: Final = 0.02  # taken for one token of output where no request of the file tells how long it takes
SURE_BLOCKS: Final = 8  # of a prompt that tells how many tokens a block of text has
UNKNOWN_WORKER: Final = -1


@dataclass(frozen=True)
class RecordedWorker:
    """None: not known."""

    kind: str
    truth: str
    capacity_tokens: int | None
    block_tokens: int | None
    prefill_tokens_per_s: float | None  # as learned when the recording ended
    weight: float


@dataclass(frozen=True)
class RecordingHeader:
    """What a file says of all its requests, from its first and last lines.

    `ended`: why, None for a file that was cut off. `estimated_outputs`: requests whose engine did not tell how many tokens
    it made, so that their number is taken from the time it took.
    """

    policy: str
    recorded_at: str | None
    workers: tuple[RecordedWorker, ...]
    ended: str | None
    dropped: int
    estimated_outputs: int


def is_recording(path: Path) -> bool:
    """Whether its first line says so. Raises OSError."""
    try:
        for number, data in lines_of(path, cut_off=True):
            return "warmline_trace" in object_of(path, number, data)
    except TraceError:
        pass
    return False


def read_recording(path: Path, max_blocks: int = MAX_BLOCKS) -> tuple[Trace, RecordingHeader]:
    """The requests whose prompts a worker took, in order of arrival, the first at 0 s, and what the file says of them.

    A file that was cut off is read up to there. Requests that were refused or failed are left out: nothing was computed.
    Raises TraceError with the number of the line that is not of the form, OSError.
    """
    reading = Reading(path.name, max_blocks)
    number = 0
    for number, data in lines_of(path, cut_off=True):
        record = object_of(path, number, data)
        try:
            reading.take(record)
        except (TraceError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise TraceError(f"{path.name}, line {number}: {error}") from error
    if number == 0:
        raise TraceError(f"{path.name}: it is empty")
    return reading.finished()


class Reading:
    """A file on its way to a trace."""

    def __init__(self, file_name: str, max_blocks: int) -> None:
        self._file_name = file_name
        self._blocks_left = max_blocks
        self._policy: str | None = None  # None: the first line was not read yet
        self._recorded_at: str | None = None
        self._workers: tuple[RecordedWorker, ...] = ()
        self._ended: str | None = None
        self._dropped = 0
        self._found: list[TraceRequest] = []
        self._unknown: list[TraceRequest] = []  # those whose output is not known
        self._token_s = array("d")
        self._by_text: list[bool] = []  # of each found one: keyed by its text
        self._text_block = array("d")  # tokens of a block of text, as whole prompts tell

    def take(self, record: Mapping[str, Any]) -> None:
        """One line. Raises TraceError, ValueError and what else odd values lead to."""
        if self._policy is None:
            self._head(record)
        elif "warmline_trace_end" in record:
            self._ended = text(record, "ended")
            self._dropped = whole(record, "dropped")
            self._workers = workers_of(record)
        elif self._ended is not None:
            raise TraceError("a line after the last")
        elif len(self._found) >= MAX_REQUESTS:
            raise TraceError(f"more than {MAX_REQUESTS} requests")
        else:
            self._request(record)

    def finished(self) -> tuple[Trace, RecordingHeader]:
        if not self._found:
            raise TraceError(f"{self._file_name}: no request in it that a worker took")
        self._make_keys()
        found = sorted(self._found, key=lambda request: request.at_s)
        token_s = median(self._token_s) if self._token_s else TOKEN_S
        for request in self._unknown:
            request.output_tokens = output_of(request.measured, token_s)
        add_thinking(found)
        begin_s = found[0].at_s
        for request in found:
            request.at_s -= begin_s
        header = RecordingHeader(
            self._policy or "", self._recorded_at, self._workers, self._ended, self._dropped, len(self._unknown)
        )
        return Trace(self._file_name.split(".")[0], found), header

    def _head(self, record: Mapping[str, Any]) -> None:
        if record.get("warmline_trace") != 1:
            raise TraceError("not the first line of a trace that this version reads")
        if record.get("block_tokens") != KEY_TOKENS:
            raise TraceError(f"blocks are not of {KEY_TOKENS} tokens")
        recorded_at = record.get("recorded_at")
        self._recorded_at = recorded_at if isinstance(recorded_at, str) else None
        self._workers = workers_of(record)
        self._policy = text(record, "policy")

    def _request(self, record: Mapping[str, Any]) -> None:
        at_s = seconds(record, "timestamp")
        if at_s is None:
            raise TraceError("no timestamp")
        if not was_taken(record):
            return
        prompt_tokens = max(1, count_or_none(record, "input_length") or 0)
        if prompt_tokens > MAX_PROMPT_TOKENS:
            raise TraceError(f"input_length {prompt_tokens} is more than {MAX_PROMPT_TOKENS}")
        streams = record.get("stream") is True
        worker, session = count_or_none(record, "worker"), count_or_none(record, "session")
        measured = Measured(
            worker=UNKNOWN_WORKER if worker is None else worker,
            ttft_s=seconds(record, "ttft_ms") if streams else None,  # else it is the time of the whole answer
            duration_s=seconds(record, "duration_ms"),
            cached_tokens=count_or_none(record, "cached_tokens"),
        )
        output_tokens = count_or_none(record, "output_length")
        request = TraceRequest(
            at_s=at_s,
            keys=array("Q"),
            prompt_tokens=prompt_tokens,
            output_tokens=max(1, output_tokens or 0),
            session=None if session is None else str(session),
            measured=measured,
        )
        self._ids(record, request)
        self._found.append(request)
        if output_tokens is None:
            self._unknown.append(request)
        elif output_tokens > 1 and measured.ttft_s is not None and measured.duration_s is not None:
            self._token_s.append(max(0.0, measured.duration_s - measured.ttft_s) / (output_tokens - 1))

    def _ids(self, record: Mapping[str, Any], request: TraceRequest) -> None:
        """Takes the numbers of its blocks; keys are made of them when all of the file is known."""
        ids = ids_of(record)
        size = request.prompt_tokens // KEY_TOKENS
        self._blocks_left -= max(size, len(ids))
        if self._blocks_left < 0:
            raise TraceError("the prompts of the file have more blocks than are read at a time")
        request.keys = array("Q", ids)
        by_text = record.get("key_form") != "tokens"
        self._by_text.append(by_text)
        if by_text and record.get("partial") is not True and len(ids) >= SURE_BLOCKS:
            self._text_block.append(request.prompt_tokens / len(ids))

    def _make_keys(self) -> None:
        """A key for each full block of each prompt. A text block has as many tokens as it has in most prompts of the file,
        the same in all, so that what two prompts share stays shared. Blocks that the router did not know get keys that
        nothing else has."""
        text_block = median(self._text_block) if self._text_block else float(KEY_TOKENS)
        fresh = 2**63  # far from the numbers of those that are known
        for request, by_text in zip(self._found, self._by_text, strict=True):
            size = request.prompt_tokens // KEY_TOKENS
            keys = spread(request.keys, text_block if by_text else float(KEY_TOKENS), size)
            missing = size - len(keys)
            keys.extend([((fresh + at) * MIXER) & MASK for at in range(missing)])
            fresh += missing
            request.keys = keys


def was_taken(record: Mapping[str, Any]) -> bool:
    """Whether a worker worked on the prompt: it answered, or the client went before it could."""
    status = count_or_none(record, "status")
    return (status is not None and status < 400) or record.get("outcome") == "client_gone"


def output_of(measured: Measured | None, token_s: float) -> int:
    if measured is None or measured.duration_s is None or token_s <= 0.0:
        return 1
    return max(1, min(MAX_PROMPT_TOKENS, 1 + round((measured.duration_s - (measured.ttft_s or 0.0)) / token_s)))


def add_thinking(requests: Sequence[TraceRequest]) -> None:
    """How long a session's client waited after its turn before, where that had ended. `requests` in order of arrival."""
    ended_s: dict[str, float] = {}
    for request in requests:
        measured = request.measured
        if request.session is None or measured is None:
            continue
        before_s = ended_s.get(request.session)
        if before_s is not None and before_s <= request.at_s:
            request.think_s = request.at_s - before_s
        if measured.duration_s is not None:
            ended_s[request.session] = request.at_s + measured.duration_s


def workers_of(record: Mapping[str, Any]) -> tuple[RecordedWorker, ...]:
    rows = record.get("workers")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TraceError("workers is no list of objects")
    return tuple(
        RecordedWorker(
            kind=text(row, "kind"),
            truth=text(row, "truth"),
            capacity_tokens=count_or_none(row, "capacity_tokens"),
            block_tokens=count_or_none(row, "block_tokens"),
            prefill_tokens_per_s=amount_or_none(row, "prefill_tokens_per_s"),
            weight=amount_or_none(row, "weight") or 1.0,
        )
        for row in rows
    )


def text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    if not isinstance(value, str):
        raise TraceError(f"{name} is no text")
    return value


def whole(record: Mapping[str, Any], name: str) -> int:
    return is_whole(record.get(name), name)


def count_or_none(record: Mapping[str, Any], name: str) -> int | None:
    value = record.get(name)
    return None if value is None else is_whole(value, name)


def amount_or_none(record: Mapping[str, Any], name: str) -> float | None:
    value = record.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < MAX_WHOLE:
        raise TraceError(f"{name} is no number from 0 on")
    return float(value)


def seconds(record: Mapping[str, Any], name: str) -> float | None:
    value = amount_or_none(record, name)
    return None if value is None else value / 1000.0
