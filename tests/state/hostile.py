"""Bytes that are no message, and that every decoder must refuse with BadMessage and nothing else."""

import contextlib
import random
from collections.abc import Callable, Iterator

import pytest

from router.state.frame import HEAD, BadMessage, seal


def truncations(data: bytes) -> Iterator[bytes]:
    return (data[:length] for length in range(len(data)))


def flips(data: bytes) -> Iterator[bytes]:
    """Every single bit the other way round."""
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def assert_refuses_damage(decode: Callable[[bytes], object], data: bytes) -> None:
    """Cut anywhere, longer, or with any bit flipped: the checksum sees it."""
    for damaged in (*truncations(data), *flips(data), data + b"\0", data + data, b""):
        with pytest.raises(BadMessage):
            decode(damaged)


def assert_survives_forgery(decode: Callable[[bytes], object], kind: int, data: bytes, rng: random.Random) -> None:
    """A right checksum over wrong content: a value or BadMessage."""
    body = data[HEAD.size :]
    for _ in range(200):
        forged = bytearray(body)
        for _ in range(rng.randrange(1, 6)):
            if forged:
                forged[rng.randrange(len(forged))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        if rng.random() < 0.3:
            del forged[rng.randrange(len(forged) + 1) :]
        if rng.random() < 0.3:
            forged += rng.randbytes(rng.randrange(40))
        with contextlib.suppress(BadMessage):
            decode(seal(kind, bytes(forged)))
