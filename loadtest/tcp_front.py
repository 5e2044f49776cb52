"""A TCP proxy in front of a Redis: late, or behind TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TcpFront:
    """`port` is known once it is open. Passes bytes on, `delay_s` after they came, each way; that may be changed meanwhile.

    Bytes keep their order where the delay becomes shorter: they wait for those before them.
    """

    def __init__(self, target_port: int, delay_s: float = 0.0, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self._target_port = target_port
        self.delay_s = delay_s
        self._tls = tls
        self._open: dict[asyncio.StreamWriter, asyncio.Event] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for writer, ended in list(self._open.items()):
                writer.transport.abort()
                await ended.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended = self._open[writer] = asyncio.Event()
        try:
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, back_writer))
                group.create_task(self._pass_on(back_reader, writer))
        except OSError:  # nobody behind it
            writer.close()
        finally:
            del self._open[writer]
            ended.set()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        due_s = 0.0
        try:
            while data := await reader.read(65536):
                due_s = max(due_s, loop.time() + self.delay_s)
                if due_s <= loop.time():
                    writer.write(data)
                else:
                    loop.call_at(due_s, writer.write, data)
        except OSError:
            pass
        finally:
            loop.call_at(max(due_s, loop.time() + self.delay_s), writer.close)
