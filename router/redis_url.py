"""The address of a Redis: one server, a master found through Sentinel, or a cluster. Reads URLs and hides their secrets."""

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from router.errors import SettingsError

FORMS = (
    "redis://[USER:PASSWORD@]HOST[:PORT][/DB], redis+sentinel://[…@]HOST[:PORT],…/MASTER[/DB] "
    "or redis+cluster://[…@]HOST[:PORT],… (rediss for TLS; reserved characters percent-encoded)"
)
SCHEME = re.compile(r"redis(?P<tls>s?)(\+(?P<kind>sentinel|cluster))?")
HOST = re.compile(r"(\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[0-9A-Za-z._-]+))(:(?P<port>[0-9]{1,5}))?")
PORT, SENTINEL_PORT = 6379, 26379
MAX_DB = 1_000_000
MASK = "***"
SECRET = re.compile(r"(?<=[?&]sentinel_password=)[^&#]*")


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """`nodes` are the server itself, the Sentinels, or some nodes of the cluster."""

    nodes: tuple[tuple[str, int], ...]
    tls: bool = False
    cluster: bool = False
    master: str = ""  # the name the Sentinels know it by; empty where there are none
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int = 0
    sentinel_user: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """For logs: without user and password."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes)
        return f"{hosts} ({self.master})" if self.master else hosts


def parse_redis(url: str) -> RedisAddress:
    """Raises SettingsError, the password masked."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise refused(url) from None
    scheme = SCHEME.fullmatch(parts.scheme)
    login, _, hosts = parts.netloc.rpartition("@")
    if scheme is None or parts.fragment or not re.fullmatch(r"[!-~]+", url):
        raise refused(url)
    sentinel, cluster = scheme["kind"] == "sentinel", scheme["kind"] == "cluster"
    if set(options) - ({"sentinel_user", "sentinel_password"} if sentinel else set()):
        raise refused(url)
    path = [unquote(word) for word in parts.path.split("/")[1:] if word]
    master = path.pop(0) if sentinel and path else ""
    nodes = tuple(read_host(url, host, SENTINEL_PORT if sentinel else PORT) for host in hosts.split(","))
    if bool(master) is not sentinel or (not scheme["kind"] and len(nodes) > 1) or len(path) > (0 if cluster else 1):
        raise refused(url)
    user, colon, password = login.partition(":")
    return RedisAddress(
        nodes,
        tls=bool(scheme["tls"]),
        cluster=cluster,
        master=master,
        user=unquote(user) or None,
        password=unquote(password) if colon else None,
        db=read_db(url, path),
        sentinel_user=options.get("sentinel_user"),
        sentinel_password=options.get("sentinel_password"),
    )


def read_host(url: str, text: str, default_port: int) -> tuple[str, int]:
    found = HOST.fullmatch(text)
    port = int(found["port"] or default_port) if found else 0
    if found is None or not 0 < port < 65536:
        raise refused(url)
    return found["six"] or found["name"], port


def read_db(url: str, path: list[str]) -> int:
    if not path:
        return 0
    if not path[0].isdecimal() or len(path[0]) > 7 or int(path[0]) > MAX_DB:
        raise refused(url)
    return int(path[0])


def refused(url: str) -> SettingsError:
    return SettingsError(f"redis: url {mask_redis(url)!r} is not {FORMS}")


def mask_redis(url: str) -> str:
    """The URL with its passwords replaced, also where it is no good URL."""
    head, at, rest = url.rpartition("@")
    if at:
        start = head.find("://") + 3 if "://" in head else 0
        user, colon, _ = head[start:].partition(":")
        head = head[:start] + (f"{user}:{MASK}" if colon else user if start else MASK)
    return head + at + SECRET.sub(MASK, rest)


def check_redis(url: str) -> None:
    """Raises SettingsError for what is neither empty nor a good URL."""
    if url:
        parse_redis(url)
