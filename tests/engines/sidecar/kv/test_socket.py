"""engines.sidecar.kv.socket: messages over real sockets, in order, within bounds."""

import asyncio
import time
from collections.abc import Iterator

import pytest
import zmq

from engines.sidecar.kv.socket import Endpoint, MessageSocket


@pytest.fixture
def push() -> "Iterator[zmq.Socket[bytes]]":
    """A peer that sends."""
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDTIMEO, 2000)
    socket.bind("tcp://127.0.0.1:*")
    yield socket
    socket.close()
    context.term()


def address(socket: "zmq.Socket[bytes]") -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


async def test_messages_in_order(push: "zmq.Socket[bytes]") -> None:
    """What is sent in bursts comes whole and in order, waited for or not."""
    with MessageSocket(zmq.PULL, 1000, 1000) as pull:
        pull.attach(address(push), binds=False)
        for burst in range(5):
            for number in range(100):
                push.send_multipart([b"%d" % burst, b"%d" % number])
            for number in range(100):
                assert await pull.receive(5) == [b"%d" % burst, b"%d" % number]
            assert pull.receive_now() is None


async def test_silence(push: "zmq.Socket[bytes]") -> None:
    """Waiting ends after its time, and can go on."""
    with MessageSocket(zmq.PULL, 10, 1000) as pull:
        pull.attach(address(push), binds=False)
        assert await pull.receive(0.05) is None
        waiting = asyncio.ensure_future(pull.receive(5))
        await asyncio.sleep(0.05)
        push.send(b"late")
        assert await waiting == [b"late"]


async def test_waiting_elsewhere_costs_nothing(push: "zmq.Socket[bytes]") -> None:
    """A message that nobody reads yet does not keep the loop busy."""
    with MessageSocket(zmq.PULL, 10, 1000) as pull:
        pull.attach(address(push), binds=False)
        push.send(b"1")
        assert await pull.receive(5) == [b"1"]
        push.send(b"2")
        before = time.process_time()
        await asyncio.sleep(0.3)
        assert time.process_time() - before < 0.15
        assert pull.receive_now() == [b"2"]


async def test_too_large_a_message_ends_the_connection(push: "zmq.Socket[bytes]") -> None:
    """A message over the limit is not read, nor is anything after it: a socket made anew reads on."""
    with MessageSocket(zmq.PULL, 10, 100) as pull:
        pull.attach(address(push), binds=False)
        push.send(b"small")
        assert await pull.receive(5) == [b"small"] and pull.is_connected()
        push.send(b"x" * 101)
        assert await pull.receive(0.3) is None
        assert not pull.is_connected()
    with MessageSocket(zmq.PULL, 10, 100) as pull:
        pull.attach(address(push), binds=False)
        push.send(b"small")
        assert await pull.receive(5) == [b"small"]


async def test_connection_comes_and_goes(push: "zmq.Socket[bytes]") -> None:
    """Whether there is a peer is known, and a peer that comes back is found again."""
    with MessageSocket(zmq.PULL, 10, 100) as pull:
        endpoint = address(push)
        assert not pull.is_connected()
        pull.attach(endpoint, binds=False)
        push.send(b"1")
        assert await pull.receive(5) == [b"1"] and pull.is_connected()
        push.unbind(endpoint)
        push.close()
        await asyncio.sleep(0.1)
        assert not pull.is_connected()
        with MessageSocket(zmq.PUSH, 10, 100) as back:
            back.attach(endpoint, binds=True)
            await asyncio.sleep(0.5)  # a message that finds no peer is dropped
            back.send([b"2"])
            assert await pull.receive(5) == [b"2"] and pull.is_connected()


async def test_cancelling_a_wait(push: "zmq.Socket[bytes]") -> None:
    """A wait that is cancelled leaves the socket usable and the loop without its descriptor."""
    with MessageSocket(zmq.PULL, 10, 100) as pull:
        pull.attach(address(push), binds=False)
        waiting = asyncio.ensure_future(pull.receive(None))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        push.send(b"1")
        assert await pull.receive(5) == [b"1"]


async def test_binding() -> None:
    """It can be connected to as well, and tells where."""
    with MessageSocket(zmq.PULL, 10, 100) as pull, MessageSocket(zmq.PUSH, 10, 100) as peer:
        pull.attach("tcp://127.0.0.1:*", binds=True)
        peer.attach(pull.bound_to, binds=False)
        peer.send([b"1"])
        assert await pull.receive(5) == [b"1"]


@pytest.mark.parametrize("endpoint", ["udp://127.0.0.1:1", "tcp://nowhere", "ipc:///no/such/folder/s"])
async def test_unusable_addresses(endpoint: str) -> None:
    """An address that cannot be used is said to be that."""
    with MessageSocket(zmq.PULL, 10, 100) as pull, pytest.raises(Endpoint, match=endpoint):
        pull.attach(endpoint, binds=True)
