"""`warmline workers` and `warmline explain` against a small admin port: what people read, and what goes wrong."""

import ast
import dataclasses
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

from router.admin.figures import WorkerFigures
from router.cli_show import REASONS, AdminError, cell, fetch, plain, print_workers, seconds, show_decision, show_workers
from router.core.types import CandidateCost, Decision, KeyForm, Lifecycle, Truth, WorkerId

ROOT = Path(__file__).parent.parent
A, B = WorkerId("10.0.0.1:8000"), WorkerId("10.0.0.2:8000")
WORKER = WorkerFigures(
    id=A,
    url="http://10.0.0.1:8000",
    kind="vllm",
    weight=1.0,
    lifecycle=Lifecycle.READY,
    why="",
    models=("llama", "llama-lora"),
    generation="1",
    truth=Truth.MODELLED,
    truth_reason="",
    in_flight=3,
    pending_prefill_tokens=1200,
    running=2,
    waiting=None,
    kv_used_ratio=0.4567,
    capacity_tokens=160_000,
    blocks_held=5_000,
    prefill_tokens_per_s=2512.7,
    predicted_cached_tokens=480.2,
    actual_cached_tokens=470.0,
)
DECISION = Decision(
    request_id="req/1",
    at_s=1_700_000_000.0,
    policy="warm",
    reason="warm_prefix",
    worker=A,
    model="llama",
    prompt_tokens=5120,
    key_form=KeyForm.TOKENS,
    unkeyed_reason=None,
    predicted_cached_tokens=4800,
    candidates=(
        CandidateCost(B, 0, 5120, 2.05, 0.0, 0.1, 2.5, 0, Truth.MODELLED, True, False),
        CandidateCost(A, 4800, 320, 0.128, 0.05, 0.1, 0.2, 3, Truth.MODELLED, False, True),
    ),
    actual_cached_tokens=4816,
    ttft_s=0.1834,
    duration_s=2.5,
    status=200,
    outcome="ok",
)
Answers = dict[str, tuple[int, bytes]]


@dataclasses.dataclass
class FakeAdmin:
    """An admin port that answers from a table; anything else is 404 in the API's form."""

    url: str
    answers: Answers

    def give(self, path: str, value: Any, status: int = 200) -> None:
        self.answers[path] = (status, value if isinstance(value, bytes) else orjson.dumps(value))


