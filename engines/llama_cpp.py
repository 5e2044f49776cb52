"""llama.cpp's llama-server: /health, /v1/models, /props, and /metrics or (where that is off) /slots.

Capacity is slots × context of a slot or, with unified KV (`-np -1`), one context for all. The RAM cache (`--cache-ram`), which
no route shows, comes on top: `ram_tokens=` tells the router how much it holds, else misses do.
A server applies its adapters (`--lora`) to all requests that do not say otherwise, so one that applies exactly one serves
its name too, whatever `model` a request has. Caches know nothing of adapters: a changed scale is as a restart.
"""

import re
from contextlib import suppress
from pathlib import PurePath
from typing import Any

from engines.adapter import MAX_MODELS, Health, Look, mapping, ratio, rows, whole
from engines.fetch import Answer, BadAnswer, EngineError, EngineHttp
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
SLOTS_EVERY = 2  # scrapes, while it is not known whether slots share a cache
TOKENS_PER_BLOCK = 1  # reuse is the longest common prefix, token by token


class LlamaCpp:
    """/health and /props answer at once; /metrics and /slots wait for the batch in progress: a busy engine may not scrape."""

    def __init__(self, http: EngineHttp) -> None:
        self._http = http
        self._has_metrics = True  # until it says 501
        self._has_adapters = True  # until it says that it has no such route
        self._unified: bool | None = None  # whether all slots share one KV cache; shows once two were used
        self._scrapes = 0
        self._sleeping = False
        self._sleeps = 0

    async def health(self) -> Health:
        return await health_by_route(self._http)

    async def describe(self, *, fresh: bool) -> Look:
        look = await list_models(self._http)
        look.block_tokens = TOKENS_PER_BLOCK
        if fresh:
            self._has_metrics = True
            self._has_adapters = True
            self._unified = None
        add_props(look, await self._props(), unified=self._unified is True)
        if self._has_adapters and not self._sleeping:
            await self._add_adapters(look)
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
                look = read_page(answer)
                if answer.ok and self._unified is None and self._scrapes % SLOTS_EVERY == 0:
                    await self._look_at_slots()
                self._scrapes += 1
                return self._with_unified(look)
            self._has_metrics = False
        answer = await self._http.get("/slots")
        self._learn_unified(answer)
        return self._with_unified(read_slots(answer))

    def _with_unified(self, look: Look) -> Look:
        if self._unified is not None:
            look.extra["unified_kv"] = float(self._unified)
        return look

    async def _look_at_slots(self) -> None:
        with suppress(EngineError):
            self._learn_unified(await self._http.get("/slots"))

    def _learn_unified(self, answer: Answer) -> None:
        if answer.ok:
            self._unified = shows_unified(rows(answer.json())) if self._unified is None else self._unified

    async def _add_adapters(self, look: Look) -> None:
        """Asking for a changed scale is how a change shows: what is cached then was made by other weights, and stays there."""
        answer = await self._http.get("/lora-adapters")
        self._has_adapters = not answer.unknown_route
        if not answer.ok:
            return
        applied: list[str] = []
        for entry in rows(answer.json())[:MAX_MODELS]:
            path, scale = entry.get("path"), entry.get("scale")
            if isinstance(path, str) and isinstance(scale, int | float) and scale != 0:
                applied.append(path)
                look.hints[f"adapter {path}"] = str(scale)
        look.hints["adapters"] = " ".join(applied)
        if len(applied) == 1 and look.models is not None:
            name = PurePath(applied[0]).stem
            look.adapters = {name: applied[0]}
            look.models = tuple(dict.fromkeys((*look.models, name)))
            look.loaded_adapters = (name,)

    async def _props(self) -> dict[str, Any]:
        """Empty where the route is missing, refused or no JSON object."""
        answer = await self._http.get("/props")
        props = json_object(answer) if answer.ok else {}
        was_sleeping, self._sleeping = self._sleeping, props.get("is_sleeping") is True
        self._sleeps += self._sleeping and not was_sleeping
        return props


def add_props(look: Look, props: dict[str, Any], *, unified: bool = False) -> None:
    slots = whole(props.get("total_slots"))
    context_tokens = whole(mapping(props.get("default_generation_settings")).get("n_ctx"))
    if slots and context_tokens:
        look.capacity_tokens = context_tokens if unified else slots * context_tokens
        look.extra["slots"] = float(slots)
    marker = props.get("media_marker")
    if isinstance(marker, str):
        drawn = RANDOM_MARKER.fullmatch(marker)
        if drawn is not None:
            look.markers["media_marker"] = drawn[1]
        else:
            look.hints["media_marker"] = marker[:200]


def shows_unified(slots: list[dict[str, Any]]) -> bool | None:
    """With one KV cache for all slots a request that starts clears the idle ones; else they keep what they held.

    None until a slot that was used is idle while another was used after it.
    """
    used = [slot for slot in slots if whole(slot.get("id_task")) is not None and whole(slot.get("n_prompt_tokens")) is not None]
    latest = max((slot["id_task"] for slot in used), default=0)
    earlier = [slot for slot in used if slot["id_task"] < latest and slot.get("is_processing") is False]
    return all(slot["n_prompt_tokens"] == 0 for slot in earlier) if earlier else None


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
