"""The data plane as one object: what every exchange needs, and the answers the router makes itself."""

import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from router.core.fleet import Fleet, Worker
from router.core.placement import Lease, Placement
from router.core.retry import RetryBudget
from router.core.stats import Stats
from router.core.types import Usage, WorkerId
from router.errors import RouterError
from router.log import AccessEntry
from router.proxy.routes import OTHER
from router.proxy.upstream import Endpoint, UpstreamPool
from router.settings import Settings
from router.tokens.keyer import Keyer
from router.wire.http_head import local_answer
from router.wire.openai_error import error_body

if TYPE_CHECKING:
    from router.proxy.listener import ClientConnection

log = logging.getLogger("warmline.proxy")


class AccessSink(Protocol):
    def write(self, entry: AccessEntry) -> None: ...


class Recorder(Protocol):
    """Who keeps a trace of the traffic."""

    def note(self, lease: Lease, usage: Usage | None) -> None:
        """A request that had a worker is over; its lease says how it went. Called for each, so it only keeps them."""

    def waiting_bytes(self) -> int:
        """Memory of what is kept and not yet passed on."""


class DataPlane:
    """Parts shared by all connections of one process. `clock` is monotonic, `wall` the time of day, both in seconds."""

    def __init__(
        self,
        settings: Settings,
        stats: Stats,
        fleet: Fleet,
        placement: Placement,
        keyer: Keyer,
        access_log: AccessSink | None,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.timeouts = settings.upstream
        self.idle_timeout_s = float(settings.upstream.idle_timeout_s)  # read on each event of a stream
        self.stats = stats
        self.fleet = fleet
        self.placement = placement
        self.keyer = keyer
        self.access_log = access_log
        self.recorder: Recorder | None = None  # set while somebody records
        self.clock = clock
        self.wall = wall
        self.pool = UpstreamPool(settings.upstream, stats, clock)
        self.retry_budget = RetryBudget(settings.upstream.retry_budget)
        self.draining = False
        self._endpoints: dict[WorkerId, Endpoint] = {}
        self._id_prefix = secrets.token_hex(6)
        self._last_id = 0

    def endpoint(self, worker: Worker) -> Endpoint:
        """Where a worker listens; parsed on first use, forgotten with the worker."""
        endpoint = self._endpoints.get(worker.id)
        if endpoint is None:
            endpoint = self._endpoints[worker.id] = Endpoint(worker.spec)
        return endpoint

    def forget_worker(self, worker_id: WorkerId) -> None:
        """Drop what the data plane keeps of a removed worker; requests on it go on to their end."""
        self._endpoints.pop(worker_id, None)
        self.pool.forget_worker(worker_id)
        self.stats.forget_worker(worker_id)

    def new_request_id(self) -> str:
        """Unique over processes: a random prefix and a count (0.2 us; a random id each costs 1.5)."""
        self._last_id += 1
        return f"wl-{self._id_prefix}-{self._last_id:x}"

    def surprised(self, doing: str) -> None:
        """Log and count the exception being handled; whoever calls ends what it concerned."""
        log.exception("unexpected failure while %s", doing)
        self.stats.errors[RouterError.reason] += 1

    def refuse(self, client: "ClientConnection", error: RouterError) -> None:
        """Answer input that never became a whole request, and log it."""
        request_id = self.new_request_id()
        body = error_body(error, request_id)
        answer = local_answer(error.status, body, request_id=request_id.encode(), close=True, retry_after_s=error.retry_after_s)
        client.write(answer)
        self.stats.errors[error.reason] += 1
        self.stats.requests[(OTHER, "", error.status)] += 1
        if self.access_log is not None:
            self.access_log.write(
                AccessEntry(
                    at_s=self.wall(),
                    request_id=request_id,
                    method="-",
                    path="-",
                    client=client.address,
                    status=error.status,
                    outcome=error.reason,
                    response_bytes=len(answer),
                )
            )
