"""Moves the bitmaps of a Redis into likes: `muster likes import`.

Owns the reading of bitmaps and the file of moved keys. A key is added to the file once all its likes are acknowledged,
so an interrupted import continues with the others. A like is set, never toggled, so likes of an interrupted key count
once. A bit of 0 removes no like.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from redis.asyncio import Redis

from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.likes.client import Likes

CHUNK_BYTES: Final = 1 << 17
"""Bytes of a bitmap that are read at once: at most a million users."""
PIPELINE: Final = 1_000
SCAN: Final = 1_000


class Done:
    """The moved keys, in a file that grows by a line for each. Raises `OSError`."""

    def __init__(self, file: Path) -> None:
        # A last line without a line feed was cut by a crash: its key is moved again.
        self._keys = set(file.read_bytes().split(b"\n")[:-1]) if file.exists() else set[bytes]()
        self._writing = file.open("ab")

    def __contains__(self, key: bytes) -> bool:
        return key.hex().encode() in self._keys

    def add(self, key: bytes) -> None:
        """Add a key to the file."""
        self._writing.write(key.hex().encode() + b"\n")
        self._writing.flush()

    def close(self) -> None:
        """Close the file."""
        self._writing.close()


class Keys(Protocol):
    """The moved keys."""

    def __contains__(self, key: bytes) -> bool: ...

    def add(self, key: bytes) -> None:
        """Add a key."""


class Moving:
    """One run. `keys`: moved by it; `before`: moved by earlier runs; `of`: all matching keys; `likes`: sent; `new`: did
    not exist before."""

    def __init__(self, source: Redis, target: Likes, done: Keys) -> None:
        self.keys = self.before = self.of = self.likes = self.new = 0
        self._source, self._target, self._done = source, target, done

    async def run(self, pattern: str, progress: Callable[[], None] = lambda: None) -> None:
        """Move every string that matches. Raises `RedisError` of the source, `StoreError`, and `OSError` of the file.

        After any of them another run continues with the remaining keys.
        """
        # A scan may return a key twice.
        found = dict.fromkeys([key async for key in self._source.scan_iter(pattern, SCAN, "string")])
        keys = [bytes(key) for key in found if key not in self._done]
        self.of, self.before = len(found), len(found) - len(keys)
        for key in keys:
            async for users in self._users(key):
                for at in range(0, len(users), PIPELINE):
                    await self._put(key, users[at : at + PIPELINE])
                    progress()
            self._done.add(key)
            self.keys += 1
            progress()

    async def _put(self, key: bytes, users: list[int]) -> None:
        for was in await self._target.put_all([(key, user, True) for user in users]):
            if isinstance(was, StoreError):
                raise was
            self.likes += 1
            self.new += not was

    async def _users(self, key: bytes) -> AsyncIterator[list[int]]:
        """The positions of all bits of 1. Redis's bit 0 is the highest of the first byte."""
        length, at = await self._source.strlen(key), 0
        while at < length:
            chunk = bytes(await self._source.getrange(key, at, at + CHUNK_BYTES - 1))  # type: ignore[arg-type]
            if not chunk:  # it was shortened or deleted meanwhile
                return
            bits = np.unpackbits(np.frombuffer(chunk, dtype=np.uint8))
            users: list[int] = (np.flatnonzero(bits) + 8 * at).tolist()
            yield users
            at += len(chunk)
