"""Engines' own generate routes: what their paths name, and where their bodies may hold the prompt. Unknown is None."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class NativeRoute(NamedTuple):
    """`prompt_fields`: the first that a body has is its prompt. `streams` None: the body's `stream` says."""

    prompt_fields: tuple[str, ...]
    streams: bool | None = None
    model: str | None = None  # as named by the path


GENERATE_FIELDS = ("inputs", "text", "input_ids", "prompt")  # TGI; SGLang; SGLang; MII's plain server
ROUTES: Mapping[str, NativeRoute] = {
    "/generate": NativeRoute(GENERATE_FIELDS),
    "/generate_stream": NativeRoute(("inputs",), streams=True),  # TGI
    "/completion": NativeRoute(("prompt",)),  # llama.cpp
}
TRITON_FIELDS = ("text_input", "input_ids")
# Model names as Triton and MII take them in a path; a leading dot would be another path.
TRITON_PATH = re.compile(r"/v2/models/([A-Za-z0-9_][\w.\-]*)(?:/versions/[0-9]+)?/(generate|generate_stream|infer)", re.ASCII)
MII_PATH = re.compile(r"/mii/([A-Za-z0-9_][\w.\-]*)", re.ASCII)


def native_route(path: str) -> NativeRoute | None:
    """`path` without a query; None for any path that is not one of these."""
    route = ROUTES.get(path)
    if route is not None:
        return route
    matched = TRITON_PATH.fullmatch(path)
    if matched is not None:
        return NativeRoute(TRITON_FIELDS, matched[2] == "generate_stream", matched[1])
    matched = MII_PATH.fullmatch(path)
    return None if matched is None else NativeRoute(("prompts",), False, matched[1])


def native_prompt(route: NativeRoute, fields: Mapping[str, Any]) -> Any:
    """The value that holds the prompt, not checked."""
    for name in route.prompt_fields:
        if fields.get(name) is not None:
            return fields[name]
    return None


def native_salt(fields: Mapping[str, Any]) -> Any:
    """What keeps prompts of two tenants apart: `cache_salt`, and SGLang's older `extra_key`."""
    salt = fields.get("cache_salt")
    return fields.get("extra_key") if salt is None else salt


def native_adapter(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The mapping that may name an adapter: TGI's stands among its `parameters`."""
    parameters = fields.get("parameters")
    return parameters if isinstance(parameters, dict) and "adapter_id" in parameters else fields
