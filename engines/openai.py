"""Any OpenAI-compatible server: /v1/models is all there is to see. Also how every kind reads its model list."""

from typing import Any

from engines.adapter import MAX_MODELS, MAX_NAME_CHARACTERS, Health, Look, mapping, printable, rows
from engines.fetch import Answer, BadAnswer, EngineHttp
from router.core.types import Lifecycle


class OpenAi:
    """Ready when /v1/models answers; a server without that route is asked for /health. No load numbers."""

    def __init__(self, http: EngineHttp) -> None:
        self._http = http
        self._listed: Answer | None = None

    async def health(self) -> Health:
        self._listed = await self._http.get("/v1/models")
        if not self._listed.unknown_route:
            return judge(self._listed)
        return judge(await self._http.get("/health"))

    async def describe(self, *, fresh: bool) -> Look:
        return read_models(self._listed if self._listed is not None else await self._http.get("/v1/models"))

    async def scrape(self) -> Look | None:
        return None


def judge(answer: Answer, *, busy: Lifecycle = Lifecycle.LOADING) -> Health:
    """What a health route's status means; `busy` is what 503 stands for in this kind.

    A refused key or a rate limit still comes from a living server: requests bring keys of their own.
    """
    if answer.ok:
        return Health(Lifecycle.READY)
    if answer.refuses_key or answer.status == 429:
        return Health(Lifecycle.READY, f"{answer.path} answered {answer.status}")
    words = error_text(answer)
    detail = f"{answer.path} answered {answer.status}" + (f": {words}" if words else "")
    return Health(busy if answer.status == 503 else Lifecycle.DOWN, detail)


async def health_by_route(http: EngineHttp, *, busy: Lifecycle = Lifecycle.LOADING) -> Health:
    """/health, or /v1/models where a front end before the engine passes /v1 only: a missing route is not an illness."""
    answer = await http.get("/health")
    if answer.unknown_route or answer.refuses_key:
        answer = await http.get("/v1/models")
    return judge(answer, busy=busy)


async def list_models(http: EngineHttp) -> Look:
    """For the kinds that always have a model list."""
    answer = await http.get("/v1/models")
    look = read_models(answer)
    look.unlisted = answer.unknown_route
    return look


def read_models(answer: Answer) -> Look:
    """The ids (and llama.cpp's aliases) of a model list. Where the answer is none, models stay unknown and detail says why.

    A card with a parent is a LoRA adapter; the parent's name tells nothing, for it is often that of the repository that the
    adapter was trained on. Models that are only downloaded (`"loaded": false`, Unsloth Studio) would push the loaded one out.
    """
    if not answer.ok:
        return Look(detail=f"models unknown: {answer.path} answered {answer.status}")
    data = json_object(answer).get("data")
    if not isinstance(data, list):
        return Look(detail=f"models unknown: {answer.path} has no list")
    names: dict[str, None] = {}
    adapters: dict[str, str] = {}
    for entry in rows(data)[:MAX_MODELS]:
        if entry.get("loaded") is False:
            continue
        aliases = entry.get("aliases")
        for name in [entry.get("id"), *(aliases[:MAX_MODELS] if isinstance(aliases, list) else ())]:
            if isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARACTERS:
                names[name] = None
                if isinstance(entry.get("parent"), str) and entry["parent"]:
                    root = entry.get("root")
                    adapters[name] = root if isinstance(root, str) else ""
    return Look(models=tuple(names)[:MAX_MODELS], adapters=adapters, detail="" if names else "lists no model")


def json_object(answer: Answer) -> dict[str, Any]:
    """The body where it may be anything: an empty object when it is not a JSON object."""
    try:
        return mapping(answer.json())
    except BadAnswer:
        return {}


def error_text(answer: Answer) -> str:
    """The message of an error body in any of the known shapes (nested, flat, a plain string), or nothing."""
    body = json_object(answer)
    error: Any = body.get("error", body.get("message"))
    words = error.get("message") if isinstance(error, dict) else error
    return printable(words) if isinstance(words, str) else ""
