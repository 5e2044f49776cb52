"""router.wire.native_request: which of engines' own paths are known, and where their prompts are."""

from typing import Any

import pytest

from router.wire.native_request import NativeRoute, native_adapter, native_prompt, native_route, native_salt


@pytest.mark.parametrize(
    ("path", "model", "streams"),
    [
        ("/generate", None, None),
        ("/generate_stream", None, True),
        ("/completion", None, None),
        ("/v2/models/llm/generate", "llm", False),
        ("/v2/models/llm/generate_stream", "llm", True),
        ("/v2/models/llm/versions/3/generate_stream", "llm", True),
        ("/v2/models/llm-1.5_b/infer", "llm-1.5_b", False),
        ("/mii/my-deployment", "my-deployment", False),
    ],
)
def test_known_routes(path: str, model: str | None, streams: bool | None) -> None:
    """The path tells the model and whether the answer streams, where it does."""
    route = native_route(path)
    assert route is not None and (route.model, route.streams) == (model, streams)


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/llm/load",
        "/v2/repository/models/llm/load",
        "/v2/models/../generate",
        "/v2/models/a/../b/generate",
        "/v2/models/a%2fb/generate",
        "/v2/models//generate",
        "/v2/models/ä/generate",
        "/v2/models/llm/versions/x/generate",
        "/v2/models/llm/generate/",
        "/v2/models/llm/generate\n",
        "/mii/",
        "/mii/a/b",
        "/mii/..",
        "/terminate",
        "/v1/chat/completions",
    ],
)
def test_other_paths(path: str) -> None:
    """Admin routes and any other spelling are not among them."""
    assert native_route(path) is None


@pytest.mark.parametrize(
    ("path", "fields", "prompt"),
    [
        ("/generate", {"inputs": "a", "parameters": {}}, "a"),
        ("/generate", {"text": "b"}, "b"),
        ("/generate", {"text": None, "input_ids": [1]}, [1]),
        ("/generate", {"prompt": "c"}, "c"),
        ("/generate", {"input_embeds": [[0.5]]}, None),
        ("/v2/models/m/generate", {"text_input": "d"}, "d"),
        ("/v2/models/m/generate", {"input_ids": [1, 2]}, [1, 2]),
        ("/v2/models/m/infer", {"inputs": [{"name": "text_input"}]}, None),
        ("/mii/d", {"prompts": ["e", "f"]}, ["e", "f"]),
        ("/completion", {"prompt": [1, 2]}, [1, 2]),
    ],
)
def test_where_prompts_stand(path: str, fields: dict[str, Any], prompt: Any) -> None:
    """The first of a route's fields that is given is the prompt."""
    route = native_route(path)
    assert route is not None and native_prompt(route, fields) == prompt


def test_what_keeps_prompts_apart() -> None:
    """The salt is `cache_salt`, else SGLang's `extra_key`; TGI names an adapter among its parameters."""
    assert native_salt({"cache_salt": "a", "extra_key": "b"}) == "a"
    assert native_salt({"extra_key": "b"}) == "b" and native_salt({}) is None
    parameters = {"adapter_id": "legal", "max_new_tokens": 3}
    assert native_adapter({"parameters": parameters}) is parameters
    for fields in ({"lora_path": "legal", "parameters": {}}, {"parameters": 5}, {}):
        assert native_adapter(fields) is fields


def test_default_route_streams_as_its_body_says() -> None:
    """None means that the body's `stream` tells."""
    assert NativeRoute(("x",)) == NativeRoute(("x",), None, None)
