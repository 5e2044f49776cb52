"""Where an engine publishes its KV events: as the settings say, or as the engine itself tells."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from engines.adapter import mapping, rows, whole
from engines.fetch import Answer, EngineError, EngineHttp
from engines.openai import json_object
from router.settings import EngineSpec

WILDCARDS = ("*", "0.0.0.0", "[::]", "::", "")
VLLM_SOURCES = "/kv_event_sources"
SGLANG_INFO = ("/server_info", "/get_server_info")
TCP = re.compile(r"tcp://(.*):(\d+)")


class NoSource(Exception):
    """There is no event stream to follow; the text tells people why."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Addresses of one data-parallel rank. `binds`: the engine connects to us. A topic counts by its start, "" is any."""

    events: str
    replay: str | None = None
    topic: str = ""
    binds: bool = False


def given_source(spec: EngineSpec) -> EventSource | None:
    """What `events=ENDPOINT[#TOPIC]` and `replay=` say, None without. Each rank's ports are the base ports + rank.

    vLLM connects to an address without a wildcard; so where it is told to connect here, `events=` has one.
    """
    if spec.events is None:
        return None
    events, _, topic = spec.events.partition("#")
    events = shifted(events, spec.rank)
    matched = TCP.fullmatch(events)
    replay = None if spec.replay is None else shifted(spec.replay, spec.rank)
    return EventSource(events, replay, topic, binds=matched is not None and matched[1] in WILDCARDS)


async def find_source(spec: EngineSpec, http: EngineHttp) -> EventSource:
    """The source that is given, else the one that the engine tells of. Raises NoSource."""
    given = given_source(spec)
    if given is not None:
        return given
    host = urlsplit(spec.url).hostname or ""
    host = f"[{host}]" if ":" in host else host
    try:
        if spec.kind == "vllm":
            return read_vllm(await http.get(VLLM_SOURCES), host, spec.rank)
        if spec.kind == "sglang":
            return read_sglang(await sglang_info(http), host, spec.rank)
    except EngineError as error:
        raise NoSource(f"the engine did not say where its KV events are: {error}") from None
    raise NoSource("")


def read_vllm(answer: Answer, host: str, rank: int | None) -> EventSource:
    """`/kv_event_sources`: rank → config in 0.32, a list of configs with their rank in others, also within `sources`.

    Its addresses are those of the ranks, ports that the system chose included. Raises NoSource."""
    if answer.unknown_route:
        raise NoSource("this vLLM does not tell where its KV events are: name their endpoint with events=")
    if not answer.ok:
        raise NoSource(f"{VLLM_SOURCES} answered {answer.status}")
    value: Any = answer.json()
    if isinstance(value, dict) and isinstance(value.get("sources"), list):
        value = value["sources"]
    by_rank: dict[int, Mapping[str, Any]] = {}
    if isinstance(value, dict):
        by_rank = {int(key): config for key, config in value.items() if key.isdecimal() and isinstance(config, dict)}
    for config in rows(value):
        by_rank[whole(config.get("data_parallel_rank")) or 0] = config
    config = mapping(chosen(by_rank, rank))
    endpoint, replay, topic = (config.get(name) for name in ("endpoint", "replay_endpoint", "topic"))
    if not isinstance(endpoint, str) or not endpoint:
        raise NoSource("KV events are off: start vLLM with --kv-events-config")
    return EventSource(
        with_host(endpoint, host),
        with_host(replay, host) if isinstance(replay, str) and replay else None,
        topic if isinstance(topic, str) else "",
    )


def chosen(by_rank: Mapping[int, Mapping[str, Any]], rank: int | None) -> Mapping[str, Any] | None:
    """The rank's own entry, or the only one. Raises NoSource where there are several and none is meant."""
    if rank is not None:
        return by_rank.get(rank)
    if len(by_rank) > 1:
        raise NoSource(f"{len(by_rank)} data-parallel ranks publish KV events: each must be a worker of its own")
    return next(iter(by_rank.values()), None)


async def sglang_info(http: EngineHttp) -> Answer:
    answer = await http.get(SGLANG_INFO[0])
    return await http.get(SGLANG_INFO[1]) if answer.unknown_route else answer


def read_sglang(answer: Answer, host: str, rank: int | None) -> EventSource:
    """The `kv_events` of `/server_info`: base ports, each rank's is that much higher. Raises NoSource."""
    if not answer.ok:
        raise NoSource(f"{answer.path} answered {answer.status}")
    info = json_object(answer)
    if "kv_events" not in info:
        raise NoSource("this SGLang does not tell where its KV events are: name their endpoint with events=")
    config = mapping(info["kv_events"])
    port, replay_port = (whole(config.get(name)) for name in ("endpoint_port_base", "replay_endpoint_port_base"))
    if port is None:
        raise NoSource("KV events are off: start SGLang with --kv-events-config")
    ranks = whole(config.get("dp_size")) or 1
    if rank is None and ranks > 1:
        raise NoSource(f"{ranks} data-parallel ranks publish KV events: each must be a worker of its own")
    name = config.get("endpoint_host")
    events = with_host(f"tcp://{name if isinstance(name, str) else '*'}:{port + (rank or 0)}", host)
    topic = config.get("topic")
    return EventSource(
        events,
        None if replay_port is None else f"{events.rpartition(':')[0]}:{replay_port + (rank or 0)}",
        topic if isinstance(topic, str) else "",
    )


def with_host(endpoint: str, host: str) -> str:
    """A tcp address that is a wildcard to its owner, as others reach it."""
    matched = TCP.fullmatch(endpoint)
    return f"tcp://{host}:{matched[2]}" if matched is not None and matched[1] in WILDCARDS else endpoint


def shifted(endpoint: str, rank: int | None) -> str:
    """The address of a rank whose base address this is (vLLM and SGLang: offset_endpoint_port)."""
    matched = TCP.fullmatch(endpoint)
    return endpoint if matched is None or not rank else f"tcp://{matched[1]}:{int(matched[2]) + rank}"
