"""A member whose program reads a fixed number of messages a second, in a process of its own on the driver core.

Owns that process and the member's counts there, through the public library. Knows no publisher.
"""

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import muster
from bench import pin
from bench.child import ChildFailedError

UNREAD_BYTES: Final = 4_096
PROCESS_SECONDS: Final = 10.0
"""For its start, and for its end."""


@dataclass
class Had:
    """The member's deliveries, and its losses: because it was too slow, or for another reason."""

    messages: int = 0
    too_slow: int = 0
    otherwise_lost: int = 0

    @property
    def heard(self) -> int:
        return self.messages + self.too_slow + self.otherwise_lost

    def take(self, batch: list[muster.Item]) -> None:
        for item in batch:
            if isinstance(item, muster.Message):
                self.messages += 1
            elif isinstance(item, muster.Gap) and item.last is not None:
                lost = item.last - item.first + 1
                if item.reason == "slow":
                    self.too_slow += lost
                else:
                    self.otherwise_lost += lost


@dataclass(frozen=True)
class CatchUp:
    """From now on it reads as fast as it can, until it knows of that many messages or patience ends."""

    messages: int
    patience_seconds: float


class Slow:
    """Return the member once it has joined. Call this once."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def had(self, messages: int, patience_seconds: float) -> Had:
        """The counts of this many published messages, once it has caught up."""
        self._pipe.send(CatchUp(messages, patience_seconds))
        try:
            answer: Had = self._pipe.recv()
        except EOFError:
            raise ChildFailedError("the process of the slow member ended") from None
        return answer


@contextmanager
def slow_member(folder: Path, room: str, rate: float, join_seconds: float) -> Iterator[Slow]:
    """Reads `rate` messages a second of an instance's room while the block lasts."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_member, args=(theirs, folder, room, rate, join_seconds), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(join_seconds + PROCESS_SECONDS) or not _joined(ours):
            raise ChildFailedError("the slow member did not join")
        yield Slow(ours)
    finally:
        ours.close()
        process.join(PROCESS_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()


def _joined(pipe: Connection) -> bool:
    try:
        return bool(pipe.recv())
    except EOFError:
        return False


def _member(pipe: Connection, folder: Path, room: str, rate: float, join_seconds: float) -> None:
    pin.pin(pin.DRIVER_CORE)
    with suppress(EOFError, OSError):  # the parent is gone
        asyncio.run(_read(pipe, folder, room, rate, join_seconds))


async def _read(pipe: Connection, folder: Path, name: str, rate: float, join_seconds: float) -> None:
    opened = muster.connect(folder, proxies=[], timeout=join_seconds, buffer_bytes=UNREAD_BYTES, receive_buffer_bytes=0)
    async with opened as client, client.join(name, policy="block") as room:
        loop, told, news, had = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event(), Had()

        async def read() -> None:
            async for batch in room.batches():
                had.take(batch)
                news.set()
                with suppress(TimeoutError):  # at full speed once it is told to catch up
                    await asyncio.wait_for(told.wait(), len(batch) / rate)

        pipe.send(True)
        loop.add_reader(pipe.fileno(), told.set)
        reading = asyncio.create_task(read())
        await told.wait()
        loop.remove_reader(pipe.fileno())
        asked: CatchUp = pipe.recv()
        with suppress(TimeoutError):
            async with asyncio.timeout(asked.patience_seconds):
                while had.heard < asked.messages and not reading.done():
                    news.clear()
                    await news.wait()
        reading.cancel()
        pipe.send(had)
