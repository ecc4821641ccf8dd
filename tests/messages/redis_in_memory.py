"""A Redis in memory for the simulator: the real scripts in a real Lua, over the commands that they use."""

import bisect
import copy
import struct
from collections.abc import Callable, Sequence
from typing import Any

from lupa.lua51 import LuaRuntime  # type: ignore[import-untyped]

WIDTHS = {b"<I4": "<I", b"<I8": "<Q"}


class RedisInMemory:
    """One server. `clock`: milliseconds since 1970, as `TIME` tells them."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.data: dict[bytes, Any] = {}
        self._ends: dict[bytes, int] = {}
        self._lua: Any = LuaRuntime(encoding=None)
        self._scripts: dict[str, Any] = {}
        self._list = self._lua.eval(b"function(...) return {...} end")
        self._call = self._lua.eval(
            b"""function(call, unpacked)
              redis = {call = call}
              struct = {unpack = unpacked}
            end"""
        )
        self._call(self._called, lambda kind, text, at: struct.unpack_from(WIDTHS[kind], text, int(at) - 1)[0])

    def keep(self) -> Any:
        """Its present content."""
        return copy.deepcopy((self.data, self._ends))

    def come_back_with(self, kept: Any) -> None:
        """It has what it had then."""
        self.data, self._ends = copy.deepcopy(kept)

    def run(self, script: str, key: str, arguments: Sequence[Any]) -> Any:
        """As `EVAL` of one key."""
        made = self._scripts.get(script)
        if made is None:
            made = self._scripts[script] = self._lua.eval(b"function(KEYS, ARGV) " + script.encode() + b" end")
        said = made(self._list(key.encode()), self._list(*map(_bytes, arguments)))
        return self._plain(said)

    def _plain(self, said: Any) -> Any:
        if said is None or isinstance(said, (bytes, int)):
            return said
        if isinstance(said, float):
            return int(said)
        return [self._plain(said[place]) for place in range(1, len(said) + 1)]

    # --- commands -------------------------------------------------------------------------------------------------

    def _called(self, command: bytes, key: Any = b"", *words: Any) -> Any:
        name = _bytes(key)
        if (end := self._ends.get(name)) is not None and end <= self._clock():
            self.data.pop(name, None)
            del self._ends[name]
        return getattr(self, f"_{command.decode().lower()}")(name, *map(_bytes, words))

    def _time(self, _: bytes) -> Any:
        now = self._clock()
        return self._list(str(now // 1_000).encode(), str(now % 1_000 * 1_000).encode())

    def _get(self, key: bytes) -> Any:
        return self.data.get(key, False)

    def _set(self, key: bytes, value: bytes, *words: bytes) -> Any:
        if words == (b"NX",) and key in self.data:
            return False
        self.data[key] = value
        self._ends.pop(key, None)
        if words and words[0] == b"PX":
            self._ends[key] = self._clock() + int(words[1])
        return b"OK"

    def _del(self, key: bytes) -> Any:
        self._ends.pop(key, None)
        return int(self.data.pop(key, None) is not None)

    def _getrange(self, key: bytes, first: bytes, last: bytes) -> Any:
        value: bytes = self.data.get(key, b"")
        return value[int(first) :] if last == b"-1" else value[int(first) : int(last) + 1]

    def _setrange(self, key: bytes, at: bytes, part: bytes) -> Any:
        value: bytes = self.data.get(key, b"")
        self.data[key] = value[: int(at)] + part + value[int(at) + len(part) :]
        return len(self.data[key])

    def _incrby(self, key: bytes, by: bytes) -> Any:
        self.data[key] = b"%d" % (int(self.data.get(key, b"0")) + int(by))
        return int(self.data[key])

    def _sadd(self, key: bytes, member: bytes) -> Any:
        self.data.setdefault(key, set()).add(member)
        return 1

    def _smembers(self, key: bytes) -> Any:
        return self._list(*sorted(self.data.get(key, ())))

    def _zadd(self, key: bytes, *words: bytes) -> Any:
        self.data.setdefault(key, {}).update(zip(words[1::2], map(float, words[::2]), strict=True))
        return 1

    def _zrem(self, key: bytes, member: bytes) -> Any:
        there = self.data.get(key, {})
        found = there.pop(member, None) is not None
        if not there:
            self.data.pop(key, None)
        return int(found)

    def _zscore(self, key: bytes, member: bytes) -> Any:
        score = self.data.get(key, {}).get(member)
        return False if score is None else b"%d" % int(score)

    def _scan(self, cursor: bytes, _match: bytes, pattern: bytes, _count: bytes, count: bytes) -> Any:
        keys = sorted(key for key in self.data if key.startswith(pattern.removesuffix(b"*")))
        following = int(cursor) + int(count)
        return self._list(
            b"%d" % (following if following < len(keys) else 0), self._list(*keys[int(cursor) : following])
        )

    def _zcard(self, key: bytes) -> Any:
        return len(self.data.get(key, ()))

    def _zcount(self, key: bytes, low: bytes, high: bytes) -> Any:
        return len(self._between(key, low, high))

    def _zrange(self, key: bytes, first: bytes, last: bytes) -> Any:
        return self._list(*[member for _, member in self._order(key)[int(first) : int(last) + 1]])

    def _zrangebyscore(self, key: bytes, low: bytes, high: bytes, *words: bytes) -> Any:
        found = self._between(key, low, high)
        if b"LIMIT" in words:
            at = words.index(b"LIMIT")
            found = found[int(words[at + 1]) :][: int(words[at + 2])]
        if b"WITHSCORES" in words:
            return self._list(*[each for score, member in found for each in (member, b"%d" % int(score))])
        return self._list(*[member for _, member in found])

    def _order(self, key: bytes) -> list[tuple[float, bytes]]:
        return sorted((score, member) for member, score in self.data.get(key, {}).items())

    def _between(self, key: bytes, low: bytes, high: bytes) -> list[tuple[float, bytes]]:
        order = self._order(key)
        first = 0 if low == b"-inf" else bisect.bisect_left(order, (float(low.lstrip(b"(")), b""))
        if low.startswith(b"("):
            first = bisect.bisect_left(order, (float(low[1:]) + 0.5, b""))
        last = len(order) if high == b"+inf" else bisect.bisect_left(order, (float(high) + 0.5, b""))
        return order[first:last]


def _bytes(word: Any) -> bytes:
    if isinstance(word, bytes):
        return word
    if isinstance(word, float):
        return b"%d" % int(word)
    return str(word).encode()
