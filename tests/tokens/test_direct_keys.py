"""Keys without a tokenizer: token ids, canonical text, raw bytes, or none with a reason."""

from array import array

import orjson
import pytest

from engines.sidecar.kv.cache import EngineCache
from engines.sidecar.kv.events import BlockStored
from engines.sidecar.kv.follower import adapter_texts, base_model
from router.core.cache_delta import Stored
from router.core.fleet import Fleet
from router.core.keys import chain, root, text_chain, tokens_le
from router.core.types import KeyForm, Lifecycle, PromptKeys, WorkerId, WorkerReport
from router.settings import EngineSpec, FleetSettings, TokenSettings
from router.tokens import direct_keys as module
from router.tokens.byte_memo import ByteMemo
from router.tokens.direct_keys import RAW_BYTES, in_namespace
from router.tokens.memo import PrefixMemo
from router.wire.openai_request import ModelCall, read_call

LIMITS = TokenSettings()


def direct_keys(call: ModelCall, reason: str | None = None) -> PromptKeys:
    return module.direct_keys(call, ByteMemo(PrefixMemo(2**20), 1), reason)


def read(path: str, fields: object, limits: TokenSettings = LIMITS) -> ModelCall:
    return read_call(path, orjson.dumps(fields), None, limits)


def test_token_ids_are_keyed_exactly() -> None:
    """The first prompt's chain, the tokens of all prompts; whole blocks only."""
    keys = direct_keys(read("/v1/completions", {"model": "m", "prompt": [list(range(40)), [1, 2]]}))
    assert keys.keys == chain(tokens_le(range(40)), root("m", None, None, KeyForm.TOKENS))
    assert (len(keys.keys), keys.prompt_tokens, keys.form, keys.complete, keys.exact_tokens) == (2, 42, "tokens", True, True)


def test_text_is_keyed_by_its_bytes() -> None:
    """A text prompt's own UTF-8, four blocks to 256 bytes, about four bytes a token, over all prompts."""
    keys = direct_keys(read("/v1/completions", {"model": "m", "prompt": ["ä" * 200, "b" * 100]}))
    assert keys.keys == text_chain(("ä" * 200).encode(), root("m", None, None, KeyForm.TEXT))
    assert (keys.prompt_tokens, keys.form, keys.complete, keys.exact_tokens) == (126, "text", True, False)


@pytest.mark.parametrize("field", ["model", "cache_salt", "lora_path"])
def test_namespaces(field: str) -> None:
    """Another model, salt or adapter: no key in common."""
    one, other = (
        direct_keys(read("/v1/completions", {"model": "m", "prompt": "x" * 64, field: value})).keys for value in ("a", "b")
    )
    assert set(one).isdisjoint(other)


@pytest.mark.parametrize("model", ["m", "gpt", "legal", "tax"])
def test_keys_of_requests_are_those_of_events(model: str) -> None:
    """Under any name of the model, and under an adapter's with its version: what an engine says it cached is found again."""
    told = WorkerReport(
        WorkerId("a"), "vllm", "http://a", "g", Lifecycle.READY, 0.0, ("m", "gpt", "legal", "tax"), adapters=("legal@v1", "tax")
    )
    fleet = Fleet(FleetSettings())
    spec = EngineSpec("vllm", "http://a")
    fleet.add(spec, 0.0)
    fleet.apply(told, 0.0)
    base = base_model(spec, told)
    assert base is not None
    engine = EngineCache(base, 100, 100)
    engine.adapters = adapter_texts(told)
    tokens = range(32)
    adapter = model if model in engine.adapters else None
    engine.apply(BlockStored([1, 2], None, tokens_le(tokens), 16, adapter=adapter, keyed=2))
    call = read("/v1/completions", {"model": model, "prompt": list(tokens)})
    (stored,) = engine.take_changes()
    assert isinstance(stored, Stored) and stored.keys == direct_keys(in_namespace(call, fleet.namespaces)).keys


def test_turns_share_their_keys() -> None:
    """A chat's next turn starts with the keys of this one; other tools or template arguments share none."""
    chat = [{"role": "user", "content": "x" * 640}]
    path = "/v1/chat/completions"
    first = direct_keys(read(path, {"messages": chat})).keys
    longer = [*chat, {"role": "assistant", "content": "y" * 640}]
    assert direct_keys(read(path, {"messages": longer})).keys[: len(first)] == first
    for more in (
        {"tools": [{"a": 1}]},
        {"documents": [{"a": 1}]},
        {"chat_template_kwargs": {"a": 1}},
        {"reasoning_effort": "low"},
    ):
        assert set(direct_keys(read(path, {"messages": chat, **more})).keys).isdisjoint(first)


def test_large_bodies_are_keyed_by_their_first_bytes() -> None:
    """Raw keys stop at RAW_BYTES: their tokens are not known, and hashing more would hold the loop up."""
    body = {"model": "m", "prompt": "x" * (2 * RAW_BYTES)}
    keys = direct_keys(read("/v1/completions", body, TokenSettings(max_keyed_body_bytes=RAW_BYTES + 4096)))
    assert (len(keys.keys), keys.form, keys.prompt_tokens, keys.exact_tokens) == (RAW_BYTES // 64, "raw", RAW_BYTES // 4, False)


@pytest.mark.parametrize(
    ("path", "fields", "reason"),
    [("/v1/rerank", {"model": "m"}, "path"), ("/v1/completions", {"prompt": ""}, "empty_prompt"), ("/v1/x", [], "not_json")],
)
def test_what_cannot_be_keyed_says_why(path: str, fields: object, reason: str) -> None:
    """No prompt, no keys: form none, and the reason that is counted."""
    keys = direct_keys(read(path, fields))
    assert (keys.keys, keys.form, keys.complete, keys.unkeyed_reason) == (array("Q"), "none", True, reason)


def test_a_reason_is_kept_with_text_keys() -> None:
    """Text keys that stand in for token keys say why."""
    assert direct_keys(read("/v1/completions", {"prompt": "x"}), "not_utf8").unkeyed_reason == "not_utf8"
    assert direct_keys(read("/v1/completions", {"prompt": "x"})).unkeyed_reason is None
