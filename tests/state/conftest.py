"""A real Redis for whoever asks."""

from collections.abc import Iterator

import pytest

from loadtest.redis_server import RedisServer, redis_server


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server
