"""Level 2: entries, tokens and marks of keys, in a Redis or, for one process alone, in memory.

A level 2 knows neither values nor flights. Times are seconds.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Literal, Protocol

from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as Silent

from ..errors import Unavailable
from ..redis.connections import Opened, apart, opened
from ..redis.scripts import run
from ..redis.where import Where
from . import scripts
from .entry import LIFE, Found, found
from .gets import Gets

CALLS_MAX: Final = 50
"""Limit of concurrent calls, each on a connection of its own; further ones wait."""
AWAY_S: Final = 0.5
"""Pause after a call without an answer; calls during it fail at once."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of a miss. `yours`: load, and fill with the token. `marked` and `away`: load, and store nothing."""

    kind: Literal["yours", "marked", "away", "wait", "there"]
    entry: Found | None = None
    wait_s: float = 0.0
    primary: bool = False
    """True: the load must read the primary."""


class Far(Protocol):
    """The interface of level 2. Every call may raise `Unavailable`."""

    async def get(self, key: str) -> Found | None: ...

    async def take(self, key: str, token: str, lock_s: float, seen: bytes) -> Taken:
        """Request the token of a key, unless an entry other than `seen` is there."""
        ...

    async def fill(self, key: str, token: str, kept_ms: int, rest: bytes) -> bytes:
        """End a load. Returns the new entry's name, or nothing if the token had lapsed. `kept_ms` 0 only returns the
        token."""
        ...

    async def change(self, keys: Sequence[str], writer: str, mark_s: float, hold_s: float, told: str) -> None:
        """Drop the keys, and set a writer's mark or remove it."""
        ...

    async def renew(self, keys: Sequence[str], writer: str, mark_s: float, hold_s: float) -> bool:
        """Extend marks; returns False if one has lapsed."""
        ...

    async def close(self) -> None: ...


