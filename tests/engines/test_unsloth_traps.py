"""Traps of serving adapters that were fine-tuned with Unsloth, one test each.

Wire data made from vLLM's serving_models.py, SGLang's http_server.py, llama.cpp's server.cpp (seen on the wire too),
TGI's server.rs and Unsloth Studio's routes; the last two were not run live.
"""

from typing import Any

import orjson

from engines.adapter import Look
from engines.kinds import adapter_of
from engines.sidecar.portrait import Portrait
from router.core.keys import root
from router.core.types import KeyForm, WorkerReport
from router.settings import EngineSpec, TokenSettings
from router.tokens.direct_keys import root_of
from router.wire.openai_request import ModelCall, read_call
from tests.engines.fake_engine import Connected, FakeEngine, Reply, as_json

BASE = "unsloth/llama-3-8b"
VLLM_LIST: list[dict[str, Any]] = [
    {"id": BASE, "root": BASE, "parent": None},
    {"id": "legal", "root": "/adapters/legal", "parent": "unsloth/llama-3-8b-bnb-4bit"},
]
SGLANG_LIST: list[dict[str, Any]] = [
    {"id": "base", "root": "base"},
    {"id": "legal", "root": "/adapters/legal", "parent": "base"},
]


def models(entries: list[dict[str, Any]]) -> Reply:
    return as_json({"object": "list", "data": entries})


async def report_of(kind: str, *looks: dict[str, Reply], **options: Any) -> list[WorkerReport]:
    """What is reported after each look at an engine with these answers."""
    reports: list[WorkerReport] = []
    async with FakeEngine({}) as engine, Connected(engine) as http:
        adapter, portrait = adapter_of(kind, http), Portrait(EngineSpec(kind, engine.url, **options))
        for routes in looks:
            engine.routes = {"/health": Reply(), **routes}
            await adapter.health()
            portrait.describe(await adapter.describe(fresh=not reports), fresh=not reports)
            portrait.generation.settle()
            reports.append(portrait.report(0.0, {}))
    return reports


async def test_base_is_named_after_the_training_repository() -> None:
    """An adapter's parent is often the 4-bit repository that it was trained on: names need not agree to make it an adapter."""
    (report,) = await report_of("vllm", {"/v1/models": models(VLLM_LIST)})
    assert report.models == (BASE, "legal") and report.adapters is not None
    assert [text.partition("@")[0] for text in report.adapters] == ["legal"]


async def test_new_weights_under_an_old_name() -> None:
    """vLLM may reuse blocks of the old weights: another path, or a name that went and came back, is another version."""
    moved = [VLLM_LIST[0], {**VLLM_LIST[1], "root": "/adapters/legal-2"}]
    looks = [{"/v1/models": models(entries)} for entries in (VLLM_LIST, moved, VLLM_LIST[:1], moved)]
    first, second, gone, back = await report_of("vllm", *looks)
    assert len({first.adapters, second.adapters, gone.adapters, back.adapters}) == 4
    assert first.generation == back.generation, "the base model's blocks stay valid"


async def test_names_may_hold_versions() -> None:
    """Deployments give new weights a new name, such as legal@3: that is the name, and has a version of its own."""
    (report,) = await report_of("vllm", {"/v1/models": models([*VLLM_LIST, {**VLLM_LIST[1], "id": "legal@3"}])})
    assert report.adapters is not None and [text.rpartition("@")[0] for text in report.adapters] == ["legal", "legal@3"]


async def test_sglang_answers_unknown_names_with_the_base() -> None:
    """Its adapter is asked for as base:adapter; the bare name would silently get the base model, so it is no model here."""
    (report,) = await report_of("sglang", {"/v1/models": models(SGLANG_LIST), "/health": Reply()})
    assert report.models == ("base", "base:legal") and report.adapters is not None
    assert report.adapters[0].startswith("base:legal@")
    (plain,) = await report_of("sglang", {"/v1/models": models(SGLANG_LIST[:1])})
    assert (plain.models, plain.adapters) == (("base",), ())


async def test_tgi_answers_unknown_names_with_the_base() -> None:
    """It lists no adapters: those it has are given by hand, and any other name is no model."""
    (report,) = await report_of("tgi", {"/v1/models": models([{"id": "org/m"}])}, adapters=("legal", "tax"))
    assert (report.models, report.adapters) == (("org/m", "legal", "tax"), ("legal", "tax"))


async def test_llama_cpp_scales_without_clearing() -> None:
    """POST /lora-adapters changes what all cached tokens would be, and clears nothing: that is a restart for the cache."""
    adapters: list[dict[str, Any]] = [
        {"id": 0, "path": "/a/legal.gguf", "scale": 1.0},
        {"id": 1, "path": "/a/tax.gguf", "scale": 0.0},
    ]
    scaled = [{**adapters[0], "scale": 0.5}, adapters[1]]
    looks = [
        {"/v1/models": models([{"id": "m"}]), "/lora-adapters": as_json(entries)} for entries in (adapters, adapters, scaled)
    ]
    first, same, other = await report_of("llama.cpp", *looks)
    assert first.generation == same.generation != other.generation
    assert first.models == ("m", "legal") and first.adapters is not None and first.adapters[0].startswith("legal@")
    assert first.loaded_adapters == ("legal",)


async def test_llama_cpp_with_several_adapters_applied() -> None:
    """It ignores `model`, so a name stands for an adapter only where exactly one is applied to all requests."""
    for scales in ((1.0, 1.0), (0.0, 0.0)):
        entries = [{"id": at, "path": f"/a/{at}.gguf", "scale": scale} for at, scale in enumerate(scales)]
        (report,) = await report_of("llama.cpp", {"/v1/models": models([{"id": "m"}]), "/lora-adapters": as_json(entries)})
        assert (report.models, report.adapters) == (("m",), ())


async def test_studio_lists_what_is_only_downloaded() -> None:
    """A request for such a model would unload the one in use: it is no model of this worker."""
    entries = [{"id": "a", "loaded": True}, {"id": "b", "loaded": False}]
    (report,) = await report_of("openai", {"/v1/models": models(entries)})
    assert report.models == ("a",)


def call(path: str = "/v1/completions", **fields: Any) -> ModelCall:
    return read_call(path, orjson.dumps({"prompt": "hi", "inputs": "hi", **fields}), None, TokenSettings())


def test_prompts_to_different_adapters_never_match() -> None:
    """However an engine is told of the adapter, it is in the root of the chain; so is the base without one."""
    calls = [
        call(model="base"),
        call(model="legal"),
        call(model="base:legal"),
        call(model="base", lora_path="legal"),
        call(model="base", lora=[{"id": 0, "scale": 1.0}]),
        call(model="base", lora=[{"id": 0, "scale": 0.5}]),
        call("/generate", model="base", parameters={"adapter_id": "legal"}),
    ]
    roots = {root_of(one, KeyForm.TOKENS) for one in calls}
    assert len(roots) == len(calls)
    assert root("base", "legal@1", None, KeyForm.TOKENS) != root("base", "legal@2", None, KeyForm.TOKENS)


async def test_adapters_stay_unknown_without_a_list() -> None:
    """An engine that lists nothing has neither models nor adapters that are known."""
    async with FakeEngine({"/v1/models": Reply(status=401)}) as engine, Connected(engine) as http:
        look: Look = await adapter_of("vllm", http).describe(fresh=True)
        portrait = Portrait(EngineSpec("vllm", engine.url, adapters=("legal",)))
        portrait.describe(look, fresh=True)
        assert (portrait.report(0.0, {}).models, portrait.report(0.0, {}).adapters) == (None, None)
