"""DeepSpeed-MII: its OpenAI and plain servers and its REST gateway, and the queue that engines.deepspeed_backend shows.

MII's own health routes always say ok. Where the back end has a page (`metrics=URL`) that page must answer too; elsewhere a
request for one token now and then tells whether anything is generated at all.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson

from engines.adapter import Health, Look, whole
from engines.fetch import Answer, EngineHttp, NoAnswer
from engines.metric_page import START, STARTED, MetricPage, counters, start_marker
from engines.openai import judge, list_models
from router.core.types import Lifecycle
from router.wire.metrics_text import total

METRICS = MetricPage(
    {
        "running": ("deepspeed_backend_requests_running",),
        "waiting": ("deepspeed_backend_requests_waiting",),
        "queue limit": ("deepspeed_backend_queue_limit",),
        STARTED: (START,),
        "requests": ("deepspeed_backend_requests_total",),
        "refused requests": ("deepspeed_backend_requests_refused_total",),
        "prompt tokens": ("deepspeed_backend_prompt_tokens_total",),
        "generated tokens": ("deepspeed_backend_generated_tokens_total",),
    }
)
EXTRA = {"queue_limit": "queue limit", "refused_requests": "refused requests"}
HEALTH_ROUTES = ("/health", "/healthz")  # of the HTTP servers, of the REST gateway
TRIAL_EVERY_S = 30.0
TRIAL_DEADLINE_S = 1.0  # a busy engine is slower than that, and not ill


class DeepSpeed:
    """A trial without an answer in time proves nothing; one that fails means down until one succeeds. `clock` is monotonic."""

    def __init__(self, http: EngineHttp, clock: Callable[[], float] = time.monotonic) -> None:
        self._http = http
        self._clock = clock
        self._trial_at_s = float("-inf")
        self._verdict = Health(Lifecycle.READY)

    async def health(self) -> Health:
        answer = await self._http.get(HEALTH_ROUTES[0])
        if answer.unknown_route:
            answer = await self._http.get(HEALTH_ROUTES[1])
        if answer.unknown_route:
            answer = await self._http.get("/v1/models")
        health = judge(answer)
        if health.lifecycle is not Lifecycle.READY:
            return health
        if self._http.metrics_url is not None:
            return judge(await self._http.page())
        await self._try_a_token()
        return self._verdict

    async def describe(self, *, fresh: bool) -> Look:
        return await list_models(self._http)

    async def scrape(self) -> Look | None:
        """None without `metrics=`: MII shows no load."""
        if self._http.metrics_url is None:
            return None
        return read_page(await self._http.page())

    async def _try_a_token(self) -> None:
        """MII generates at /v1/completions or, its plain server, at /generate; its REST gateway is not tried."""
        now_s = self._clock()
        if self._verdict.lifecycle is Lifecycle.READY and now_s < self._trial_at_s + TRIAL_EVERY_S:
            return
        self._trial_at_s = now_s
        try:
            async with asyncio.timeout(TRIAL_DEADLINE_S):
                models = (await list_models(self._http)).models
                question: dict[str, Any] = {"prompt": "a", "max_tokens": 1}
                if models:
                    trial = await self._http.post("/v1/completions", orjson.dumps({"model": models[0], **question}))
                else:
                    trial = await self._http.post("/generate", orjson.dumps(question))
        except (TimeoutError, NoAnswer):
            return
        if trial.status >= 500:
            self._verdict = Health(Lifecycle.DOWN, f"a request for one token was answered {trial.status}")
        else:
            self._verdict = Health(Lifecycle.READY)


def read_page(answer: Answer) -> Look:
    samples = METRICS.read(answer)
    if samples is None:
        return Look()
    return Look(
        running=whole(total(samples, "running")),
        waiting=whole(total(samples, "waiting")),
        markers=start_marker(samples),
        counters=counters(samples, "requests", "prompt tokens", "generated tokens"),
        extra={key: value for key, meaning in EXTRA.items() if (value := total(samples, meaning)) is not None},
    )
