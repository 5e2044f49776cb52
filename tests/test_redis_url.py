"""Addresses of a Redis: every form is read, everything else is refused, and no password is ever shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import SettingsError
from router.redis_url import RedisAddress, check_redis, mask_redis, parse_redis

GOOD = [
    ("redis://a", RedisAddress((("a", 6379),))),
    ("redis://127.0.0.1:1/", RedisAddress((("127.0.0.1", 1),))),
    ("redis://[::1]:7000/3", RedisAddress((("::1", 7000),), db=3)),
    ("rediss://u:p%40%2F@a:1", RedisAddress((("a", 1),), tls=True, user="u", password="p@/")),
    ("redis://:p@a", RedisAddress((("a", 6379),), password="p")),
    ("redis://u@a", RedisAddress((("a", 6379),), user="u")),
    ("redis+sentinel://a,b:1/main", RedisAddress((("a", 26379), ("b", 1)), master="main")),
    (
        "rediss+sentinel://u:p@a/main/2?sentinel_user=s&sentinel_password=t%26",
        RedisAddress(
            (("a", 26379),), tls=True, master="main", user="u", password="p", db=2, sentinel_user="s", sentinel_password="t&"
        ),
    ),
    ("redis+cluster://u:p@a,b:7001", RedisAddress((("a", 6379), ("b", 7001)), cluster=True, user="u", password="p")),
]


@pytest.mark.parametrize(("url", "address"), GOOD)
def test_forms(url: str, address: RedisAddress) -> None:
    """One server, Sentinels with the master's name, or nodes of a cluster; percent-encoding in names and passwords."""
    assert parse_redis(url) == address
    check_redis(url)


BAD = [
    "a",
    "http://a",
    "redis:a",
    "redis://",
    "redis://a:0",
    "redis://a:99999",
    "redis://a:b",
    "redis://a,b",
    "redis://a/x",
    "redis://a/-1",
    "redis://a/1/2",
    "redis://a/99999999",
    "redis://a?db=1",
    "redis://a#x",
    "redis://a b",
    "redis://bücher",
    "redis://[::1",
    "redis+sentinel://a",
    "redis+sentinel://a/",
    "redis+sentinel://a/main?x=1",
    "redis+sentinel://a/main?sentinel_user",
    "redis+cluster://a/1",
    "redis+cluster://",
    "redis+other://a",
    "REDISX://a",
]


@pytest.mark.parametrize("url", BAD)
def test_what_is_none_is_refused(url: str) -> None:
    """The error shows what was given and what would be right."""
    with pytest.raises(SettingsError, match=r"redis: url .* is not redis://") as caught:
        check_redis(url)
    assert repr(url) in str(caught.value)


MASKED = [
    ("redis://a", "redis://a"),
    ("redis://u@a", "redis://u@a"),
    ("redis://u:secret@a/1", "redis://u:***@a/1"),
    ("redis://:secret@a", "redis://:***@a"),
    ("redis://u:sec@ret@a", "redis://u:***@a"),
    ("u:secret@a", "u:***@a"),
    ("secret@a", "***@a"),
    ("redis+sentinel://u:secret@a/m?sentinel_password=secret", "redis+sentinel://u:***@a/m?sentinel_password=***"),
    (
        "redis+sentinel://a/m?sentinel_password=secret&sentinel_user=s",
        "redis+sentinel://a/m?sentinel_password=***&sentinel_user=s",
    ),
]


@pytest.mark.parametrize(("url", "shown"), MASKED)
def test_passwords_are_masked(url: str, shown: str) -> None:
    """Also in what is no good URL."""
    assert mask_redis(url) == shown


@given(st.from_regex(r"[!-~]{0,12}", fullmatch=True))
def test_no_error_shows_a_password(password: str) -> None:
    """Whatever characters somebody forgot to encode."""
    url = f"redis://user:SECRET{password}@host:x"
    with pytest.raises(SettingsError) as caught:
        parse_redis(url)
    assert "SECRET" not in str(caught.value)


def test_addresses_are_shown_without_user_and_password() -> None:
    """What logs say of an address, and its repr."""
    address = parse_redis("redis+sentinel://u:secret@a,b/main?sentinel_password=hidden")
    assert address.shown == "a:26379,b:26379 (main)"
    assert "secret" not in repr(address) and "hidden" not in repr(address)
    assert parse_redis("redis://[::1]").shown == "[::1]:6379"


def test_none_is_fine() -> None:
    """An empty address means there is no Redis."""
    check_redis("")