@pytest.fixture
def admin() -> Iterator[FakeAdmin]:
    answers: Answers = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, b'{"error": {"message": "No such thing"}}'))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield FakeAdmin(f"http://127.0.0.1:{server.server_port}", answers)
        server.shutdown()
        thread.join()


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_workers_as_a_table(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """One row per worker with state, load, cache and speed; what is unknown is a dash, never 0."""
    down = dataclasses.replace(WORKER, id=B, lifecycle=Lifecycle.DOWN, why="connection refused", models=None, running=None)
    odd = dataclasses.replace(WORKER, id="c:1", truth=Truth.NONE, truth_reason="no prefix cache", actual_cached_tokens=None)
    down.prefill_tokens_per_s, odd.prefill_tokens_per_s = 1800.0, None
    other = dataclasses.replace(WORKER, id="d:1", tokens_match=False, tokens_why="the chat template differs from token 3 on")
    other.prefill_tokens_per_s = 2100.0
    admin.give("/workers", {"workers": [WORKER, down, odd, other]})
    assert show_workers(admin.url, as_json=False) == 0
    rows = [line for line in lines_of(capsys) if line.startswith(("10.", "c:1", "d:1"))]
    assert rows == [
        "10.0.0.1:8000 vllm ready llama, llama-lora 3 2 – 46% 50% 2,513 480 → 470 –",
        "10.0.0.2:8000 vllm down – 3 – – 46% 50% 1,800 480 → 470 connection refused",
        "c:1 vllm ready llama, llama-lora 3 2 – 46% 50% – – cache none: no prefix cache",
        "d:1 vllm ready llama, llama-lora 3 2 – 46% 50% 2,100 480 → 470 "
        "other tokens than the tokenizer: the chat template differs from token 3 on",
    ]


def test_adapters_have_a_column_where_there_are_any(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """LoRA adapters stand apart from the models, with their version and whether they are in the engine's memory."""
    tuned = dataclasses.replace(
        WORKER,
        models=("base", "legal", "tax", "law@3"),
        adapters=("legal@3f2a", "tax", "law@3"),
        loaded_adapters=("legal", "gone"),
    )
    admin.give("/workers", {"workers": [tuned, dataclasses.replace(WORKER, id=B)]})
    assert show_workers(admin.url, as_json=False) == 0
    lines = lines_of(capsys)
    assert "models adapters in flight" in lines[0] and "* in the engine's memory" in lines[-1]
    rows = [line for line in lines if line.startswith("10.")]
    assert rows[0].startswith("10.0.0.1:8000 vllm ready base legal (3f2a)*, tax, law@3 3 2")
    assert rows[1].startswith("10.0.0.2:8000 vllm ready llama, llama-lora – 3 2")


def columns_of(admin: FakeAdmin, capsys: pytest.CaptureFixture[str], *workers: WorkerFigures) -> list[tuple[str, str]]:
    """(tokens/s, cached) of each worker as shown."""
    admin.give("/workers", {"workers": list(workers)})
    assert show_workers(admin.url, as_json=False) == 0
    rows = [line for line in lines_of(capsys) if line.startswith("10.")]
    return [(row.split("50% ")[1].split(" ")[0], row.split("50% ")[1].split(" ", 1)[1]) for row in rows]


def test_nothing_measured_looks_measured(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """Before any request a worker has a dash for cached tokens and its speed is marked as not measured."""
    fresh = dataclasses.replace(WORKER, prefill_tokens_per_s=2500.0, predicted_cached_tokens=0.0, actual_cached_tokens=0.0)
    assert columns_of(admin, capsys, fresh) == [("~2,500", "– –")]
    heavy = dataclasses.replace(fresh, id=B, weight=2.0, prefill_tokens_per_s=5000.0)
    assert columns_of(admin, capsys, fresh, heavy) == [("~2,500", "– –"), ("~5,000", "– –")]


def test_speed_of_the_fleet_is_not_a_workers_own(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """What several workers share, by weight, was not measured on them; a speed of its own was."""
    others = [
        dataclasses.replace(WORKER, id=B, prefill_tokens_per_s=900.0 * weight, weight=weight, predicted_cached_tokens=0.0)
        for weight in (1.0, 3.0)
    ]
    assert columns_of(admin, capsys, WORKER, *others) == [
        ("2,513", "480 → 470 –"),
        ("~900", "0 → 470 –"),
        ("~2,700", "0 → 470 –"),
    ]


def test_no_workers(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty fleet is said in words."""
    admin.give("/workers", {"workers": []})
    assert show_workers(admin.url, as_json=False) == 0
    assert lines_of(capsys) == ["The router knows no workers."]


def test_explain(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence why, predicted against actual cached tokens, TTFT, then candidates by cost with the chosen one marked."""
    admin.give("/decisions/req%2F1", DECISION)
    assert show_decision(admin.url, "req/1", as_json=False) == 0
    lines = lines_of(capsys)
    reason = "it held the start of this prompt and was the cheapest"
    assert lines[0] == f"Request req/1 went to 10.0.0.1:8000, one of 2 candidates: {reason}."
    assert "prompt 5,120 tokens, keys from tokens" in lines
    assert "cached 4,800 tokens predicted, 4,816 actual" in lines
    assert "TTFT 183.4 ms" in lines
    assert "outcome ok, status 200, after 2.50 s" in lines
    assert lines[-2:] == [
        "→ 10.0.0.1:8000 200.0 ms 4,800 320 128.0 ms 50.0 ms 0.100 3 modelled session",
        "10.0.0.2:8000 2.50 s 0 5,120 2.05 s 0.0 ms 0.100 0 modelled ring home",
    ]


@pytest.mark.parametrize(
    ("policy", "chosen", "sentence"),
    [
        ("warm", A, "no worker held the start of this prompt, and it is the prompt's home on the ring."),
        ("warm", B, "cheaper by more than a quarter of what computing the whole prompt takes."),
        ("ring", B, "the first in turn that was not over the ring's bound."),
    ],
)
def test_explain_a_home(
    policy: str, chosen: WorkerId, sentence: str, admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    """A home on the ring that was not the cheapest won by a rule, which is told; the ring policy knows no costs."""
    decision = Decision(
        request_id="r",
        at_s=1.0,
        policy=policy,
        reason="ring_home",
        worker=chosen,
        model="llama",
        prompt_tokens=5120,
        key_form=KeyForm.TOKENS,
        unkeyed_reason=None,
        predicted_cached_tokens=0,
        candidates=DECISION.candidates,
    )
    admin.give("/decisions/r", decision)
    assert show_decision(admin.url, "r", as_json=False) == 0
    assert lines_of(capsys)[0].endswith(sentence)


EARLY = dataclasses.replace(
    DECISION,
    actual_cached_tokens=None,
    ttft_s=None,
    duration_s=None,
    status=None,
    outcome=None,
    reason="retry",
    tried=(B,),
    candidates=DECISION.candidates[1:],
    key_form=KeyForm.NONE,
    unkeyed_reason="multimodal",
    session="s-1",
)


def test_explain_while_it_runs(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the end the outcome is open, and a retry tells which workers were tried."""
    admin.give("/decisions/r", EARLY)
    assert show_decision(admin.url, "r", as_json=False) == 0
    lines = lines_of(capsys)
    assert lines[0].endswith("went to 10.0.0.1:8000: the worker chosen first failed (10.0.0.2:8000).")
    assert "cached 4,800 tokens predicted, the engine has not told" in lines
    assert "prompt 5,120 tokens, keys from none (multimodal)" in lines
    assert "TTFT –" in lines and "session s-1" in lines and "tried 10.0.0.2:8000" in lines
    assert any(line.startswith("outcome running for ") for line in lines)


@pytest.mark.parametrize(
    ("form", "reason", "words"),
    [
        (KeyForm.TOKENS, "engine_asked", "tokens (told by an engine, because the tokenizer makes others)"),
        (KeyForm.TEXT, "tokens_differ", "text (the tokenizer makes other tokens than the engines)"),
        (KeyForm.TEXT, "engine_late", "text (the engine asked for the tokens had not answered within the deadline)"),
    ],
)
def test_keys_that_are_not_the_tokenizers(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], form: KeyForm, reason: str, words: str
) -> None:
    """Where the tokenizer is not the engines' it is said in words what the keys are made from."""
    admin.give("/decisions/r", dataclasses.replace(DECISION, key_form=form, unkeyed_reason=reason))
    assert show_decision(admin.url, "r", as_json=False) == 0
    assert f"prompt 5,120 tokens, keys from {words}" in lines_of(capsys)


def test_unknown_fields_are_dashes(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """A router of another version may send less or more: what is there is shown."""
    admin.give("/decisions/r", {"worker": "w", "reason": "new_rule", "candidates": [{"worker": "w"}], "extra": {}})
    assert show_decision(admin.url, "r", as_json=False) == 0
    assert "went to w: the rule new_rule." in capsys.readouterr().out
    admin.give("/workers", {"workers": [{}]})
    assert show_workers(admin.url, as_json=False) == 0
    assert any(set(line.split()) == {"–"} for line in lines_of(capsys))


def test_json_goes_through_whole(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints what the admin port said, for jq."""
    admin.give("/workers", {"workers": [WORKER]})
    admin.give("/decisions/r", DECISION)
    assert show_workers(admin.url, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == orjson.loads(orjson.dumps({"workers": [WORKER]}))
    assert show_decision(admin.url, "r", as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == orjson.loads(orjson.dumps(DECISION))


def test_rows_read_fields_that_exist(admin: FakeAdmin) -> None:
    """Every field shown is one that the admin port sends, so that a rename there is noticed here."""

    class Recorder(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            asked.add(key)
            return super().get(key, default)

    class NoConsole:
        def print(self, *_: object, **__: object) -> None:
            pass

    asked: set[str] = set()
    print_workers([Recorder(dataclasses.asdict(WORKER))], NoConsole())  # type: ignore[arg-type]
    assert asked <= {f.name for f in dataclasses.fields(WorkerFigures)}


def reasons_in(module: str) -> set[str]:
    """The texts that the code returns or stores as a decision's reason."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / module).read_text("utf-8"))):
        tuple_returned = isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
        stored = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "reason"
        if tuple_returned or stored:
            constants = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)]
            found |= {value for value in constants if isinstance(value, str)}
    return found


def test_every_reason_has_words() -> None:
    """Whatever reason a policy or the placement gives, `explain` has a sentence for it, and none for reasons long gone."""
    assert reasons_in("router/core/policy.py") | reasons_in("router/core/placement.py") == set(REASONS)


BAD_ANSWERS: list[tuple[bytes, str]] = [
    (b"<html>", "does not answer like the admin port of Warmline"),
    (b"[]", "does not answer like the admin port of Warmline"),
    (b"[" * 100_000, "does not answer like the admin port of Warmline"),
    (b"\xff", "does not answer like the admin port of Warmline"),
    (b'{"workers": [1]}', "holds no list of objects"),
    (b"{}", "holds no list of objects"),
]


@pytest.mark.parametrize(("body", "problem"), BAD_ANSWERS)
def test_not_an_admin_port(admin: FakeAdmin, body: bytes, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Something else on that port is told in one line, with status 1 and no traceback."""
    admin.give("/workers", body)
    assert show_workers(admin.url, as_json=False) == 1
    error = capsys.readouterr().err
    assert problem in error and error.startswith("warmline: ") and error.count("\n") == 1


def test_error_answers_show_their_message(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    """The router's own words about a decision it no longer has; without words, the status."""
    assert show_decision(admin.url, "gone", as_json=False) == 1
    assert capsys.readouterr().err == f"warmline: {admin.url} answered 404: No such thing\n"
    admin.give("/decisions/broken", b"oops", status=500)
    assert show_decision(admin.url, "broken", as_json=True) == 1
    assert "answered 500: Internal Server Error" in capsys.readouterr().err


def closed_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


UNREACHABLE: list[tuple[Callable[[], str], str]] = [
    (lambda: f"http://127.0.0.1:{closed_port()}", "no router answers at http://127.0.0.1:"),
    (lambda: f"127.0.0.1:{closed_port()}/", "no router answers at http://127.0.0.1:"),
    (lambda: "ftp://a", "--admin 'ftp://a' is not http://HOST:PORT"),
    (lambda: "http://", "is not http://HOST:PORT"),
    (lambda: "http://a b", "no "),
    (lambda: "http://[::1", "is not http://HOST:PORT"),
]


@pytest.mark.parametrize(("admin_url", "problem"), UNREACHABLE)
def test_unreachable(admin_url: Callable[[], str], problem: str) -> None:
    """No router there, or no address at all, is one line of text."""
    with pytest.raises(AdminError, match=problem):
        fetch(admin_url(), "/workers")


def test_proxies_are_ignored(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The admin port is near: a company's HTTP proxy must not get the request."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    admin.give("/workers", {"workers": []})
    assert fetch(admin.url, "/workers") == {"workers": []}


def test_peer_that_is_not_http(capsys: pytest.CaptureFixture[str]) -> None:
    """A port that speaks something else is told as such."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"220 smtp ready\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert show_workers(f"http://127.0.0.1:{server.getsockname()[1]}", as_json=False) == 1
        thread.join()
    assert "no usable answer from" in capsys.readouterr().err


def test_terminal_is_not_steered() -> None:
    """Names come from engines and clients: control characters and markup stay text."""
    assert plain("a\x1b[31m\nb\x9b") == "a?[31m?b?"
    assert cell(["x\x1b", "[red]y"]) == "x?, [red]y"


def test_cells() -> None:
    """Unknown is a dash, numbers take their form, truth values stay words."""
    assert [cell(None), cell(""), cell([]), cell(0), cell(1234, ","), cell(True, ","), cell("x", ",")] == (
        ["–", "–", "–", "0", "1,234", "True", "x"]
    )


def test_seconds() -> None:
    """Short times in milliseconds, long ones in seconds."""
    assert [seconds(None), seconds(0.00125), seconds(0.9994), seconds(12.345)] == ["–", "1.2 ms", "999.4 ms", "12.35 s"]
