"""Real engines whose tokens are, and are not, those of the tokenizer that the router was given."""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from engines.launch import LlamaCppOptions, LocalEngine, launch
from loadtest.demo.router_process import LocalRouter, start_router
from router.tokens.gguf_tokenizer import converted_folder
from tests.e2e.cluster import MODEL, READY_DEADLINE_S, Cluster, until
from tests.e2e.test_openai_sdk import CLOCK
from tests.e2e.test_warm_routing import SLACK_TOKENS, Talk, words
from tests.tokens.vocabularies import CHATML, byte_level, write_folder

SHAPES = ("chat", "parts", "tools", "text")
OTHER_TURN = (b"<|im_end|>\\n'", b"<|im_end|>  '")  # in a template of the same length
GPT2_LIKE = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",)


def prompts_of(router: LocalRouter) -> dict[str, Any]:
    """The admin port's figures of the one model by shape of prompt, once its engines were asked about all and it was judged."""

    def ask() -> dict[str, Any] | None:
        models = router.admin("/models")["models"]
        shapes = {row["shape"]: row for model in models if model["model"] == MODEL for row in model["prompts"]}
        is_judged = all(
            row["workers"] and bool(row["why"]) is not all(worker["matches"] for worker in row["workers"])
            for row in shapes.values()
        )
        known = all(worker["matches"] is not None for row in shapes.values() for worker in row["workers"])
        return shapes if shapes and known and is_judged else None

    return until(ask, "the engines are asked for their tokens", 20.0)


def sources(router: LocalRouter) -> dict[str, str]:
    return {shape: row["keys_from"] for shape, row in prompts_of(router).items()}


