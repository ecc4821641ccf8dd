"""A process that reads and writes through a cache, and judges each read: `python -m tests.cache.program FILE URL NUMBER`.

The file is the database: per key what is committed, and what is committed and dropped. Each key has one process that writes
it. A strict read gets at least what was dropped before it began; so does a plain one of the process that wrote the key.
"""

import asyncio
import mmap
import random
import sys
import time
from pathlib import Path
from typing import Final

import uvloop

from muster.cache import Cache, MarkLapsed, Unavailable, where

PROCESSES: Final = 4
KEYS: Final = 16
READERS: Final = 8
MARK_S: Final = 1.0
LAG_NS: Final = 100_000_000
"""A replica is behind for this time, which is shorter than the hold."""
FIELDS: Final = ("committed", "committed_ns", "dropped", "reads", "writes", "wrong")


class Table:
    """A file of numbers that processes share: one list for each field."""

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(bytes(8 * KEYS * len(FIELDS)))
        with file.open("r+b") as opened:
            self._memory = mmap.mmap(opened.fileno(), 0)
        numbers = memoryview(self._memory).cast("Q")
        self.of = {field: numbers[place * KEYS : (place + 1) * KEYS] for place, field in enumerate(FIELDS)}

    def sum(self, field: str) -> int:
        return sum(self.of[field])


async def main(file: Path, url: str, number: int) -> None:
    table = Table(file)
    committed, committed_ns, dropped = table.of["committed"], table.of["committed_ns"], table.of["dropped"]
    async with Cache(url, name="processes", mark_s=MARK_S, hold_s=0.5, near_lease_s=3.0) as cache:

        @cache.cached("key:{key}", fresh_s=5, stale_s=5)
        async def value(key: int) -> int:
            version = committed[key]
            if version and not where.primary and time.monotonic_ns() < committed_ns[key] + LAG_NS:
                version -= 1  # from a replica
            await asyncio.sleep(random.random() * 0.01)
            return version

        async def read() -> None:
            while True:
                key = random.randrange(KEYS)
                need = dropped[key]
                own = key % PROCESSES == number and random.random() < 0.5
                got = await (value(key) if own else value.strict(key))
                table.of["reads"][number] += 1
                if got < need:
                    table.of["wrong"][number] += 1
                    print(f"{'own' if own else 'strict'} {key}: {got} < {need}", flush=True)
                elif random.random() < 0.3:
                    await value(random.randrange(KEYS))

        async def write(key: int) -> None:
            while True:
                await asyncio.sleep(random.random() * 0.2)
                try:
                    async with cache.changing(f"key:{key}") as change:
                        await asyncio.sleep(random.random() * 0.01)
                        change.check()
                        committed[key] += 1
                        committed_ns[key] = time.monotonic_ns()
                    dropped[key] = committed[key]
                    table.of["writes"][number] += 1
                except (Unavailable, MarkLapsed):
                    continue

        own = [write(key) for key in range(KEYS) if key % PROCESSES == number]
        await asyncio.gather(*own, *(read() for _ in range(READERS)))


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
