"""`warmline workers` and `warmline explain`: asks a router's admin port and prints the answer for people.

What the admin port sends is data from elsewhere: missing fields show as a dash, control characters never reach the
terminal, and an answer that is not the expected JSON is an error text, never a traceback.
"""

import http.client
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from router.core.types import BLOCK_TOKENS
from router.settings import RoutingSettings

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
PIPE_WIDTH = 1000  # columns where standard output is no terminal: nothing is folded or cut
UNKNOWN = "–"

Row = Mapping[str, Any]

REASONS = {
    "warm_prefix": "it held the start of this prompt and was the cheapest",
    "holder_busy": "it was the cheapest in all; workers that held more of this prompt were busier or slower",
    "ring_home": "no worker held the start of this prompt, and it is the prompt's home on the ring",
    "least_cost": "no worker held the start of this prompt, and it was clearly cheaper than the prompt's homes on the ring",
    "least_queue": "it had the least to do",
    "session": "it served this session before and was cheap enough",
    "only_candidate": "it was the only worker that could serve it",
    "retry": "the worker chosen first failed",
    "round_robin": "it was its turn",
    "random": "it was drawn at random",
}
KEY_REASONS = {
    "engine_asked": "told by an engine, because the tokenizer makes others",
    "engine_late": "the engine asked for the tokens had not answered within the deadline",
    "engine_failed": "no engine told the tokens, and the tokenizer makes others",
    "asks_full": "too many prompts wait for an engine to tell their tokens",
    "tokens_differ": "the tokenizer makes other tokens than the engines",
}
RING_POLICY_HOME = "it is the prompt's home on the ring, or the first in turn that was not over the ring's bound"
DEARER_HOME = "; a home wins unless another worker is cheaper by more than a quarter of what computing the whole prompt takes"


class AdminError(Exception):
    """The admin port gave no usable answer; the text says why."""


def show_workers(admin: str, as_json: bool) -> int:
    """Prints all workers. Returns the exit status."""
    try:
        answer = fetch(admin, "/workers")
        if as_json:
            return print_json(answer)
        print_workers(rows_of(answer.get("workers")), console())
    except AdminError as error:
        return fail(error)
    return 0


def show_decision(admin: str, request_id: str, as_json: bool) -> int:
    """Prints why one request went where it went. Returns the exit status."""
    try:
        answer = fetch(admin, "/decisions/" + quote(request_id, safe=""))
        if as_json:
            return print_json(answer)
        print_decision(answer, console())
    except AdminError as error:
        return fail(error)
    return 0


def fail(error: AdminError) -> int:
    print(f"warmline: {plain(error)}", file=sys.stderr)
    return 1


def print_json(answer: Row) -> int:
    print(json.dumps(answer, indent=2))
    return 0


def console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def fetch(admin: str, path: str) -> dict[str, Any]:
    """GET on the admin port. Raises AdminError."""
    base = base_url(admin)
    with admin_errors(base), asked(base + path, "application/json", TIMEOUT_S) as response:
        body = response.read(MAX_ANSWER_BYTES)
    return read_object(base, body)


def asked(url: str, accept: str, timeout_s: float) -> http.client.HTTPResponse:
    """The answer to a GET, proxies ignored, its body not yet read."""
    request = Request(url, headers={"Accept": accept})
    answer: http.client.HTTPResponse = build_opener(ProxyHandler({})).open(request, timeout=timeout_s)
    return answer


