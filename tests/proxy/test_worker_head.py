"""The head that reaches a worker."""

from router.proxy.request import IncomingRequest
from router.proxy.upstream import Endpoint
from router.proxy.worker_head import worker_head
from router.settings import EngineSpec
from tests.proxy.rig import lowered


def made(*headers: tuple[bytes, bytes], api_key: str | None = None, rank: int | None = None) -> bytes:
    request = IncomingRequest(0.0)
    request.method = b"POST"
    request.headers = lowered((b"Host", b"r"), *headers)
    request.framed = True
    return worker_head(request, b"/v1/x?y", "rid", Endpoint(EngineSpec("vllm", "http://w:1/base", api_key=api_key, rank=rank)))


def test_plain() -> None:
    """Prefix, Host, id and length are the worker's; a header named by Connection stays behind."""
    head = made((b"X-A", b"1"), (b"X-Hop", b"2"), (b"Connection", b"close, x-hop"))
    assert head == b"POST /base/v1/x?y HTTP/1.1\r\nHost: w:1\r\nX-A: 1\r\nX-Request-Id: rid\r\nContent-Length: 0\r\n\r\n"


def test_a_workers_key_replaces_the_clients() -> None:
    """The client's credentials are for the router, not for an engine with a key of its own."""
    head = made((b"Authorization", b"Bearer client"), (b"X-Api-Key", b"client"), api_key="engine")
    assert b"client" not in head and b"Authorization: Bearer engine" in head
    assert b"Authorization: Bearer client" in made((b"Authorization", b"Bearer client"))


def test_a_rank_is_named_by_the_router() -> None:
    """A request for one of several data-parallel ranks names it; what the client said of ranks stays behind then."""
    head = made((b"x-data-parallel-rank", b"7"), rank=2)
    assert b"X-Data-Parallel-Rank: 2\r\n" in head and b"7" not in head
    assert b"rank" not in made()


def test_the_id_is_sent_once() -> None:
    """A client's safe id stays in place, any other is replaced."""
    assert made((b"X-Request-Id", b"rid")).count(b"rid") == 1
    assert b"evil" not in made((b"X-Request-Id", b"evil id"))
