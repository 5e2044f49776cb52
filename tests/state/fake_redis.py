"""A Redis in a dict, for tests in virtual time: the commands that the state uses, and the ways in which they fail."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError

from router.state.batch import Command

WRONG = "WRONGTYPE Operation against a key holding the wrong kind of value"


def raw(value: str | bytes | int | float) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def id_of(text: str | bytes | int | float) -> tuple[int, int]:
    first, _, second = raw(text).partition(b"-")
    return int(first), int(second)


class FakeRedis:
    """`is_full` refuses what needs memory; `fail` may put an exception in place of a command."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.values: dict[bytes, Any] = {}
        self.expires_s: dict[bytes, float] = {}
        self.last_ids: dict[bytes, tuple[int, int]] = {}
        self.is_full = False
        self.fail: Callable[[Command], Exception | None] = lambda command: None
        self._clock = clock

    def execute(self, plan: Mapping[int, Sequence[Command]]) -> dict[int, list[Any]]:
        return {lane: [self._answer(command) for command in commands] for lane, commands in plan.items()}

    def flush(self) -> None:
        self.values.clear()
        self.expires_s.clear()
        self.last_ids.clear()

    def _answer(self, command: Command) -> Any:
        failure = self.fail(command)
        if failure is not None:
            return failure
        for key in [key for key, at_s in self.expires_s.items() if at_s <= self._clock()]:
            self._unlink(key)
        name, *words = command
        if self.is_full and name in ("SET", "XADD", "RPUSH", "ZADD"):
            return OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")
        try:
            return getattr(self, f"_{str(name).lower()}")(*map(raw, words))
        except ResponseError as error:
            return error

    def _typed(self, key: bytes, kind: type) -> Any:
        value = self.values.get(key)
        if value is not None and not isinstance(value, kind):
            raise ResponseError(WRONG)
        return value

    def _set(self, key: bytes, value: bytes, _px: bytes, ttl_ms: bytes) -> bytes:
        self.values[key] = value
        self.expires_s[key] = self._clock() + int(ttl_ms) / 1000
        return b"OK"

    def _mget(self, *keys: bytes) -> list[bytes | None]:
        found = [self.values.get(key) for key in keys]
        return [value if isinstance(value, bytes) else None for value in found]

    def _xadd(self, key: bytes, _maxlen: bytes, _about: bytes, limit: bytes, entry_id: bytes, *fields: bytes) -> bytes:
        entries = self._typed(key, tuple) or ()
        if id_of(entry_id) <= self.last_ids.get(key, (0, 0)):
            raise ResponseError("The ID specified in XADD is equal or smaller than the target stream top item")
        self.last_ids[key] = id_of(entry_id)
        self.values[key] = (*entries, (entry_id, list(fields)))[-int(limit) :]
        return entry_id

    def _xread(self, _count: bytes, count: bytes, _streams: bytes, *words: bytes) -> list[Any] | None:
        half = len(words) // 2
        found = []
        for key, position in zip(words[:half], words[half:], strict=True):
            entries = [entry for entry in self._typed(key, tuple) or () if id_of(entry[0]) > id_of(position)]
            if entries:
                found.append([key, [list(entry) for entry in entries[: int(count)]]])
        return found or None

    def _xrevrange(self, key: bytes, *_: bytes) -> list[Any]:
        return [list(entry) for entry in (self._typed(key, tuple) or ())[-1:]]

    def _rpush(self, key: bytes, value: bytes) -> int:
        values = self._typed(key, list) or []
        self.values[key] = [*values, value]
        return len(values) + 1

    def _lrange(self, key: bytes, first: bytes, last: bytes) -> list[bytes]:
        found: list[bytes] = (self._typed(key, list) or [])[int(first) : int(last) + 1]
        return found

    def _rename(self, old: bytes, new: bytes) -> bytes:
        if old not in self.values:
            raise ResponseError("no such key")
        self.values[new] = self.values.pop(old)
        return b"OK"

    def _unlink(self, *keys: bytes) -> int:
        for key in keys:
            self.values.pop(key, None)
            self.expires_s.pop(key, None)
            self.last_ids.pop(key, None)
        return len(keys)

    def _pexpire(self, key: bytes, _ttl_ms: bytes) -> int:
        return int(key in self.values)

    def _zadd(self, key: bytes, score: bytes, member: bytes) -> int:
        self.values.setdefault(key, {})[member] = float(score)
        return 1

    def _zrem(self, key: bytes, member: bytes) -> int:
        self.values.get(key, {}).pop(member, None)
        return 1