@contextmanager
def admin_errors(base: str) -> Iterator[None]:
    """What can go wrong within it is told as AdminError."""
    try:
        yield
    except HTTPError as error:
        with error:
            raise AdminError(error_text(base, error)) from None
    except URLError as error:
        raise AdminError(f"no router answers at {base}: {getattr(error.reason, 'strerror', None) or error.reason}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise AdminError(f"no usable answer from {base}: {error or type(error).__name__}") from None


def base_url(admin: str) -> str:
    """HOST:PORT and a trailing slash are fine too. Raises AdminError."""
    base = admin.rstrip("/") if "://" in admin else f"http://{admin.rstrip('/')}"
    try:
        parts = urlsplit(base)
        if parts.scheme in ("http", "https") and parts.hostname:
            return base
    except ValueError:
        pass
    raise AdminError(f"--admin {admin!r} is not http://HOST:PORT")


def read_object(base: str, body: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise AdminError(f"{base} does not answer like the admin port of Warmline")
    return answer


def error_text(base: str, error: HTTPError) -> str:
    """The message of the error answer when it has one."""
    try:
        message = json.loads(error.read(MAX_ANSWER_BYTES))["error"]["message"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, http.client.HTTPException):
        message = error.reason
    return f"{base} answered {error.code}: {message}"


def rows_of(value: Any) -> list[Row]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise AdminError("the admin port's answer holds no list of objects where one is due")
    return value


def plain(value: object) -> str:
    """Text safe for a terminal: whatever is not printable becomes a question mark."""
    return "".join(c if c.isprintable() else "?" for c in str(value))


def cell(value: object, form: str = "") -> str:
    """A table cell: a dash for unknown, numbers in `form` (a format specification)."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, list):
        return plain(", ".join(str(entry) for entry in value)) or UNKNOWN
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return format(value, form) if number and form else plain(value)


def seconds(value: object) -> str:
    """A time in milliseconds below one second, in seconds above."""
    if not isinstance(value, (int, float)):
        return UNKNOWN
    return f"{value * 1000:.1f} ms" if abs(value) < 1 else f"{value:.2f} s"


def make_table(columns: Sequence[str], right: frozenset[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


LIFECYCLE_STYLES = {"ready": "green", "loading": "yellow", "draining": "yellow", "down": "red"}
WORKER_COLUMNS = (
    "worker",
    "kind",
    "state",
    "models",
    "adapters",
    "in flight",
    "running",
    "waiting",
    "KV used",
    "held",
    "tokens/s",
    "cached",
    "why",
)


NUMBER_COLUMNS = frozenset(("in flight", "running", "waiting", "KV used", "held", "tokens/s"))


def print_workers(workers: Sequence[Row], out: Console) -> None:
    """A row per worker; a second line explains the columns that need it."""
    if not workers:
        out.print("The router knows no workers.")
        return
    adapters = [adapters_text(worker) for worker in workers]
    columns = [name for name in WORKER_COLUMNS if name != "adapters" or any(adapters)]
    table = make_table(columns, NUMBER_COLUMNS)
    speeds = [own_speed(worker) for worker in workers]
    for worker, speed, names in zip(workers, speeds, adapters, strict=True):
        state = cell(worker.get("lifecycle"))
        table.add_row(
            Text(cell(worker.get("id"))),
            Text(cell(worker.get("kind"))),
            Text(state, style=LIFECYCLE_STYLES.get(state, "")),
            Text(cell(base_models(worker))),
            *([Text(names or UNKNOWN)] if any(adapters) else []),
            cell(worker.get("in_flight"), ","),
            cell(worker.get("running"), ","),
            cell(worker.get("waiting"), ","),
            cell(worker.get("kv_used_ratio"), ".0%"),
            held_text(worker),
            speed_text(worker, assumed=speed is not None and is_assumed(speed, speeds)),
            recent_cached_text(worker),
            Text(remarks(worker)),
        )
    out.print(table)
    out.print(
        "held: how full the router takes its cache to be. tokens/s: of prompts; ~ not measured on this worker yet.\n"
        "cached: tokens per recent request, predicted → actual."
        + (" adapters: (version), * in the engine's memory." if any(adapters) else ""),
        style="dim",
    )


def base_models(worker: Row) -> object:
    """Its models but for adapters, which have a column of their own."""
    models, adapters = worker.get("models"), adapter_names(worker)
    return [name for name in models if name not in adapters] if isinstance(models, list) and adapters else models


def adapter_names(worker: Row) -> dict[str, str]:
    """Name → version of its LoRA adapters, told as NAME or NAME@VERSION; the whole text where that is a model's name."""
    told, models = worker.get("adapters"), worker.get("models")
    names: dict[str, str] = {}
    for text in told if isinstance(told, list) else ():
        name, _, version = str(text).rpartition("@")
        is_name = not name or (isinstance(models, list) and text in models)
        names[str(text) if is_name else name] = "" if is_name else version
    return names


def adapters_text(worker: Row) -> str:
    """Names with their versions, a star behind those in the engine's memory; empty without adapters."""
    loaded = worker.get("loaded_adapters")
    in_memory = loaded if isinstance(loaded, list) else []
    shown = []
    for name, version in adapter_names(worker).items():
        shown.append(plain(name) + (f" ({plain(version)})" if version else "") + ("*" if name in in_memory else ""))
    return ", ".join(shown)


def held_text(worker: Row) -> str:
    blocks, capacity = worker.get("blocks_held"), worker.get("capacity_tokens")
    if not isinstance(blocks, int) or not isinstance(capacity, int) or capacity < 1:
        return UNKNOWN
    return f"{blocks * BLOCK_TOKENS / capacity:.0%}"


def own_speed(worker: Row) -> float | None:
    """Its prefill speed by its weight: workers on which none was measured have the same to the last digit."""
    speed, weight = worker.get("prefill_tokens_per_s"), worker.get("weight")
    known = isinstance(speed, (int, float)) and isinstance(weight, (int, float)) and weight > 0
    return speed / weight if known else None  # type: ignore[operator]


def is_assumed(speed: float, speeds: Sequence[float | None]) -> bool:
    """Whether it surely was not measured: shared with another worker, or the number assumed by default."""
    shared = sum(other is not None and math.isclose(speed, other) for other in speeds) > 1
    return shared or math.isclose(speed, RoutingSettings().prefill_tokens_per_s)


def speed_text(worker: Row, *, assumed: bool) -> Text:
    text = cell(worker.get("prefill_tokens_per_s"), ",.0f")
    return Text(f"~{text}", style="dim") if assumed else Text(text)


def recent_cached_text(worker: Row) -> str:
    """Moving averages that are both exactly 0 have not seen a request yet."""
    predicted, actual = worker.get("predicted_cached_tokens"), worker.get("actual_cached_tokens")
    if actual is None or predicted == actual == 0:
        return UNKNOWN
    return f"{cell(predicted, ',.0f')} → {cell(actual, ',.0f')}"


def remarks(worker: Row) -> str:
    """Why it is in its state, and how its cache is known when that is not the usual way."""
    rows = [cell(worker.get("why"))]
    reason = worker.get("truth_reason")
    if worker.get("truth") not in ("modelled", None) or reason:
        rows.append(f"cache {cell(worker.get('truth'))}" + (f": {plain(reason)}" if reason else ""))
    if worker.get("tokens_match") is False:
        rows.append(f"other tokens than the tokenizer: {cell(worker.get('tokens_why'))}")
    return "; ".join(row for row in rows if row != UNKNOWN) or UNKNOWN


def print_decision(decision: Row, out: Console) -> None:
    """One sentence why, the request's numbers, then every candidate, the cheapest first and the chosen one marked."""
    candidates = sorted(rows_of(decision.get("candidates", [])), key=cost_of)
    out.print(Text(why(decision, candidates)))
    out.print()
    for name, value in facts(decision):
        out.print(Text(f"  {name:<9} {value}"))
    if candidates:
        out.print()
        out.print(candidate_table(decision, candidates))


def cost_of(candidate: Row) -> float:
    cost = candidate.get("cost_s")
    return float(cost) if isinstance(cost, (int, float)) else float("inf")


def why(decision: Row, candidates: Sequence[Row]) -> str:
    """The one sentence: where the request went, and the reason in words. `candidates` by cost."""
    text = f"Request {cell(decision.get('request_id'))} went to {cell(decision.get('worker'))}"
    if len(candidates) > 1:
        text += f", one of {len(candidates)} candidates"
    return f"{text}: {reason_text(decision, candidates)}."


def reason_text(decision: Row, candidates: Sequence[Row]) -> str:
    reason = str(decision.get("reason"))
    text = REASONS.get(reason, f"the rule {plain(reason)}")
    if reason == "retry" and decision.get("tried"):
        text += f" ({cell(decision.get('tried'))})"
    if reason == "ring_home":
        if decision.get("policy") == "ring":
            return RING_POLICY_HOME
        if candidates and candidates[0].get("worker") != decision.get("worker"):
            text += DEARER_HOME
    return text


def facts(decision: Row) -> list[tuple[str, str]]:
    """(name, text) lines about the request. Unknown outcomes are left out while it runs."""
    rows = [
        ("model", cell(decision.get("model"))),
        ("policy", f"{cell(decision.get('policy'))}, reason {cell(decision.get('reason'))}"),
        ("prompt", f"{cell(decision.get('prompt_tokens'), ',')} tokens, keys from {key_source(decision)}"),
        ("cached", cached_text(decision)),
        ("TTFT", seconds(decision.get("ttft_s"))),
        ("outcome", outcome_text(decision)),
    ]
    if isinstance(decision.get("at_s"), (int, float)):
        rows.insert(0, ("at", datetime.fromtimestamp(decision["at_s"]).astimezone().isoformat(" ", "milliseconds")))
    if decision.get("session"):
        rows.append(("session", cell(decision["session"])))
    if decision.get("tried"):
        rows.append(("tried", cell(decision["tried"])))
    return rows


def key_source(decision: Row) -> str:
    reason = decision.get("unkeyed_reason")
    words = KEY_REASONS.get(str(reason), reason)
    return cell(decision.get("key_form")) + (f" ({plain(words)})" if reason else "")


def cached_text(decision: Row) -> str:
    """Predicted against actual cached tokens; the engine may not have told the latter, or not yet."""
    predicted, actual = decision.get("predicted_cached_tokens"), decision.get("actual_cached_tokens")
    if actual is None:
        return f"{cell(predicted, ',')} tokens predicted, the engine has not told"
    return f"{cell(predicted, ',')} tokens predicted, {cell(actual, ',')} actual"


def outcome_text(decision: Row) -> str:
    if decision.get("outcome") is None:
        began = decision.get("at_s")
        age = f" for {time.time() - began:.1f} s" if isinstance(began, (int, float)) else ""
        return f"running{age}"
    return f"{cell(decision['outcome'])}, status {cell(decision.get('status'))}, after {seconds(decision.get('duration_s'))}"


CANDIDATE_COLUMNS = ("", "worker", "cost", "cached", "to compute", "prefill", "backlog", "price", "in flight", "truth", "hints")


def candidate_table(decision: Row, candidates: Sequence[Row]) -> Table:
    table = make_table(CANDIDATE_COLUMNS, frozenset(CANDIDATE_COLUMNS[2:9]))
    for candidate in candidates:
        chosen = candidate.get("worker") == decision.get("worker")
        hints = [name for name, key in (("ring home", "home"), ("session", "session")) if candidate.get(key)]
        table.add_row(
            "→" if chosen else "",
            Text(cell(candidate.get("worker"))),
            seconds(candidate.get("cost_s")),
            cell(candidate.get("matched_tokens"), ","),
            cell(candidate.get("uncached_tokens"), ","),
            seconds(candidate.get("prefill_s")),
            seconds(candidate.get("backlog_s")),
            cell(candidate.get("price"), ".3f"),
            cell(candidate.get("in_flight"), ","),
            Text(cell(candidate.get("truth"))),
            ", ".join(hints),
            style="bold" if chosen else "",
        )
    return table
