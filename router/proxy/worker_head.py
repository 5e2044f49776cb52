"""The head of a request as it goes to a worker."""

from router.proxy.request import IncomingRequest
from router.proxy.upstream import Endpoint
from router.wire.http_head import DROPPED_FROM_REQUEST, Header, named_by_connection, request_head


def worker_head(request: IncomingRequest, target: bytes, request_id: str, endpoint: Endpoint) -> bytes:
    """The client's headers without those of its own hop, addressed to the worker, with the request's id.

    A worker's own key takes the place of the client's credentials; one of several data-parallel ranks is named. The body has
    been read whole, so it is sized.
    """
    dropped: frozenset[bytes] | set[bytes] = DROPPED_FROM_REQUEST
    added: list[Header] = []
    for lower, _, value in request.headers:
        if lower == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            dropped = dropped | named_by_connection(value)
    if endpoint.authorization is not None:
        dropped = dropped | {b"authorization", b"x-api-key"}
        added.append((b"Authorization", endpoint.authorization))
    if endpoint.rank is not None:
        dropped = dropped | {b"x-data-parallel-rank"}
        added.append((b"X-Data-Parallel-Rank", endpoint.rank))
    own_id = request_id.encode("ascii")
    if request.header(b"x-request-id") != own_id:
        dropped = dropped | {b"x-request-id"}
        added.append((b"X-Request-Id", own_id))
    return request_head(
        request.method,
        endpoint.prefix + target,
        request.headers,
        host=endpoint.authority,
        body_bytes=request.body_bytes if request.framed else None,
        dropped=dropped,
        added=added,
    )
