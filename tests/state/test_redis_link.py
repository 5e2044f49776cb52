"""Exchanges with a real Redis: answers in order, failures in their place, never longer than the limit."""

import asyncio
import time

from redis.exceptions import ResponseError

from loadtest.redis_server import RedisServer
from router.redis_url import parse_redis
from router.settings import StateSettings
from router.state.redis_health import RedisHealth
from router.state.redis_link import RedisLink
from tests.state.rig import state_of


def linked(settings: StateSettings) -> tuple[RedisLink, RedisHealth]:
    health = RedisHealth(parse_redis(settings.redis), settings.redis_timeout_s)
    return RedisLink(settings, health, "testing"), health


async def test_answers_stand_where_the_commands_stood(redis: RedisServer) -> None:
    """Lane by lane, errors of single commands among them; those say nothing about Redis as a whole."""
    link, health = linked(state_of(redis))
    answers = await link.execute({3: [("SET", "a", 1), ("GET", "a")], 1: [("XADD", "a", "*", "k", "v"), ("GET", "b")]})
    assert answers[3] == [b"OK", b"1"] and answers[1][1] is None
    assert isinstance(answers[1][0], ResponseError) and health.errors == {"reply": 1} and not health.is_lost
    assert await link.execute({}) == {}
    await link.close()


async def test_answers_come_as_they_are(redis: RedisServer) -> None:
    """No client library's idea of a stream entry, which would cost more than reading it."""
    link, _ = linked(state_of(redis))
    await link.execute({0: [("XADD", "s", "1-1", "d", b"\xff")]})
    answers = await link.execute({0: [("XREAD", "COUNT", 9, "STREAMS", "s", "0")]})
    assert answers[0] == [[[b"s", [[b"1-1", [b"d", b"\xff"]]]]]]
    await link.close()


async def test_an_outage_is_an_answer_to_every_command(redis: RedisServer) -> None:
    """Within the limit; every new connection is counted."""
    link, health = linked(state_of(redis, redis_timeout_s=0.2))
    await link.execute({0: [("PING",)]})
    redis.pause()
    began_s = time.monotonic()
    answers = await link.execute({0: [("PING",)] * 2, 1: [("PING",)]})
    assert time.monotonic() - began_s < 0.5
    assert all(isinstance(answer, Exception) for found in answers.values() for answer in found)
    assert health.is_lost and health.errors == {"timeout": 1} and link.connects == 1
    redis.resume()
    assert (await link.execute({0: [("PING",)]}))[0] == [b"PONG"] and link.connects == 2
    redis.kill()
    assert isinstance((await link.execute({0: [("PING",)]}))[0][0], Exception)
    redis.start()
    await link.execute({0: [("PING",)]})
    assert link.connects == 3
    redis.kill()
    redis.start()
    await asyncio.sleep(0.1)
    assert (await link.execute({0: [("PING",)]}))[0] == [b"PONG"] and link.connects == 4, "also one that nobody noticed"
    await link.close()


async def test_nobody_there_is_an_answer_too() -> None:
    """A port that refuses, a name that nobody has, one that no resolver takes."""
    for url in ("redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/m", "redis://" + "a" * 70):
        link, health = linked(StateSettings(redis=url, redis_timeout_s=0.5))
        (answer,) = (await link.execute({0: [("PING",)]}))[0]
        assert isinstance(answer, Exception) and health.is_lost, url
        await link.close()
