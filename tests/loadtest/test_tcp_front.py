"""The proxy in front of a Redis: bytes pass in order, later by the delay, and ends are passed on."""

import asyncio

from loadtest.tcp_front import TcpFront


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


async def test_bytes_pass_after_the_delay() -> None:
    """Each way; a delay that becomes shorter lets nothing overtake what was sent before."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    front = TcpFront(server.sockets[0].getsockname()[1], delay_s=0.05)
    async with server, front.open():
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        began_s = asyncio.get_running_loop().time()
        writer.write(b"one")
        await asyncio.sleep(0.02)
        front.delay_s = 0.0
        writer.write(b"two")
        assert await reader.readexactly(6) == b"onetwo"
        assert asyncio.get_running_loop().time() - began_s >= 0.05
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def test_nobody_behind_it() -> None:
    """The connection ends."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    front = TcpFront(port)
    async with front.open():
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        assert await reader.read() == b""
        writer.close()