def other_template(options: LlamaCppOptions, folder: Path) -> Path:
    """The model's own tokenizer with another line end in its chat template."""
    made = converted_folder(options.model_path, options.model_path.parent)
    assert made is not None
    shutil.copytree(made, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    changed = config["chat_template"].replace(OTHER_TURN[0].decode(), OTHER_TURN[1].decode())
    assert changed != config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": changed}), "utf-8")
    return folder


def other_model(options: LlamaCppOptions, path: Path) -> Path:
    """A copy of the model with that template."""
    path.write_bytes(options.model_path.read_bytes().replace(*OTHER_TURN))
    return path


@contextmanager
def one_router(
    options: LlamaCppOptions, folder: Path, tokenizer: Path, *flags: str, kind: str = "llama.cpp"
) -> Iterator[tuple[LocalEngine, LocalRouter]]:
    """One engine, and a router with this tokenizer for it."""
    given = ("--tokenizer", str(tokenizer), "--tokenizer-cache", str(options.model_path.parent))
    with (
        launch(options, folder / "engine.log") as engine,
        start_router([f"{kind}={engine.url}"], folder / "router.log", *given, *flags) as router,
    ):
        router.await_workers(1, READY_DEADLINE_S)
        yield engine, router


def sdk(router: LocalRouter) -> openai.OpenAI:
    return openai.OpenAI(base_url=router.url + "/v1", api_key="none", max_retries=0, timeout=60)


def decision_of(router: LocalRouter, request_id: str) -> dict[str, Any]:
    return until(lambda: found if (found := router.decision(request_id)).get("outcome") else None, "the decision ends")


def test_the_engines_own_tokenizer_matches(cluster: Cluster) -> None:
    """With the engine's GGUF file as tokenizer chats, tools and texts have the engine's tokens, and nothing is asked."""
    prompts = prompts_of(cluster.router)
    assert {shape: row["keys_from"] for shape, row in prompts.items()} == dict.fromkeys(SHAPES, "tokenizer")
    assert all(worker["matches"] is True for row in prompts.values() for worker in row["workers"])
    assert all(row["tokens_match"] is True for row in cluster.router.workers())


@pytest.mark.parametrize("extra", [{}, {"tools": [CLOCK]}], ids=["plain", "tools"])
def test_another_template_is_seen_and_made_up_for(options: LlamaCppOptions, tmp_path: Path, extra: dict[str, Any]) -> None:
    """Only chats differ, which is said; their tokens are the engine's, so that cached tokens are forecast as always."""
    tokenizer = other_template(options, tmp_path / "tokenizer")
    with one_router(options, tmp_path, tokenizer, "--key-deadline-s", "2") as (_, router):
        prompts = prompts_of(router)
        assert sources(router) == {"chat": "engine", "parts": "engine", "tools": "engine", "text": "tokenizer"}
        assert "the chat template differs from token" in prompts["chat"]["why"]
        (worker,) = router.workers()
        assert worker["tokens_match"] is False and "the chat template differs" in worker["tokens_why"]
        log = (tmp_path / "router.log").read_text("utf-8")
        assert (
            log.count("are keyed by") == log.count("chats, chats in parts, chats with tools are keyed by asking an engine") == 1
        )
        with sdk(router) as client:
            talk = Talk(client, words(f"parity{len(extra)}-", 120), **extra)
            for turn in range(4):
                talk.ask(f"Question {turn}: {words('q', 12)}")
        check_forecasts(router, talk)


def check_forecasts(router: LocalRouter, talk: Talk) -> None:
    for turn, (request_id, answer) in enumerate(zip(talk.request_ids, talk.answers, strict=True)):
        decision = decision_of(router, request_id)
        assert (decision["key_form"], decision["unkeyed_reason"]) == ("tokens", "engine_asked"), decision
        assert answer.usage is not None and decision["prompt_tokens"] == answer.usage.prompt_tokens
        assert abs(decision["predicted_cached_tokens"] - decision["actual_cached_tokens"]) <= SLACK_TOKENS, decision
        assert turn == 0 or decision["actual_cached_tokens"] > 300


def test_another_tokenizer_is_seen_and_made_up_for(options: LlamaCppOptions, tmp_path: Path) -> None:
    """Texts too are keyed as the engine reads them when the tokenizer is another model's."""
    tokenizer = write_folder(tmp_path / "tokenizer", byte_level(GPT2_LIKE), chat_template=CHATML)
    with one_router(options, tmp_path, tokenizer, "--key-deadline-s", "2") as (_, router):
        prompts = prompts_of(router)
        assert sources(router) == dict.fromkeys(SHAPES, "engine")
        assert "the tokenizer differs from token" in prompts["text"]["why"]
        text = words("another-", 100)
        decisions = []
        with sdk(router) as client:
            for prompt in (text, text + words(" more", 20), text):
                raw = client.completions.with_raw_response.create(model=MODEL, prompt=prompt, max_tokens=2, temperature=0)
                decisions.append(decision_of(router, raw.headers["x-request-id"]))
                usage = raw.parse().usage
                assert usage is not None and decisions[-1]["prompt_tokens"] == usage.prompt_tokens
        for decision in decisions[1:]:
            assert decision["actual_cached_tokens"] > 300
            assert abs(decision["predicted_cached_tokens"] - decision["actual_cached_tokens"]) <= SLACK_TOKENS, decision


def test_an_engine_that_comes_back_with_the_template_matches_again(options: LlamaCppOptions, tmp_path: Path) -> None:
    """A restart is a new comparison: first it differs, then the engine has the tokenizer's template, and it is used again."""
    differing = dataclasses.replace(options, model_path=other_model(options, tmp_path / "other.gguf"))
    with one_router(differing, tmp_path, options.model_path) as (engine, router):
        assert sources(router)["chat"] == "engine"
        engine.kill()
        again = dataclasses.replace(options, port=engine.port)
        with launch(again, tmp_path / "again.log"):
            until(lambda: sources(router)["chat"] == "tokenizer", "chats are keyed by the tokenizer", 20.0)
            assert sources(router) == dict.fromkeys(SHAPES, "tokenizer")
            assert "its tokens are those of the engines again" in (tmp_path / "router.log").read_text("utf-8")


def test_counts_alone_prove_a_difference(options: LlamaCppOptions, tmp_path: Path) -> None:
    """An engine that is not asked is given away by what it counts; then its prompts are keyed by text, and still found."""
    tokenizer = write_folder(tmp_path / "tokenizer", byte_level(GPT2_LIKE), chat_template=CHATML)
    with one_router(options, tmp_path, tokenizer, kind="openai") as (_, router), sdk(router) as client:
        until(lambda: any(row["model"] == MODEL for row in router.admin("/models")["models"]), "the model is known")
        talk = Talk(client, words("counted-", 120))
        for turn in range(9):
            talk.ask(f"Question {turn}?")
        why = until(lambda: keys_of(router, "chat", "text"), "chats are keyed by their text")
        assert "it counts other tokens in" in why
        talk.ask("And now?")
        talk.ask("And then?")
        first, second = [decision_of(router, request_id) for request_id in talk.request_ids[-2:]]
        assert (first["key_form"], first["unkeyed_reason"]) == ("text", "tokens_differ")
        assert second["actual_cached_tokens"] > 300
        assert abs(second["predicted_cached_tokens"] - second["actual_cached_tokens"]) < 0.3 * second["actual_cached_tokens"]


def keys_of(router: LocalRouter, shape: str, source: str) -> str:
    """Why prompts of the shape are keyed from `source`; empty while they are not."""
    rows = [row for model in router.admin("/models")["models"] for row in model["prompts"]]
    return next((str(row["why"]) for row in rows if row["shape"] == shape and row["keys_from"] == source), "")
