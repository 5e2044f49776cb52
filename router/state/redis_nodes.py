"""Clients of redis-py for an address, and which of them serves a lane."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from router.errors import SettingsError
from router.redis_url import RedisAddress, parse_redis
from router.settings import StateSettings
from router.state.redis_health import LINK_ERRORS
from router.state.redis_keys import LANES, Keys

Place = tuple[str, int]
CONNECT_SHARE: Final = 0.5  # of an exchange's limit, so that one dead Sentinel or node leaves time for the next


class Nodes(Protocol):
    async def refresh(self) -> None:
        """Finds out who serves what, where that can change. Raises one of LINK_ERRORS."""

    def serving(self, lane: int) -> "Redis | None":
        """None where nobody is known to; then `refresh` may help."""

    async def close(self) -> None: ...


def make_nodes(settings: StateSettings, on_connect: Callable[[], None]) -> Nodes:
    """Connects nowhere yet; tells of every connection to come. Raises SettingsError for a TLS file that cannot be read."""
    address = parse_redis(settings.redis)
    options = client_options(address, settings)

    async def greet(connection: AbstractConnection) -> None:
        await connection.on_connect()
        on_connect()

    options["redis_connect_func"] = greet
    if address.cluster:
        return ClusterNodes(address.nodes, options, [key_slot(Keys(settings.pool_name).tag(n).encode()) for n in range(LANES)])
    if address.master:
        return SentinelNodes(address, options)
    return OneNode(make_client(address.nodes[0], options))


def client_options(address: RedisAddress, settings: StateSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "username": address.user,
        "password": address.password,
        "db": address.db,
        "protocol": 2,  # no client-side state that RESP3 would bring
        "socket_timeout": None,  # whoever asks has a deadline for the whole exchange
        "socket_connect_timeout": settings.redis_timeout_s * CONNECT_SHARE,
        "retry": Retry(NoBackoff(), 0),
    }
    if address.tls:
        files = {
            "ssl_ca_certs": readable("redis_ca_file", settings.redis_ca_file),
            "ssl_certfile": readable("redis_cert_file", settings.redis_cert_file),
            "ssl_keyfile": readable("redis_key_file", settings.redis_key_file),
        }
        options |= {"ssl": True, "ssl_check_hostname": True, **{name: path for name, path in files.items() if path}}
    return options


def readable(knob: str, path: str) -> str:
    if path:
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise SettingsError(f"{knob}: {path!r} is not a readable file: {error.strerror}") from None
    return path


def make_client(place: Place, options: dict[str, Any]) -> "Redis":
    client = Redis(host=place[0], port=place[1], **options)
    return plain(client)


def plain(client: "Redis") -> "Redis":
    """Answers as they come: redis-py would make dicts and tuples of stream entries, at half the cost of a read."""
    client.response_callbacks.clear()
    return client


class OneNode:
    def __init__(self, client: "Redis") -> None:
        self._client = client

    async def refresh(self) -> None:
        """It does not change."""

    def serving(self, lane: int) -> "Redis | None":
        return self._client

    async def close(self) -> None:
        await self._client.aclose()


class SentinelNodes:
    """redis-py asks the Sentinels for the master at every connect, and connects anew when it finds a replica."""

    def __init__(self, address: RedisAddress, options: dict[str, Any]) -> None:
        sentinel_options = {
            name: value for name, value in options.items() if name.startswith(("socket", "ssl", "retry", "protocol"))
        }
        sentinel_options |= {
            "username": address.sentinel_user,
            "password": address.sentinel_password,
            "socket_timeout": options["socket_connect_timeout"],
        }
        self._sentinel = Sentinel(address.nodes, sentinel_kwargs=sentinel_options, **options)  # type: ignore[no-untyped-call]
        self._client = plain(self._sentinel.master_for(address.master))

    async def refresh(self) -> None:
        """Done at every connect."""

    def serving(self, lane: int) -> "Redis | None":
        return self._client

    async def close(self) -> None:
        await self._client.aclose()
        for sentinel in self._sentinel.sentinels:
            await sentinel.aclose()


class ClusterNodes:
    """A plain client per node, as every exchange is made of commands whose keys share a slot (see redis_keys)."""

    def __init__(self, seeds: Iterable[Place], options: dict[str, Any], slots: list[int]) -> None:
        self._seeds = tuple(seeds)
        self._options = options
        self._slots = slots  # by lane
        self._clients: dict[Place, Redis] = {}
        self._places: list[Place | None] = [None] * len(slots)

    async def refresh(self) -> None:
        """Asks the nodes one by one until one answers. Raises the last one's error."""
        failure: Exception = RedisConnectionError("the cluster has no node")
        for place in [*self._clients, *(seed for seed in self._seeds if seed not in self._clients)]:
            try:
                answer = await self._client(place).execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
                self._places = self._read(answer, place[0])
                await self._drop_unused()
                return
            except LINK_ERRORS as error:
                failure = error
        raise failure

    def serving(self, lane: int) -> "Redis | None":
        place = self._places[lane]
        return None if place is None else self._client(place)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    def _client(self, place: Place) -> "Redis":
        client = self._clients.get(place)
        if client is None:
            client = self._clients[place] = make_client(place, self._options)
        return client

    def _read(self, answer: Any, asked_host: str) -> list[Place | None]:
        """`CLUSTER SLOTS`: rows of first slot, last slot, master (host, port, …), replicas. An empty host: the one asked."""
        places: list[Place | None] = [None] * len(self._slots)
        try:
            for first, last, master, *_ in answer:
                host = (master[0] or b"").decode()
                place = (host if host not in ("", "?") else asked_host, int(master[1]))
                for lane, slot in enumerate(self._slots):
                    if first <= slot <= last:
                        places[lane] = place
        except (TypeError, ValueError, IndexError, AttributeError):
            raise RedisError("CLUSTER SLOTS is answered by something that is no cluster") from None
        return places

    async def _drop_unused(self) -> None:
        for place in [place for place in self._clients if place not in self._places and place not in self._seeds]:
            await self._clients.pop(place).aclose()
