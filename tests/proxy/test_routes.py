"""The data port passes on inference paths and nothing else."""

import pytest

from router.proxy.routes import route_of


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/models", "/v1/models"),
        ("/v1/models/a/b", "/v1/models"),
        ("/health", "/health"),
        ("/v2/health/live", "/health"),
        ("/v2/health/ready", "/health"),
        ("/v2/models/m/ready", "/v1/models"),
        ("/v2/models/m/generate", "/v2/models"),
        ("/v2/models/m/versions/1/generate_stream", "/v2/models"),
        ("/mii/d", "/mii"),
        ("/chat_tokenize", "/chat_tokenize"),
        ("/v2/models/m", None),
        ("/v2/models/m/load", None),
        ("/v2/models/../ready", None),
        ("/v2/models/../generate", None),
        ("/v2/repository/index", None),
        ("/v2/repository/models/m/unload", None),
        ("/terminate", None),
        ("/mii/d/../../terminate", None),
        ("/v1/load_lora_adapter", None),
        ("/v1/unload_lora_adapter", None),
        ("/reset_prefix_cache", None),
        ("/slots", None),
        ("/metrics", None),
        ("/sleep", None),
        ("/v1/chat/completions/", None),
        ("/v1/chat/../../slots", None),
        ("/v1//chat/completions", None),
        ("/%2e%2e/slots", None),
        ("/V1/chat/completions", None),
        ("", None),
    ],
)
def test_allow_list(path: str, route: str | None) -> None:
    """Engines' admin routes are never reachable, in no spelling (design: never)."""
    assert route_of(path) == route
