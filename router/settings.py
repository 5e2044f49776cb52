"""Every knob of Warmline: one frozen dataclass per concern, checked at birth.

A knob has one name. Flag `--max-body-bytes`, TOML key `max_body_bytes` and variable `WARMLINE_MAX_BODY_BYTES`
are all made from the field `max_body_bytes`; nothing else defines a default.
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from router.errors import SettingsError
from router.kinds import KINDS
from router.redis_url import check_redis, mask_redis

POLICIES = ("warm", "ring", "least-queue", "round-robin", "random")
MAX_RANKS = 256  # of one engine
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
API_PATH = re.compile(r"/v1(/models|/completions|/chat(/completions)?)?/*$")  # what people append to an engine's address


def knob(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
    refuse: Callable[[str], None] | None = None,
    mask: Callable[[str], str] | None = None,
) -> Any:
    """A dataclass field with the help text and the allowed range or values of a knob.

    `refuse` raises SettingsError for a bad text. `mask` makes the value of a knob that holds a secret fit to be shown.
    """
    metadata = {"help": help, "low": low, "high": high, "choices": choices, "refuse": refuse, "mask": mask}
    return field(default=default, metadata=metadata, repr=mask is None)


class Checked:
    """Refuses a value outside a knob's type, range or choices with SettingsError naming all three."""

    def __post_init__(self) -> None:
        for f in fields(self):  # type: ignore[arg-type]
            check(f, getattr(self, f.name))


def check(f: "dataclasses.Field[Any]", value: Any) -> None:
    low, high, choices = (f.metadata.get(name) for name in ("low", "high", "choices"))
    if f.type is not bool and isinstance(value, bool):
        raise SettingsError(f"{f.name}: {value!r} is not {a_or_an(type_name(f))}")
    if f.type is float and isinstance(value, int):
        value = float(value)
    if isinstance(f.type, type) and not isinstance(value, f.type):
        raise SettingsError(f"{f.name}: {value!r} is not {a_or_an(type_name(f))}")
    if choices is not None and value not in choices:
        raise SettingsError(f"{f.name}: {value!r} is not one of {', '.join(choices)}")
    outside = (low is not None and not value >= low) or (high is not None and not value <= high)
    if outside:
        raise SettingsError(f"{f.name}: {value!r} is not {allowed_range(low, high)}")
    if f.metadata.get("refuse") is not None:
        f.metadata["refuse"](value)


def allowed_range(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high:g}"
    if high is None:
        return f"at least {low:g}"
    return f"between {low:g} and {high:g}"


def type_name(f: "dataclasses.Field[Any]") -> str:
    return {int: "integer", float: "number", str: "text", bool: "true/false value"}.get(f.type, "list")  # type: ignore[arg-type]


