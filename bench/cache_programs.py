"""Processes of the bench of the cache: they read, drop, and count their loads as they are told.

Owns the programs and their orders. It must not know figures.
"""

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import uvloop

from bench import cache_libraries as libraries
from muster.cache import Cache

LOAD_S: Final = 0.02
"""What a read of the database takes."""
PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class Together:
    """Many callers read one key at once, at this moment of the monotonic clock. The answer is the number of loads."""

    id: int
    callers: int
    at: float


@dataclass(frozen=True)
class Watch:
    """Read one key until its value is this one. Gives the moment."""

    id: int
    value: int


@dataclass(frozen=True)
class Change:
    """Write a value, and drop its key. Gives the moment at which the drop had returned."""

    id: int
    value: int


class Programs:
    """So many processes of one library."""

    def __init__(self, library: str, port: int, count: int, name: str) -> None:
        context = multiprocessing.get_context("fork")  # it has one thread, and the libraries are loaded
        self._values = context.Array("q", 1 << 16)
        """The database."""
        self.pipes: list[Connection] = []
        self._processes = []
        for _ in range(count):
            mine, theirs = context.Pipe()
            process = context.Process(target=_main, args=(theirs, library, port, name, self._values), daemon=True)
            process.start()
            self.pipes.append(mine)
            self._processes.append(process)
        for pipe in self.pipes:
            self.answer(pipe)

    def answer(self, pipe: Connection) -> Any:
        """Raises `TimeoutError`."""
        if not pipe.poll(PATIENCE_S):
            raise TimeoutError(f"a program of the bench said nothing for {PATIENCE_S} s")
        return pipe.recv()

    def ask(self, orders: Sequence[Any]) -> list[Any]:
        """An order for each, at once, and their answers."""
        for pipe, order in zip(self.pipes, orders, strict=True):
            pipe.send(order)
        return [self.answer(pipe) for pipe in self.pipes]

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _main(pipe: Connection, library: str, port: int, name: str, values: Any) -> None:
    uvloop.run(_serve(pipe, library, port, name, values))


async def _serve(pipe: Connection, library: str, port: int, name: str, values: Any) -> None:
    loads = 0

    async def load(id: int) -> int:
        nonlocal loads
        loads += 1
        value: int = values[id]
        await asyncio.sleep(LOAD_S)
        return value

    async with AsyncExitStack() as stack:
        read = await getattr(libraries, library)(stack, port, load, name)
        writer = await stack.enter_async_context(Cache(f"redis://127.0.0.1:{port}", name=name))
        pipe.send(True)
        while True:
            order = await asyncio.to_thread(pipe.recv)
            before = loads
            if isinstance(order, Together):
                await asyncio.sleep(max(0.0, order.at - time.monotonic()))
                await asyncio.gather(*(read(order.id) for _ in range(order.callers)))
                pipe.send(loads - before)
            elif isinstance(order, Watch):
                while await read(order.id) != order.value:  # noqa: ASYNC110 - it is what a program sees
                    await asyncio.sleep(0.0002)
                pipe.send(time.monotonic())
            elif isinstance(order, Change):
                values[order.id] = order.value
                await writer.drop(f"share:{order.id}")
                pipe.send(time.monotonic())
