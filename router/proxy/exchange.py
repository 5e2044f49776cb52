"""The life of one request: read, keyed, placed, sent, relayed, counted. Plain callbacks, no task of its own."""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from router.core.placement import Lease
from router.core.types import PromptKeys, WorkerId
from router.errors import Overloaded, PathNotFound, RouterError, RouterFull, UpstreamBroken, UpstreamClosed, UpstreamTimeout
from router.proxy.access import access_entry
from router.proxy.own_answers import own_answer
from router.proxy.relay import Relay
from router.proxy.request import IncomingRequest
from router.proxy.routes import HEALTH, MODELS, OTHER, route_of
from router.proxy.upstream import Endpoint, UpstreamConnection
from router.proxy.worker_head import worker_head
from router.tokens.keying import Keying
from router.wire.http_head import (
    CONTINUE,
    AnswerFacts,
    Header,
    clean_request_id,
    local_answer,
    origin_path,
    response_head,
)
from router.wire.openai_error import error_body, error_event
from router.wire.openai_request import Family, ModelCall

if TYPE_CHECKING:
    from router.proxy.listener import ClientConnection
    from router.proxy.plane import DataPlane

STALE_S = 0.5  # a connection lost later than this after sending was not dead before
CLIENT_GONE = "client_gone"
OK = "ok"


