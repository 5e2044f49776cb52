"""llama.cpp's llama-server: /health, /v1/models, /props, and /metrics or (where that is off) /slots.

Capacity is slots × context of a slot. That is exact for split slots; with unified KV (`-np -1`) the slots share one
context and it counts too much, and the RAM cache (`--cache-ram`), which no route shows, comes on top. The engine
reports the cached tokens of every answer, so the router's model of it corrects itself; `capacity_tokens=` overrides.
"""

import re
from typing import Any

from engines.adapter import Health, Look, mapping, ratio, rows, whole
from engines.fetch import Answer, BadAnswer, EngineHttp
from engines.metric_page import MetricPage, counters
from engines.openai import health_by_route, json_object, list_models
from router.wire.metrics_text import mean, total

METRICS = MetricPage(
    {
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        "KV use": ("llamacpp:kv_cache_usage_ratio",),  # older builds
        "prompt tokens": ("llamacpp:prompt_tokens_total",),
        "generated tokens": ("llamacpp:tokens_predicted_total",),
        "decode calls": ("llamacpp:n_decode_total",),
    }
)
START_HEADER = "Process-Start-Time-Unix"
RANDOM_MARKER = re.compile(
    r"<__media_([A-Za-z0-9]{16,64})__>"
)  # drawn once per process; a fixed one from the environment differs
TOKENS_PER_BLOCK = 1  # reuse is the longest common prefix, token by token


class LlamaCpp:
    """/health and /props answer at once; /metrics and /slots wait for the batch in progress: a busy engine may not scrape."""

    def __init__(self, http: EngineHttp) -> None:
        self._http = http
        self._has_metrics = True  # until it says 501
        self._sleeping = False
        self._sleeps = 0

    async def health(self) -> Health:
        return await health_by_route(self._http)

    async def describe(self, *, fresh: bool) -> Look:
        look = await list_models(self._http)
        look.block_tokens = TOKENS_PER_BLOCK
        if fresh:
            self._has_metrics = True
        add_props(look, await self._props())
        look.hints["sleeps"] = str(self._sleeps)  # asleep, it drops its caches with the model
        return look

    async def scrape(self) -> Look:
        """A sleeping engine (`--sleep-idle-seconds`) runs nothing, and all but /props would wake it."""
        if self._sleeping:
            await self._props()
        if self._sleeping:
            return Look(running=0, waiting=0)
        if self._has_metrics:
            answer = await self._http.page()
            if not answer.unknown_route:
                return read_page(answer)
            self._has_metrics = False
        return read_slots(await self._http.get("/slots"))

    async def _props(self) -> dict[str, Any]:
        """Empty where the route is missing, refused or no JSON object."""
        answer = await self._http.get("/props")
        props = json_object(answer) if answer.ok else {}
        was_sleeping, self._sleeping = self._sleeping, props.get("is_sleeping") is True
        self._sleeps += self._sleeping and not was_sleeping
        return props


def add_props(look: Look, props: dict[str, Any]) -> None:
    slots = whole(props.get("total_slots"))
    context_tokens = whole(mapping(props.get("default_generation_settings")).get("n_ctx"))
    if slots and context_tokens:
        look.capacity_tokens = slots * context_tokens
        look.extra["slots"] = float(slots)
    marker = props.get("media_marker")
    if isinstance(marker, str):
        drawn = RANDOM_MARKER.fullmatch(marker)
        if drawn is not None:
            look.markers["media_marker"] = drawn[1]
        else:
            look.hints["media_marker"] = marker[:200]


def read_page(answer: Answer) -> Look:
    samples = METRICS.read(answer)
    if samples is None:
        return Look()
    start = answer.headers.get(START_HEADER.lower())
    return Look(
        running=whole(total(samples, "running")),
        waiting=whole(total(samples, "waiting")),
        kv_used_ratio=ratio(mean(samples, "KV use")),
        markers={} if start is None else {START_HEADER: start},
        counters=counters(samples, "prompt tokens", "generated tokens", "decode calls"),
    )


def read_slots(answer: Answer) -> Look:
    """Running requests only: what is deferred shows in /metrics alone, so waiting stays unknown. Hidden slots: all unknown."""
    if answer.unknown_route or answer.refuses_key:
        return Look()
    if not answer.ok:
        raise BadAnswer(f"{answer.path} answered {answer.status}")
    states = [slot.get("is_processing") for slot in rows(answer.json())]
    if not states or not all(isinstance(state, bool) for state in states):
        raise BadAnswer(f"{answer.path} does not list slots")
    return Look(running=states.count(True))
