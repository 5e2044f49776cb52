"""Which paths of the data port are passed on, and the label each has in metrics and logs.

An allow-list: an engine's own admin routes (adapters, sleep, cache reset, slots) are never reachable through the
router (design: never). Paths from engines/*.md §2.
"""

import re

from router.wire.native_request import native_route

FORWARDED = frozenset(
    (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/v1/rerank",
        "/v2/rerank",
        "/v1/score",
        "/v1/classify",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/tokenize",
        "/v1/detokenize",
        "/chat/completions",
        "/completions",
        "/embeddings",
        "/completion",
        "/embedding",
        "/infill",
        "/generate",
        "/generate_stream",
        "/rerank",
        "/score",
        "/classify",
        "/pooling",
        "/tokenize",
        "/detokenize",
        "/chat_tokenize",
        "/apply-template",
    )
)
HEALTH = "/health"
MODELS = "/v1/models"
KSERVE_LIVE, KSERVE_READY = "/v2/health/live", "/v2/health/ready"
KSERVE_MODELS = "/v2/models"  # label of the generate and infer routes of all models
KSERVE_MODEL_READY = re.compile(KSERVE_MODELS + r"/([A-Za-z0-9_][\w.\-]*)/ready", re.ASCII)
MII = "/mii"
OTHER = "other"  # label of everything that is not passed on


def route_of(path: str) -> str | None:
    """The label of a path that is answered or passed on; None for any other. Exact match: no dots, no escapes."""
    if path in FORWARDED or path in (HEALTH, MODELS):
        return path
    if path.startswith(MODELS + "/"):
        return MODELS
    if path in (KSERVE_LIVE, KSERVE_READY):
        return HEALTH
    if KSERVE_MODEL_READY.fullmatch(path):
        return MODELS
    if native_route(path) is not None:
        return MII if path.startswith(MII) else KSERVE_MODELS
    return None