def a_or_an(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


@dataclass(frozen=True)
class ListenSettings(Checked):
    host: str = knob("127.0.0.1", "address of the data port and the admin port")
    port: int = knob(8080, "data port; 0 takes a free one", low=0, high=65535)
    admin_port: int = knob(8081, "admin port (metrics, health, workers, decisions); 0 takes a free one", low=0, high=65535)


@dataclass(frozen=True)
class LimitSettings(Checked):
    """What one client may cost. A body is held in memory while its request is unanswered."""

    max_connections: int = knob(10_000, "client connections; further ones are closed", low=1)
    max_requests_in_flight: int = knob(4096, "requests being answered; further ones get 503", low=1)
    max_header_bytes: int = knob(64 * 1024, "request line and headers", low=1024)
    max_body_bytes: int = knob(64 * 1024 * 1024, "request body", low=1)
    max_buffered_bytes: int = knob(2 * 1024 * 1024 * 1024, "request bodies held by all clients together; beyond it 503", low=1)
    header_timeout_s: float = knob(10.0, "time for a request's head, from its first byte", low=0.05)
    body_timeout_s: float = knob(30.0, "longest silence within a request body", low=0.05)
    keepalive_timeout_s: float = knob(75.0, "idle time of a client connection between requests", low=0.05)
    client_write_timeout_s: float = knob(120.0, "longest time a client may leave answer bytes unread", low=0.05)
    drain_timeout_s: float = knob(30.0, "time for requests in flight to end at shutdown", low=0)


@dataclass(frozen=True)
class UpstreamSettings(Checked):
    connect_timeout_s: float = knob(2.0, "TCP connect to a worker", low=0.01)
    first_byte_timeout_s: float = knob(600.0, "from request sent to the first byte of the answer", low=0.05)
    idle_timeout_s: float = knob(120.0, "longest silence within an answer", low=0.05)
    total_timeout_s: float = knob(3600.0, "one request, start to end", low=0.05)
    upstream_keepalive_s: float = knob(
        4.0, "idle time of a pooled worker connection; engines close theirs after 5 s", low=0, high=4.9
    )
    max_idle_connections: int = knob(256, "pooled idle connections per worker", low=0)
    max_connections_per_worker: int = knob(1024, "connections to one worker; a worker at it is full", low=1)
    max_response_header_bytes: int = knob(64 * 1024, "head of a worker's answer", low=1024)
    max_retries: int = knob(2, "other workers to try per request, before the first byte only", low=0, high=16)
    retry_budget: float = knob(0.1, "retries as a share of requests, over all requests", low=0, high=1)


@dataclass(frozen=True)
class RoutingSettings(Checked):
    policy: str = knob("warm", "how a worker is chosen", choices=POLICIES)
    ring_load_factor: float = knob(1.25, "bound of the ring: requests on a worker over the mean", low=1.0, high=10.0)
    ring_points: int = knob(64, "points of each worker on the ring, times its weight", low=1, high=4096)
    ring_blocks: int = knob(16, "leading blocks of a prompt that choose its homes on the ring", low=1)
    steer_gain: float = knob(2.0, "price of work for later arrivals (g of the steer rule)", low=0, high=16)
    rate_half_life_s: float = knob(60.0, "half-life of arrival rates and utilisation", low=1)
    max_utilisation: float = knob(0.9, "cap of utilisation in the steer rule", low=0.1, high=0.99)
    own_rate_share: float = knob(0.5, "weight of a worker's own rates against the fleet's", low=0, high=1)
    prefill_tokens_per_s: float = knob(2500.0, "prefill speed assumed until one is observed", low=1)
    session_credit_s: float = knob(0.05, "cost in seconds that a session hint may outweigh", low=0, high=60)
    max_sessions: int = knob(100_000, "session hints remembered", low=1)
    adapter_load_s: float = knob(1.0, "cost in seconds of a worker that would have to load the LoRA adapter asked for", low=0)
    max_candidates: int = knob(32, "workers priced per request", low=2)
    decision_log_size: int = knob(4096, "decisions kept for `warmline explain`", low=1)


@dataclass(frozen=True)
class CacheSettings(Checked):
    index_bytes: int = knob(
        1024**3, "memory of the prefix index; up to three quarters of it for blocks told by cache events", low=64 * 1024
    )
    default_capacity_tokens: int = knob(262_144, "KV cache of a worker that does not tell its size", low=1024)
    speculative_s: float = knob(2.0, "time for a sent prompt's blocks to appear in a worker's cache events", low=0, high=60)
    max_heard_marks: int = knob(16_384, "marks of prompts sent by other routers within --speculative-s that are kept", low=0)
    distrust_share: float = knob(
        0.2, "mean part of a prompt predicted wrongly at which a source of cache truth is dropped", low=0.01, high=1
    )
    distrust_requests: int = knob(32, "requests with the engine's own number per verdict on predictions", low=1)
    retest_s: float = knob(60.0, "time until predictions that were dropped are tested again; doubles if they fail", low=0.1)


@dataclass(frozen=True)
class TokenSettings(Checked):
    tokenizer: tuple[str, ...] = knob((), "PATH or MODEL=PATH: folder, tokenizer.json or GGUF file; repeatable")
    memo_bytes: int = knob(256 * 1024**2, "memory of the prefix memo", low=64 * 1024)
    tokenizer_threads: int = knob(1, "threads for long prompts", low=1, high=64)
    key_deadline_s: float = knob(0.05, "longest time a request waits for its keys; then it goes with those it has", low=0)
    max_keyed_body_bytes: int = knob(1024**2, "larger bodies are keyed by their raw first bytes", low=1024)
    max_pending_tails: int = knob(256, "prompts whose tails wait to be tokenised after dispatch", low=1)
    check_tokens: bool = knob(
        True, "compare the tokenizer's tokens with the engines' and key by asking an engine where they differ"
    )
    max_differing_share: float = knob(
        0.5, "share of a worker's latest prompts that it may count otherwise than the tokenizer here", low=0.05, high=0.95
    )
    recheck_tokens_s: float = knob(3600.0, "time until a tokenizer that was given up for its counts is tried again", low=1)
    max_token_asks: int = knob(64, "prompts whose tokens an engine is being asked for", low=1)
    tokenizer_cache: str = knob("", "folder for tokenizers converted from GGUF; empty means the user's cache folder")


@dataclass(frozen=True)
class FleetSettings(Checked):
    probe_interval_s: float = knob(1.0, "time between health probes of a worker", low=0.05)
    probe_timeout_s: float = knob(2.0, "limit of one probe or scrape", low=0.05)
    scrape_interval_s: float = knob(
        0.25, "time between load scrapes of a worker while requests wait there; else one with each probe", low=0.05
    )
    probe_failures: int = knob(2, "failed probes in a row until a worker is down", low=1)
    report_ttl_s: float = knob(3.0, "age at which a load report counts as unknown", low=0.1)
    max_workers: int = knob(1024, "workers known at a time", low=1)


def check_pool_name(name: str) -> None:
    """A part of every Redis key: no character that means something in a pattern or a hash tag."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise SettingsError(f"pool_name: {name!r} is not 1 to 64 letters, digits, dots, dashes or underscores")


@dataclass(frozen=True)
class StateSettings(Checked):
    """What sidecars and routers share through Redis; with `redis` empty they are one process and share memory."""

    redis: str = knob(
        "",
        "redis://, rediss://, redis+sentinel:// or redis+cluster:// URL of what sidecars and routers share; "
        "empty means one process shares nothing",
        refuse=check_redis,
        mask=mask_redis,
    )
    redis_ca_file: str = knob("", "certificates that a rediss:// server's must be signed by; empty means the system's")
    redis_cert_file: str = knob("", "own certificate towards a rediss:// server, with the key unless it has its own file")
    redis_key_file: str = knob("", "key of the own certificate")
    pool_name: str = knob("default", "name in Redis keys; routers see the sidecars of the same name", refuse=check_pool_name)
    redis_timeout_s: float = knob(1.0, "limit of one exchange with Redis", low=0.05, high=60)
    state_interval_s: float = knob(0.1, "time between two reads, or two writes, of shared state", low=0.01, high=1)
    load_interval_s: float = knob(
        0.005, "time that a change of a router's load waits to be told; longer among more than five routers", low=0.001, high=1
    )
    load_ttl_s: float = knob(2.0, "age at which another router's load counts as none", low=1.5, high=60)
    leftover_ttl_s: float = knob(600.0, "time until Redis, and the routers, forget a worker that is gone", low=10)
    max_stream_deltas: int = knob(512, "cache deltas that Redis keeps per worker", low=16, high=100_000)
    max_pending_blocks: int = knob(
        65_536, "cached blocks per worker waiting for Redis; beyond it they are dropped for a snapshot", low=1024
    )
    max_snapshot_blocks: int = knob(4_194_304, "cached blocks in the snapshot of one worker", low=1024, high=2**27)


@dataclass(frozen=True)
class EventSettings(Checked):
    """KV events of engines that publish them; each limit is per worker."""

    max_event_blocks: int = knob(500_000, "engine blocks of a worker followed through its KV events", low=1024)
    max_orphan_blocks: int = knob(16_384, "of these, blocks kept whose start is not known yet", low=1)
    max_event_bytes: int = knob(64 * 1024 * 1024, "one message of KV events", low=1024)
    max_waiting_events: int = knob(10_000, "messages of KV events waiting to be read; further ones are replayed", low=16)
    replay_timeout_s: float = knob(5.0, "longest silence of an engine that is asked to replay KV events", low=0.05)
    event_check_s: float = knob(5.0, "time without KV events until an engine is asked whether some were missed", low=0.05)
    self_test: bool = knob(True, "send engines with KV events a short prompt, to see that its keys come back in them")
    self_test_timeout_s: float = knob(5.0, "time for the self-test's prompt to show in KV events", low=0.05)
    self_test_retry_s: float = knob(30.0, "time between two self-tests of a worker that failed", low=0.05)


@dataclass(frozen=True)
class LogSettings(Checked):
    log_format: str = knob("text", "form of log lines", choices=LOG_FORMATS)
    log_level: str = knob("info", "least severe message shown", choices=LOG_LEVELS)
    access_log: bool = knob(True, "one line per request on standard output")
    max_log_lines: int = knob(10_000, "access-log lines waiting to be written; further ones are dropped and counted", low=1)
    max_recording_bytes: int = knob(
        16 * 1024**2, "finished requests waiting for `warmline record`; further ones are dropped and counted", low=64 * 1024
    )


@dataclass(frozen=True)
class EngineSpec:
    """One `--engine KIND=URL[,key=value…]`."""

    kind: str
    url: str
    model: str | None = None
    capacity_tokens: int | None = None
    ram_tokens: int | None = None
    events: str | None = None
    replay: str | None = None
    metrics: str | None = None
    api_key: str | None = field(default=None, repr=False)
    weight: float = 1.0
    adapters: tuple[str, ...] = ()
    ranks: int = 1
    rank: int | None = None  # which of several this is; made by `by_rank`

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingsError(f"engine: kind {self.kind!r} is not one of {', '.join(KINDS)}")
        check_url(self.url)
        if self.metrics is not None and not is_web_address(self.metrics):
            raise SettingsError(f"engine: metrics {self.metrics!r} is not http://HOST[:PORT]/PATH")
        if self.capacity_tokens is not None and self.capacity_tokens < 1:
            raise SettingsError(f"engine: capacity_tokens {self.capacity_tokens} is not at least 1")
        if self.ram_tokens is not None and self.ram_tokens < 0:
            raise SettingsError(f"engine: ram_tokens {self.ram_tokens} is not at least 0")
        if not 1 <= self.ranks <= MAX_RANKS:
            raise SettingsError(f"engine: ranks {self.ranks} is not between 1 and {MAX_RANKS}")
        if self.ranks > 1 and not KINDS[self.kind].has_ranks:
            raise SettingsError(f"engine: ranks {self.ranks}: {self.kind} takes no requests for a rank")
        if self.rank is not None and not (KINDS[self.kind].has_ranks and 0 <= self.rank < MAX_RANKS):
            raise SettingsError(f"engine: rank {self.rank} of {self.kind} is not below {MAX_RANKS} of a kind that has ranks")
        check_endpoint("events", self.events)
        check_endpoint("replay", self.replay)
        if not 0 < self.weight <= 1000:
            raise SettingsError(f"engine: weight {self.weight} is not above 0 and at most 1000")

    @property
    def worker_id(self) -> str:
        """The authority and path prefix of the URL and, of one rank of several, `#rank`: the name of the worker everywhere."""
        name = self.url.split("://", 1)[1].rstrip("/")
        return name if self.rank is None else f"{name}#{self.rank}"

    def by_rank(self) -> "tuple[EngineSpec, ...]":
        """One for each worker: the engine itself, or each of its data-parallel ranks."""
        if self.ranks == 1:
            return (self,)
        return tuple(dataclasses.replace(self, ranks=1, rank=rank) for rank in range(self.ranks))


def check_endpoint(name: str, endpoint: str | None) -> None:
    """Refuses what is no address of a ZeroMQ socket; `events` may end in `#TOPIC`."""
    if endpoint is None:
        return
    matched = re.fullmatch(r"(?:tcp://[^#\s]*:(\d{1,5})|ipc://[^#\s]+)(?P<topic>#\S*)?", endpoint)
    if matched is None or int(matched[1] or 1) > 65535 or (matched["topic"] and name != "events"):
        topic = "[#TOPIC]" if name == "events" else ""
        raise SettingsError(f"engine: {name} {endpoint!r} is not tcp://HOST:PORT{topic} or ipc://PATH{topic}")


def check_url(url: str) -> None:
    """Refuses what could not be reached request by request, and the paths of the API, which are added to every URL."""
    if not url.isascii():
        raise SettingsError(f"engine: url {url!r} is not ASCII; write its host as DNS has it (xn--…), its path percent-encoded")
    if not is_web_address(url) or "?" in url:
        raise SettingsError(f"engine: url {url!r} is not http://HOST[:PORT][/PREFIX]")
    if found := API_PATH.search(urlsplit(url).path):
        raise SettingsError(f"engine: url {url!r}: leave out {found[0].rstrip('/')}: it is added")


def is_web_address(url: str) -> bool:
    """Whether it is plain `http://` with a host that can be looked up, and no user or fragment."""
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")  # how names are looked up: no empty label, none over 63 characters
        usable = parts.scheme == "http" and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return usable and not (parts.fragment or parts.username) and re.fullmatch(r"[!-~]+", url) is not None


def parse_engine(text: str) -> EngineSpec:
    """`vllm=http://10.0.0.1:8000,capacity_tokens=200000` to an EngineSpec; SettingsError says what is wrong."""
    head, *options = text.split(",")
    kind, separator, url = head.partition("=")
    if not separator:
        raise SettingsError(f"engine: {head!r} is not KIND=URL[,key=value…] with KIND one of {', '.join(KINDS)}")
    values: dict[str, Any] = {}
    for option in options:
        key, separator, value = option.partition("=")
        if not separator or key not in ENGINE_OPTIONS:
            raise SettingsError(f"engine: option {key!r} is not one of {', '.join(f'{k}=' for k in ENGINE_OPTIONS)}")
        try:
            values[key] = ENGINE_OPTIONS[key](value)
        except ValueError:
            raise SettingsError(f"engine: {key} {value!r} is not a number") from None
    return EngineSpec(kind=kind.strip(), url=url.strip().rstrip("/"), **values)


ENGINE_OPTIONS: Mapping[str, Any] = {
    "model": str,
    "capacity_tokens": int,
    "ram_tokens": int,
    "events": str,
    "replay": str,
    "metrics": str,
    "api_key": str,
    "weight": float,
    "ranks": int,
    "adapters": lambda text: tuple(name for name in text.split("+") if name),
}


@dataclass(frozen=True)
class Settings:
    listen: ListenSettings = field(default_factory=ListenSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    upstream: UpstreamSettings = field(default_factory=UpstreamSettings)
    routing: RoutingSettings = field(default_factory=RoutingSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    tokens: TokenSettings = field(default_factory=TokenSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    state: StateSettings = field(default_factory=StateSettings)
    events: EventSettings = field(default_factory=EventSettings)
    log: LogSettings = field(default_factory=LogSettings)
    engines: tuple[EngineSpec, ...] = ()

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for engine in self.engines:
            if engine.worker_id in seen:
                raise SettingsError(f"engine: {engine.url!r} is given twice")
            seen.add(engine.worker_id)
        workers = sum(engine.ranks for engine in self.engines)
        if workers > self.fleet.max_workers:
            raise SettingsError(f"engine: {workers} workers are more than max_workers {self.fleet.max_workers}")


SECTIONS: Mapping[str, type] = {
    f.name: f.default_factory  # type: ignore[misc]
    for f in fields(Settings)
    if f.name != "engines"
}


def knobs() -> "Iterator[tuple[str, dataclasses.Field[Any]]]":
    """(section, field) of every knob, in the order of help texts."""
    for section, kind in SECTIONS.items():
        for f in fields(kind):
            yield section, f


def build(values: Mapping[str, Any], engines: tuple[EngineSpec, ...] = ()) -> Settings:
    """Settings from knob name → value; unnamed knobs keep their default. SettingsError on an unknown name or bad value."""
    by_section: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    home = {f.name: section for section, f in knobs()}
    for name, value in values.items():
        if name not in home:
            raise SettingsError(f"{name}: no such setting")
        by_section[home[name]][name] = value
    return Settings(**{section: SECTIONS[section](**chosen) for section, chosen in by_section.items()}, engines=engines)
