"""`GET /recording`: lines for as long as the client listens, or until the router ends."""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from aiohttp import web

from router.admin.figures import WorkerFigures
from router.admin.recording_lines import END_LINE, SALT_BYTES, LineMaker, Salt
from router.admin.recordings import Recording, Recordings
from router.admin.replies import REQUEST_ID

LOG = logging.getLogger("warmline.admin")
TICK_S: Final = 0.25  # lines are sent together
STATE_S: Final = 1.0  # a client that hears nothing for some of these knows that the router is gone
WORKERS_S: Final = 5.0
WRITE_TIMEOUT_S: Final = 10.0
BATCH_REQUESTS: Final = 16  # made at once, which takes 0.2 ms: the event loop is the data plane's
BATCH_KEYS: Final = 4096  # 0.5 ms


class RecordingStream:
    """One listener of one recording."""

    def __init__(
        self,
        recordings: Recordings,
        recording: Recording,
        workers: Callable[[], Sequence[WorkerFigures]],
        response: web.StreamResponse,
    ) -> None:
        self._recordings = recordings
        self._recording = recording
        self._workers = workers
        self._response = response
        self._lines = LineMaker(recording.start_s, Salt(os.urandom(SALT_BYTES)))

    async def run(self, policy: str, wall_s: float, is_gone: Callable[[], bool]) -> None:
        """Returns when the router ends or the client is gone. Raises ConnectionError, and TimeoutError for a client that
        does not read."""
        clock, closing = self._recordings.clock, self._recordings.closing
        await self._write(self._lines.header(policy, self._workers(), wall_s))
        state_s = workers_s = clock()
        while not is_gone():
            ending = closing.is_set()
            await self._send_finished()
            now_s = clock()
            tells_workers = ending or self._lines.has_new_worker or now_s - workers_s >= WORKERS_S
            if tells_workers or now_s - state_s >= STATE_S:
                state_s, workers_s = now_s, now_s if tells_workers else workers_s
                workers = self._workers() if tells_workers else None
                await self._write(self._lines.state(now_s, self._recording.dropped, workers))
            if ending:
                await self._write(END_LINE)
                await self._response.write_eof()
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), TICK_S)

    async def _send_finished(self) -> None:
        """All that may go, in small pieces with the event loop free in between."""
        while batch := self._batch():
            await self._write(batch)
            await asyncio.sleep(0)

    def _batch(self) -> bytes:
        lines: list[bytes] = []
        keys = 0
        now_s = self._recordings.clock()
        while len(lines) < BATCH_REQUESTS and keys < BATCH_KEYS:
            finished = self._recording.take(now_s)
            if finished is None:
                break
            keys += len(finished.lease.prompt.keys)
            lines.append(self._lines.request(finished.lease, finished.usage))
        return b"".join(lines)

    async def _write(self, data: bytes) -> None:
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            await self._response.write(data)


async def stream_recording(
    request: web.Request, recordings: Recordings, workers: Callable[[], Sequence[WorkerFigures]], policy: str, wall_s: float
) -> web.StreamResponse:
    """The answer, once it is over. Raises TooManyRecordings."""
    with recordings.recording() as recording:
        headers = {"Content-Type": "application/x-ndjson", "Cache-Control": "no-store", "X-Request-Id": request[REQUEST_ID]}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)

        def is_gone() -> bool:
            return request.transport is None or request.transport.is_closing()

        LOG.info("a recording begins")
        try:
            await RecordingStream(recordings, recording, workers, response).run(policy, wall_s, is_gone)
        except (ConnectionError, TimeoutError):
            abort(request)
        except Exception:  # the head is out: no other answer can be given any more
            LOG.exception("a recording failed")
            abort(request)
        LOG.info("a recording ends, %d requests were dropped", recording.dropped)
        return response


def abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
