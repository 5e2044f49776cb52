"""Repeated prefixes go to the engine that has them, the forecast is what the engine then says, and bytes stay bytes."""

import json
import re
import subprocess
import sys
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from tests.e2e.cluster import MODEL, Cluster, post
from tests.e2e.test_openai_sdk import CLOCK

SLACK_TOKENS = 32  # one block is cut off at the end, one more may differ where the answer begins


def words(seed: str, count: int) -> str:
    """Text that no other test sends."""
    return " ".join(f"{seed}{number}" for number in range(count))


class Talk:
    """A conversation through the SDK; remembers the request ids."""

    def __init__(self, client: openai.OpenAI, instructions: str, **extra: Any) -> None:
        self.client = client
        self.extra = extra
        self.messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": instructions}]
        self.request_ids: list[str] = []
        self.answers: list[ChatCompletion] = []

    def ask(self, question: str) -> None:
        self.messages.append({"role": "user", "content": question})
        raw = self.client.chat.completions.with_raw_response.create(
            model=MODEL, messages=self.messages, max_tokens=8, temperature=0, **self.extra
        )
        answer = raw.parse()
        self.request_ids.append(raw.headers["x-request-id"])
        self.answers.append(answer)
        self.messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})

    def cached_tokens(self) -> int:
        """As the engine reported for the latest turn."""
        usage = self.answers[-1].usage
        assert usage is not None and usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0


@pytest.mark.parametrize("extra", [{}, {"tools": [CLOCK]}], ids=["plain", "tools"])
def test_conversation_stays_warm_and_is_forecast(client: openai.OpenAI, cluster: Cluster, extra: dict[str, Any]) -> None:
    """Every turn goes to the same engine; its cached tokens are those the router predicted, to within two blocks."""
    talk = Talk(client, words(f"talk{len(extra)}-", 120), **extra)
    for turn in range(4):
        talk.ask(f"Question {turn}: {words('q', 12)}")
    decisions = [cluster.decision(request_id) for request_id in talk.request_ids]
    assert len({decision["worker"] for decision in decisions}) == 1
    for turn, (decision, answer) in enumerate(zip(decisions, talk.answers, strict=True)):
        assert decision["key_form"] == "tokens" and answer.usage is not None
        assert decision["prompt_tokens"] == answer.usage.prompt_tokens
        assert abs(decision["predicted_cached_tokens"] - decision["actual_cached_tokens"]) <= SLACK_TOKENS, decision
        assert turn == 0 or decision["actual_cached_tokens"] > 300
    assert decisions[-1]["actual_cached_tokens"] == talk.cached_tokens()


@pytest.mark.parametrize("form", ["text", "token ids"])
def test_completion_prompts_are_keyed_too(client: openai.OpenAI, cluster: Cluster, form: str) -> None:
    """A longer prompt with the same beginning finds it warm, as text and as token ids."""
    text = words("completion-", 100)
    ids = list(range(1000, 1400))
    first: Any = text if form == "text" else ids
    second: Any = text + words(" more", 20) if form == "text" else [*ids, *range(2000, 2050)]
    decisions = []
    for prompt in (first, second):
        raw = client.completions.with_raw_response.create(model=MODEL, prompt=prompt, max_tokens=2, temperature=0)
        decisions.append(cluster.decision(raw.headers["x-request-id"]))
    assert decisions[0]["worker"] == decisions[1]["worker"]
    assert decisions[1]["actual_cached_tokens"] > 300
    assert abs(decisions[1]["predicted_cached_tokens"] - decisions[1]["actual_cached_tokens"]) <= SLACK_TOKENS


def test_different_prompts_use_both_engines(client: openai.OpenAI, cluster: Cluster) -> None:
    """Prompts that share nothing are spread: one engine does not get them all."""
    workers: set[str] = set()
    for number in range(128):  # the ring's halves are about 60:40, and an engine that seemed slow gets its turn later
        if len(workers) == 2:
            break
        talk = Talk(client, words(f"spread{number}-", 60))
        talk.ask("Well?")
        workers.add(cluster.decision(talk.request_ids[0])["worker"])
    assert len(workers) == 2


def test_decision_can_be_explained(client: openai.OpenAI, cluster: Cluster) -> None:
    """The admin port and `warmline explain` name every candidate with its numbers, the choice and what came of it."""
    talk = Talk(client, words("explain-", 80))
    talk.ask("First?")
    talk.ask("Second?")
    request_id = talk.request_ids[1]
    decision = cluster.decision(request_id)
    assert len(decision["candidates"]) == 2 and decision["policy"] == "warm" and decision["outcome"] == "ok"
    chosen = next(row for row in decision["candidates"] if row["worker"] == decision["worker"])
    other = next(row for row in decision["candidates"] if row["worker"] != decision["worker"])
    assert chosen["matched_tokens"] > 0 == other["matched_tokens"]
    assert chosen["cost_s"] < other["cost_s"] and decision["duration_s"] > 0
    command = [sys.executable, "-m", "router.cli", "explain", request_id, "--admin", cluster.router.admin_url]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert shown.returncode == 0, shown.stderr
    assert request_id in shown.stdout and all(row["worker"] in shown.stdout for row in decision["candidates"])


def test_workers_are_shown(cluster: Cluster) -> None:
    """`warmline workers` lists both engines as ready with their model."""
    command = [sys.executable, "-m", "router.cli", "workers", "--admin", cluster.router.admin_url]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("ready") >= 2 and MODEL in shown.stdout


def test_nothing_is_left_in_flight(cluster: Cluster) -> None:
    """Between requests no worker has any in flight or any prefill pending."""
    assert [(row["in_flight"], row["pending_prefill_tokens"]) for row in cluster.router.workers()] == [(0, 0), (0, 0)]


def without_the_new(body: bytes) -> list[Any]:
    """The JSON documents of a body or stream without what is new in every answer: id, created and timings."""
    documents = re.findall(rb"^data: (\{.*\})$", body, re.MULTILINE) or [body]
    parsed = [json.loads(document) for document in documents]
    for document in parsed:
        for name in ("id", "created", "timings"):
            document.pop(name, None)
    return parsed


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": words("same-", 40)}], "logprobs": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": words("flow-", 40)}], "stream": True}),
        ("/v1/completions", {"prompt": [words("one-", 20), words("two-", 20)], "n": 2}),
        ("/v1/completions", {"prompt": words("text-", 40), "stream": True, "stream_options": {"include_usage": True}}),
    ],
    ids=["chat", "streamed chat", "completions", "streamed completion"],
)
def test_answers_are_the_engines_own(cluster: Cluster, path: str, question: dict[str, Any]) -> None:
    """Through the router a warm request gets the answer that its engine gives directly: same JSON, same status, same type."""
    body = json.dumps({"model": MODEL, "max_tokens": 12, "temperature": 0, "seed": 1, **question}).encode()
    _, headers, _ = post(cluster.router.url + path, body)  # from here on its engine has the prompt cached
    engine = cluster.engine_of(headers["x-request-id"])
    direct_status, direct_headers, direct = post(engine.url + path, body)
    status, headers, routed = post(cluster.router.url + path, body)
    assert cluster.engine_of(headers["x-request-id"]) is engine
    assert (
        (status, headers["content-type"]) == (direct_status, direct_headers["content-type"]) == (200, headers["content-type"])
    )
    assert without_the_new(routed) == without_the_new(direct)
    assert routed.endswith(b"data: [DONE]\n\n") == direct.endswith(b"data: [DONE]\n\n") == bool(question.get("stream"))