class Exchange:
    """One request and its answer. Every path ends in `_end` exactly once, which gives back lease, counts and memory."""

    __slots__ = (
        "_body_in",
        "_call",
        "_client",
        "_connection",
        "_done",
        "_endpoint",
        "_key_timer",
        "_keying",
        "_keying_s",
        "_lease",
        "_path",
        "_plane",
        "_relay",
        "_retries",
        "_route",
        "_sent",
        "_sent_s",
        "_stale_retry",
        "_target",
        "_total_deadline_s",
        "_tried",
        "answer_started",
        "request",
        "request_id",
    )

    def __init__(self, plane: "DataPlane", client: "ClientConnection", request: IncomingRequest) -> None:
        self._plane = plane
        self._client = client
        self.request = request
        self._body_in = request.body_bytes
        self._route: str = OTHER
        self._path = ""
        self._target = b""
        self.request_id = ""
        self._call: ModelCall | None = None
        self._keying: Keying | None = None
        self._keying_s = 0.0
        self._key_timer: asyncio.TimerHandle | None = None
        self._lease: Lease | None = None
        self._endpoint: Endpoint | None = None
        self._connection: UpstreamConnection | None = None
        self._relay: Relay | None = None
        self._tried: tuple[WorkerId, ...] = ()
        self._retries = 0
        self._stale_retry = False
        self._sent = False
        self._sent_s = 0.0
        self.answer_started = False  # bytes of the final answer went to the client: no retry and no other status any more
        self._done = False
        self._total_deadline_s = 0.0

    # Reading and keying

    def start(self) -> None:
        """Route the request. Called once, with the request whole."""
        plane, request = self._plane, self.request
        plane.stats.requests_in_flight += 1
        given = request.header(b"x-request-id")
        clean = clean_request_id(given) if given is not None else None
        self.request_id = clean.decode("ascii") if clean is not None else plane.new_request_id()
        path, self._target = origin_path(request.target)
        self._path = path.decode("ascii", "replace")
        self._total_deadline_s = request.started_s + plane.timeouts.total_timeout_s
        self._client.deadline_s = self._total_deadline_s
        try:
            route = route_of(self._path)
            if route is None:
                raise PathNotFound(f"no such path: {self._path}")
            self._route = route
            if route in (HEALTH, MODELS):
                body = own_answer(request.method, route, self._path, plane.fleet, plane.draining)
                self._write_local(200, body)
                return
            if plane.stats.requests_in_flight > plane.limits.max_requests_in_flight:
                raise RouterFull("the router answers as many requests as it may; try again shortly")
            self._key()
        except RouterError as error:
            self._answer_error(error)
        except Exception:
            self.surprised()

    def surprised(self) -> None:
        """Called in the handler of an exception nobody expected: the request fails, and only this one."""
        self._plane.surprised(f"serving {self.request_id}")
        self._abort_upstream()
        if not self._done:
            self._give_up(RouterError("the router failed on this request"))

    def _key(self) -> None:
        plane = self._plane
        self._call = call = self._read_call()
        self._keying_s = plane.clock()
        self._keying = keying = plane.keyer.start(call, plane.placement.is_held)
        waiting = keying.waiting
        if waiting is None or waiting.done():
            self._choose()
            return
        loop = asyncio.get_running_loop()
        self._key_timer = loop.call_later(plane.settings.tokens.key_deadline_s, self._key_deadline)
        waiting.add_done_callback(self._keys_ready)

    def _read_call(self) -> ModelCall:
        request = self.request
        if request.method != b"POST":
            return ModelCall(Family.GENERIC, unkeyed_reason="path")  # the engine's to answer or refuse
        body = request.leading_body(self._plane.settings.tokens.max_keyed_body_bytes)
        session = request.header(b"x-session-id")
        text = session.decode("latin-1") if session else None
        return self._plane.keyer.read(self._path, body, text)

    def _keys_ready(self, _: "asyncio.Future[None]") -> None:
        if self._key_timer is not None:
            self._key_timer.cancel()
            self._go_on()

    def _key_deadline(self) -> None:
        self._plane.stats.key_deadline_missed += 1
        self._go_on()

    def _go_on(self) -> None:
        """Choose with the keys there are, unless the client went while they were made."""
        self._key_timer = None
        if not self._done:
            try:
                self._choose()
            except Exception:
                self.surprised()

    # Choosing and sending

    def _choose(self) -> None:
        plane, call, keying = self._plane, self._call, self._keying
        assert call is not None and keying is not None
        now_s = plane.clock()
        if not self._tried:
            plane.retry_budget.note_request(now_s)
            plane.stats.key_wait_s.observe(now_s - self._keying_s)
        try:
            workers = plane.fleet.candidates(call.model, self._tried)
            self._lease = lease = plane.placement.choose(
                self.request_id,
                call.model,
                keying.keys,
                workers,
                session=call.session,
                tried=self._tried,
                now_s=now_s,
                wall_s=plane.wall(),
                stream=call.stream,
            )
        except RouterError as error:
            self._answer_error(error)
            return
        plane.stats.decision_s.observe(plane.clock() - now_s)
        self._endpoint = endpoint = plane.endpoint(lease.worker)
        self._client.deadline_s = min(self._total_deadline_s, now_s + plane.timeouts.first_byte_timeout_s)
        try:
            connection = plane.pool.acquire(endpoint, self)
        except Overloaded as error:
            self._try_another(error)
            return
        if connection is not None:
            self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        request, endpoint = self.request, self._endpoint
        assert endpoint is not None
        self._connection = connection
        head = worker_head(request, self._target, self.request_id, endpoint)
        self._sent_s = self._plane.clock()
        connection.send(self, head, request.body)
        if self._keying is not None and not self._sent:
            self._keying.finish(self._tail_done)
        self._sent = True

    def _tail_done(self, keys: PromptKeys) -> None:
        """The prompt's tail was keyed after dispatch: its worker is credited with all of it."""
        if self._lease is not None:
            self._plane.placement.extend(self._lease, keys)

    def connected(self, connection: UpstreamConnection) -> None:
        """A new connection stands."""
        if self._done:
            self._plane.pool.release(connection)
            return
        self._send(connection)

    def connect_failed(self, error: RouterError) -> None:
        if self._done:
            return
        if isinstance(error, RouterFull):
            self._answer_error(error)  # our own want of descriptors says nothing about the worker
            return
        lease = self._lease
        assert lease is not None
        self._plane.stats.upstream_failures[(lease.worker.id, error.reason)] += 1
        self._plane.fleet.mark_down(lease.worker.id, error.message, self._plane.clock())
        self._plane.pool.close_worker(lease.worker.id)
        self._try_another(error)

    def _try_another(self, error: RouterError) -> None:
        """The chosen worker did nothing for this request: take back its lease and choose again without it."""
        plane, lease = self._plane, self._lease
        assert lease is not None
        self._connection = None
        now_s = plane.clock()
        tried = (*self._tried, lease.worker.id)
        is_full = isinstance(error, Overloaded)  # nothing was sent: looking further is no second try
        may_go_on = is_full or self._retries < plane.timeouts.max_retries
        if not may_go_on or not self._has_other_worker(tried) or not (is_full or plane.retry_budget.may_retry(now_s)):
            self._answer_error(error)
            return
        self._lease = None
        plane.placement.fail(lease, now_s, error.reason)
        self._retries += not is_full
        self._tried = tried
        plane.stats.retries[error.reason] += 1
        self._choose()

    def _has_other_worker(self, tried: tuple[WorkerId, ...]) -> bool:
        with contextlib.suppress(RouterError):
            return bool(self._plane.fleet.candidates(self._call.model if self._call else None, tried))
        return False

    # The answer

    def interim(self, status: int, reason: bytes, headers: list[Header]) -> None:
        if self.request.accepts_chunks and not self.answer_started:
            self._client.write(response_head(status, reason, headers))

    def relay(self, head: AnswerFacts | None, pieces: list[bytes], ended: bool) -> None:
        plane = self._plane
        now_s = plane.clock()
        relay = self._relay
        if head is not None:
            connection = self._connection
            assert connection is not None
            self._relay = relay = Relay(
                head,
                connection.status,
                connection.reason,
                self.request_id.encode("ascii"),
                head_only=self.request.method == b"HEAD",
                accepts_chunks=self.request.accepts_chunks,
                keep_alive=self.request.keep_alive and not plane.draining,
            )
            if relay.has_no_body and not ended:
                connection.abort()  # a head that announces a body which will not come: not reusable
                ended = True
        assert relay is not None
        output = relay.pass_on(pieces, ended)
        if relay.found_first_token:
            self._first_token(relay, now_s)
        if output:
            self.answer_started = True
            self._client.write(output)
        if ended:
            self._connection = None
            self._end(relay.status, OK, relay.keep_alive, now_s)
        elif self.answer_started:
            self._client.deadline_s = min(self._total_deadline_s, now_s + plane.idle_timeout_s)
            if not self._client.writable:
                self.pause()

    def _first_token(self, relay: Relay, now_s: float) -> None:
        """The prefill is done: what it took is learned from and counted."""
        relay.found_first_token = False
        lease = self._lease
        if lease is not None:
            self._plane.placement.first_token(lease, now_s)
            if lease.decision.ttft_s is not None:
                self._plane.stats.ttft_of(lease.worker.id).observe(lease.decision.ttft_s)

    def relay_event(self, chunk: bytes) -> bool:
        """The shortest way for the bulk of a stream: whole events go out as they came, framing and all."""
        relay, client = self._relay, self._client
        if relay is None or not relay.takes_chunk(chunk):
            return False
        now_s = self._plane.clock()
        if relay.found_first_token:
            self._first_token(relay, now_s)
        client.write(chunk)
        if client.writable:
            deadline_s = now_s + self._plane.idle_timeout_s
            client.deadline_s = deadline_s if deadline_s < self._total_deadline_s else self._total_deadline_s
        else:
            self.pause()
        return True

    def upstream_lost(self, error: RouterError | None, got_bytes: bool, reused: bool) -> None:
        """The worker's connection failed in mid-request."""
        plane, lease, endpoint = self._plane, self._lease, self._endpoint
        self._connection = None
        if self._done or lease is None or endpoint is None:
            return
        now_s = plane.clock()
        if error is None and reused and not got_bytes and not self._stale_retry and now_s - self._sent_s < STALE_S:
            # Closed by the engine while idle, as we wrote: nothing was read of the request, the worker is not at fault.
            self._stale_retry = True
            plane.stats.stale_connection_retries += 1
            try:
                plane.pool.connect(endpoint, self)
            except Overloaded as full:
                self._try_another(full)
            return
        failure = error or UpstreamClosed(f"worker {lease.worker.id} closed the connection before it answered")
        plane.stats.upstream_failures[(lease.worker.id, failure.reason)] += 1
        if self.answer_started:
            self._break(UpstreamBroken(f"worker {lease.worker.id} failed in mid-answer"))
            return
        self._relay = None
        if failure.retryable:
            self._try_another(failure)
        else:
            self._answer_error(failure)

    def _break(self, error: RouterError) -> None:
        """The answer cannot be completed: an error event where the form has one, then the end of the connection."""
        relay = self._relay
        assert relay is not None
        status = relay.status
        self._plane.stats.errors[error.reason] += 1
        ending = relay.broken(error_event(error, self._path))
        if ending is not None:
            self._client.write(ending)
        self._end(status, error.reason, False, self._plane.clock(), cut=ending is None)

    # Back-pressure, time, the client's going

    def pause(self) -> None:
        """The client reads slowly: stop reading from the worker."""
        if self._connection is not None and self.answer_started:
            self._connection.pause()
            limit_s = self._plane.limits.client_write_timeout_s
            self._client.deadline_s = min(self._total_deadline_s, self._plane.clock() + limit_s)

    def resume(self) -> None:
        if self._connection is not None and self.answer_started:
            self._connection.resume()
            limit_s = self._plane.timeouts.idle_timeout_s
            self._client.deadline_s = min(self._total_deadline_s, self._plane.clock() + limit_s)

    def on_deadline(self, now_s: float) -> None:
        """First byte, silence, slow reader or total time: whichever limit was running has passed."""
        if not self._client.writable:
            self.client_gone()
            self._client.abort()
            return
        lease = self._lease
        self._abort_upstream()
        worker = lease.worker.id if lease is not None else "none"
        if lease is not None:
            self._plane.stats.upstream_failures[(lease.worker.id, UpstreamTimeout.reason)] += 1
        error = UpstreamTimeout(f"worker {worker} did not answer in time")
        self._give_up(error)

    def _give_up(self, error: RouterError) -> None:
        """End the request with an error in the form that is still possible."""
        if self.answer_started:
            self._break(error)
        else:
            self._relay = None
            self._answer_error(error)

    def client_gone(self) -> None:
        """The client's connection is lost: stop the engine at once and give everything back."""
        self._abort_upstream()
        if not self._done:
            self._plane.stats.client_gone += 1
            status = self._relay.status if self._relay is not None and self.answer_started else None
            self._end(status, CLIENT_GONE, False, self._plane.clock())

    def _abort_upstream(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def eof_probe(self) -> bytes:
        """Bytes that may be written now without changing the answer: an interim 100 before it, a comment in a stream.

        b"" where there are none. RFC 9110 §15.2 allows interim answers at any time before the final one.
        """
        if self._relay is not None and self.answer_started:
            return self._relay.comment()
        return CONTINUE if self.request.accepts_chunks else b""

    # Answers of the router's own

    def _answer_error(self, error: RouterError) -> None:
        if self._done:
            return
        self._plane.stats.errors[error.reason] += 1
        body = error_body(error, self.request_id, self._path)
        self._write_local(error.status, body, error.reason, error.retry_after_s)

    def _write_local(self, status: int, body: bytes, outcome: str = OK, retry_after_s: int | None = None) -> None:
        keep_alive = self.request.keep_alive and not self._plane.draining
        answer = local_answer(
            status,
            body,
            request_id=self.request_id.encode("ascii"),
            close=not keep_alive,
            head_only=self.request.method == b"HEAD",
            retry_after_s=retry_after_s,
        )
        self._client.write(answer)
        self._end(status, outcome, keep_alive, self._plane.clock(), local_bytes=len(answer))

    # The end

    def _end(
        self, status: int | None, outcome: str, keep_alive: bool, now_s: float, *, cut: bool = False, local_bytes: int = 0
    ) -> None:
        """Give back lease, memory and counts, write the log line, let the connection go on. Runs once."""
        if self._done:
            return
        self._done = True
        plane, lease, relay, stats = self._plane, self._lease, self._relay, self._plane.stats
        if self._key_timer is not None:
            self._key_timer.cancel()
            self._key_timer = None
        if self._keying is not None and not self._sent:
            self._keying.cancel()
        if lease is not None:
            usage = None
            if relay is not None and self.answer_started:
                usage = relay.usage()
                plane.placement.finish(lease, now_s, usage, outcome, status)
            else:
                plane.placement.fail(lease, now_s, outcome, status)
            if plane.recorder is not None:
                plane.recorder.note(lease, usage)
        stats.requests_in_flight -= 1
        stats.buffered_bytes -= self._body_in
        duration_s = now_s - self.request.started_s
        worker = lease.worker.id if lease is not None else ""
        stats.requests[(self._route, worker, status or 499)] += 1
        stats.duration_s.observe(duration_s)
        if plane.access_log is not None:
            bytes_out = relay.bytes_out if relay is not None else local_bytes
            entry = access_entry(
                plane.wall(), self.request, self.request_id, self._path, self._client.address, status, outcome,
                self._call.model if self._call is not None else None, lease.decision if lease is not None else None,
                duration_s, self._body_in, bytes_out, self._retries,
            )  # fmt: skip
            plane.access_log.write(entry)
        self.request.body = []
        if cut:
            self._client.exchange = None
            self._client.abort()
        else:
            self._client.exchange_done(keep_alive)
