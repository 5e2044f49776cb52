"""The lines of `GET /recording`: what leaves the router of a finished request, and what does not.

No text, no name, no address. Keys, sessions and models leave as keyed hashes whose secret is made for one recording and
kept nowhere: they tell which are equal within it, and can be compared with nothing outside it.
"""

import hashlib
from array import array
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from struct import Struct
from typing import Any, Final

import orjson

from router.admin.figures import WorkerFigures
from router.core.fleet import Worker
from router.core.load import Lease
from router.core.types import BLOCK_TOKENS, KeyForm, Usage

MAX_NUMBERED_WORKERS: Final = 16_384  # that were in the fleet at some time of one recording
SALT_BYTES: Final = 32
END_LINE: Final = b'{"end":"router_stopped"}\n'

_keys = Struct("8s").iter_unpack


class Salt:
    """Hashes 64-bit keys and names under a secret.

    Python's own hash of bytes is SipHash, made for secrets: its key is the process's, and `secret` goes in before each key.
    A block costs 0.11 us so, 0.5 us with BLAKE2b, which names, being few, go through.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of_keys(self, keys: "array[int]") -> "array[int]":
        """One signed 64-bit number for each."""
        secret = self._secret
        return array("q", [hash(secret + key) for (key,) in _keys(keys.tobytes())])

    def of_name(self, name: str) -> str:
        return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=self._secret).hexdigest()


class LineMaker:
    """Lines of one recording that began at `start_s` of the router's clock; times in lines are milliseconds from there."""

    def __init__(self, start_s: float, salt: Salt) -> None:
        self._start_s = start_s
        self._salt = salt
        self._numbers: dict[str, int] = {}  # of workers, by their id
        self._rows: list[dict[str, Any]] = []
        self.has_new_worker = False  # since they were last told

    def header(self, policy: str, workers: Sequence[WorkerFigures], wall_s: float) -> bytes:
        """The first line. `wall_s`: the time of day, told to the hour."""
        hour = datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:00Z")
        return line(
            {
                "warmline_recording": 1,
                "block_tokens": BLOCK_TOKENS,
                "policy": policy,
                "recorded_at": hour,
                "workers": self._told(workers),
            }
        )

    def request(self, lease: Lease, usage: Usage | None) -> bytes:
        """One finished request. `keys`: eight bytes for each keyed block, in base64: equal or not, they mean nothing else."""
        decision, prompt = lease.decision, lease.prompt
        told_tokens, _, output_tokens = usage or (None, None, None)
        keys = self._salt.of_keys(prompt.keys)
        session = decision.session
        return line(
            {
                "timestamp": milliseconds(lease.sent_s - self._start_s),
                "input_length": told_tokens or decision.prompt_tokens or None,
                "output_length": output_tokens,
                "keys": b2a_base64(keys.tobytes(), newline=False).decode("ascii"),
                "key_form": prompt.form,
                "partial": not prompt.complete and prompt.form is not KeyForm.NONE,
                "session": None if session is None else self._salt.of_name(f"session {session}"),
                "model": self._salt.of_name(f"model {decision.model}"),
                "worker": self._number(lease.worker),
                "ttft_ms": milliseconds(decision.ttft_s),
                "duration_ms": milliseconds(decision.duration_s),
                "cached_tokens": decision.actual_cached_tokens,
                "predicted_cached_tokens": decision.predicted_cached_tokens,
                "reason": decision.reason,
                "stream": lease.stream,
                "outcome": decision.outcome,
                "status": decision.status,
            }
        )

    def state(self, now_s: float, dropped: int, workers: Sequence[WorkerFigures] | None) -> bytes:
        """How far the recording is. `workers`: all there are now, to be told with their latest numbers."""
        state: dict[str, Any] = {"timestamp": milliseconds(now_s - self._start_s), "dropped": dropped}
        if workers is not None:
            state["workers"] = self._told(workers)
        return line({"state": state})

    def _number(self, worker: Worker) -> int | None:
        """Its place in the list of workers; None once there were too many."""
        number = self._numbers.get(worker.id)
        if number is None and len(self._rows) < MAX_NUMBERED_WORKERS:
            number = self._numbers[worker.id] = len(self._rows)
            self._rows.append(worker_row(worker, None))
            self.has_new_worker = True
        return number

    def _told(self, workers: Sequence[WorkerFigures]) -> list[dict[str, Any]]:
        """A row of each worker that there was, by its number; those that left keep the numbers they had."""
        for worker in workers:
            number = self._numbers.get(worker.id)
            row = worker_row(worker, worker.prefill_tokens_per_s)
            if number is not None:
                self._rows[number] = row
            elif len(self._rows) < MAX_NUMBERED_WORKERS:
                self._numbers[worker.id] = len(self._rows)
                self._rows.append(row)
        self.has_new_worker = False
        return self._rows


def worker_row(worker: Worker | WorkerFigures, prefill_tokens_per_s: float | None) -> dict[str, Any]:
    """What is told of a worker: never its address, models or adapters. Speed: None of one that nobody has looked up yet."""
    return {
        "kind": worker.kind,
        "truth": worker.truth,
        "capacity_tokens": worker.capacity_tokens,
        "block_tokens": worker.block_tokens,
        "prefill_tokens_per_s": prefill_tokens_per_s,
        "weight": worker.weight,
    }


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def line(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