class InRedis:
    """A level 2 in a Redis: one server, one behind sentinels, or a cluster."""

    def __init__(
        self, where: Where, password: str, name: str, seconds: float, *, tells: bool, on_life: Callable[[], None]
    ) -> None:
        self._where, self._password, self._seconds = where, password, seconds
        self._prefix = f"muster:cache:{{{name}:"
        self.channel = f"muster:cache:{name}"
        self._tells = tells
        """True: the script publishes each drop."""
        self._on_life = on_life
        self._lives: dict[bytes, float] = {}
        """For each `master_replid`: the time of its Redis minus the local time, in ms."""
        self.suspects = 0
        """Entries of another life that were not served."""
        self._calls = asyncio.Semaphore(CALLS_MAX)
        self._opened: Opened | None = None
        self._gets = None if self.is_cluster else Gets(self.apart, seconds)
        self._away_until = 0.0

    @property
    def _client(self) -> Any:
        if self._opened is None:
            self._opened = opened(self._where, self._password, self._seconds, self._connected)
        return self._opened.client

    @property
    def is_cluster(self) -> bool:
        return self._where.kind == "cluster"

    def names(self, key: str) -> tuple[str, str]:
        """Names of a key's entry and state, which share one slot."""
        entry = f"{self._prefix}{key}}}"
        return entry, f"{entry}:w"

    async def get(self, key: str) -> Found | None:
        name = f"{self._prefix}{key}}}"
        if self._gets is None:
            entry = await self._asked(self._client.get, name)
        else:
            if self._away_until > monotonic():
                raise self._silent()
            try:
                entry = await self._gets.get(name.encode())
            except (OSError, TimeoutError) as error:
                raise self._unavailable(error) from error
        return None if entry is None else self._read(entry)

    def _read(self, entry: bytes) -> Found | None:
        ahead_ms = self._lives.get(entry[LIFE])
        if ahead_ms is None or entry[:1] != b"1":
            self.suspects += 1
            return None
        return found(entry, monotonic() * 1e3 + ahead_ms)

    async def take(self, key: str, token: str, lock_s: float, seen: bytes) -> Taken:
        said = await self._run(scripts.TAKE, self.names(key), token, int(lock_s * 1e3), seen)
        kind = said[0].decode()
        if kind == "there":
            entry = self._read(said[1])
            # This process has not met the life of this entry: its next connection learns it.
            return Taken("wait", wait_s=AWAY_S) if entry is None else Taken(kind, entry=entry)
        if kind == "wait":
            return Taken(kind, wait_s=said[1] / 1e3)
        return Taken(kind, primary=kind == "marked" or said[1] == 1)

    async def fill(self, key: str, token: str, kept_ms: int, rest: bytes) -> bytes:
        made: bytes = await self._run(scripts.FILL, self.names(key), token, kept_ms, rest)
        return made

    async def change(self, keys: Sequence[str], writer: str, mark_s: float, hold_s: float, told: str) -> None:
        async def some(part: Sequence[str]) -> None:
            names = [name for key in part for name in self.names(key)]
            channel = self.channel if self._tells else ""
            message = json.dumps([told, *part], separators=(",", ":"), ensure_ascii=False)
            await self._run(scripts.CHANGE, names, writer, int(mark_s * 1e3), int(hold_s * 1e3), channel, message)

        await self._in_parts(keys, some)

    async def renew(self, keys: Sequence[str], writer: str, mark_s: float, hold_s: float) -> bool:
        kept: list[bool] = []

        async def some(part: Sequence[str]) -> None:
            names = [name for key in part for name in self.names(key)]
            kept.append(await self._run(scripts.RENEW, names, writer, int(mark_s * 1e3), int(hold_s * 1e3)) == 1)

        await self._in_parts(keys, some)
        return all(kept)

    async def _in_parts(self, keys: Sequence[str], some: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        """Run one script for all keys where one server has them; else one script per key, all of them even if one
        fails."""
        if not self.is_cluster:
            await some(keys)
            return
        failed = [
            each
            for each in await asyncio.gather(*(some([key]) for key in keys), return_exceptions=True)
            if isinstance(each, BaseException)
        ]
        if failed:
            raise failed[0]

    async def beat(self, channel: str, number: int) -> list[str]:
        """Publish a heartbeat through each server that accepts drops: the number, and the server's name. Returns all
        servers."""
        client, nodes = self._client, [None]
        names: list[str] = []
        if self.is_cluster:
            await self._asked(client.initialize)
            nodes = client.get_primaries()
        for node in nodes:
            where: dict[str, Any] = {} if node is None else {"target_nodes": node}
            names.append("" if node is None else node.name)
            said = await self._run(scripts.BEAT, (), channel, f"{number} {names[-1]}", **where)
            if said[2] != b"master":
                if self._gets is not None:
                    await self._gets.close()
                    await client.connection_pool.disconnect()
                raise self._unavailable("the server has become a replica")
            self._heard(said[0], said[1])
        return names

    async def apart(self) -> Any:
        """A connection for messages that the server pushes."""
        try:
            async with asyncio.timeout(2 * self._seconds):
                return await apart(self._client)
        except (RedisError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    async def state(self, key: str) -> dict[str, Any]:
        """Whether a load is in progress, and how many writers have marks."""
        fields: dict[bytes, bytes] = await self._asked(self._client.hgetall, self.names(key)[1])
        now_ms = monotonic() * 1e3 + next(iter(self._lives.values()), 0.0)
        marks = [name for name, till in fields.items() if name.startswith(b"m:") and int(till) > now_ms]
        return {"loading": b"t" in fields and int(fields[b"u"]) > now_ms, "marks": len(marks)}

    async def about(self) -> dict[str, Any]:
        """Description of the Redis, for people."""
        await self.beat("", 0)
        channel = self.channel.encode()
        heard = await self._asked(self._client.execute_command, "PUBSUB", "NUMSUB", channel)
        listeners = heard.get(channel, 0) if isinstance(heard, dict) else int(dict([heard]).get(channel, 0))
        policy: dict[str, str] = await self._asked(self._client.config_get, "maxmemory*")
        memory = {_text(name): _text(value) for name, value in policy.items()}
        return {
            "redis": self._shown,
            "lives": sorted(life.decode() for life in self._lives),
            "processes": listeners,
            "maxmemory": int(memory.get("maxmemory", "0")),
            "maxmemory_policy": memory.get("maxmemory-policy", ""),
        }

    async def close(self) -> None:
        if self._gets is not None:
            await self._gets.close()
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    # --- lives --------------------------------------------------------------------------------------------------------

    async def _connected(self, connection: Any) -> None:
        """Learn the life and the time of a server before its first answer."""
        await connection.send_command("INFO", "replication")
        info = await connection.read_response()
        await connection.send_command("TIME")
        seconds, microseconds = await connection.read_response()
        told = dict(line.partition(b":")[::2] for line in bytes(info).split(b"\r\n"))
        if told[b"role"] != b"master":
            if self.is_cluster:
                return
            raise Unreachable("this server is a replica, which accepts no drops")
        if self._lives.pop(told.get(b"master_replid2", b""), None) is not None:
            self._on_life()
        self._heard(int(seconds) * 1_000 + int(microseconds) // 1_000, told[b"master_replid"])

    def _heard(self, now_ms: int, life: bytes) -> None:
        if life not in self._lives and self._lives:
            if not self.is_cluster:
                self._lives.clear()
            self._on_life()
        self._lives[life] = now_ms - monotonic() * 1e3

    def age_ms(self, at_ms: float) -> float:
        """Age of a time of the Redis's clock, in ms, as far as this process knows that clock."""
        ahead_ms = next(iter(self._lives.values()), None)
        return 0.0 if ahead_ms is None else max(0.0, monotonic() * 1e3 + ahead_ms - at_ms)

    # --- calls --------------------------------------------------------------------------------------------------------

    async def _run(self, script: str, names: Sequence[str], *words: Any, **where: Any) -> Any:
        async def call(client: Any) -> Any:
            return await run(client.execute_command, script, names, words, **where)

        return await self._asked(call, self._client)

    async def _asked(self, call: Callable[..., Awaitable[Any]], *words: Any) -> Any:
        if self._away_until > monotonic():
            raise self._silent()
        try:
            async with self._calls:
                return await call(*words)
        except (RedisError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    def _silent(self) -> Unavailable:
        return Unavailable(f"the Redis of the cache does not answer: {self._shown}")

    def _unavailable(self, error: object) -> Unavailable:
        if isinstance(error, (OSError, TimeoutError, Unreachable, Silent)):
            self._away_until = monotonic() + AWAY_S
        return Unavailable(f"the Redis of the cache does not answer: {self._shown}: {error}")

    @property
    def _shown(self) -> str:
        places = ", ".join(f"{host}:{port}" for host, port in self._where.places)
        return f"{self._where.master} at sentinels {places}" if self._where.kind == "sentinel" else places


def _text(word: bytes | str) -> str:
    return word.decode() if isinstance(word, bytes) else word
