"""Two programs for each library of a bench: one reads, the other publishes. They stay for the whole bench.

Owns the processes, the orders that they take, the form of messages and their check. It knows no library: each of them is a
`Library`. A program connects for one sample, and closes everything at its end.
"""

import asyncio
import ctypes
import multiprocessing
import os
import struct
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

import numpy as np
import uvloop

from bench import pin
from bench.child import ChildFailedError

HEAD: Final = struct.Struct("<QQ")
"""A message's number in its sample, from 0 on, and the moment of its publish: ns of the monotonic clock."""
REST: Final = bytes(range(32, 127)) * 15
"""Fills each message up to the size of the payload."""
PATIENCE_S: Final = 10.0
"""Messages that have not come when nothing came for so long are lost."""
LOOK_S: Final = 0.01
ANSWER_S: Final = 120.0
MONOTONIC, NONBLOCK = 1, 0o4000  # of timerfd_create

Take = Callable[[bytes], None]


class Publisher(Protocol):
    """A connection that publishes to one room."""

    async def publish(self, data: bytes) -> None:
        """Hand one message to the library, and wait for what the library waits for."""

    async def publish_all(self, messages: Callable[[], bytes | None], in_flight: int) -> None:
        """Publish until there is none, with this many under way; return once the server has said that it has all."""


class Library(Protocol):
    """A client library and where its server is. Goes to another process."""

    async def read(self, stack: AsyncExitStack, room: str, takes: Sequence[Take]) -> None:
        """Open a connection of its own for each `take`, which gets the data of each message of the room."""

    async def publisher(self, stack: AsyncExitStack, room: str) -> Publisher:
        """Open a connection that publishes."""


@dataclass(frozen=True)
class Reading:
    """An order: read the room."""

    room: str
    readers: int
    payload_bytes: int


@dataclass(frozen=True)
class Upto:
    """An order: wait until each reader has so many messages more, and tell of them. Any other order is the end."""

    messages: int


@dataclass(frozen=True)
class Publishing:
    """An order: publish `warm_up` messages, and after another order `count`, at `rate` a second, or with
    `in_flight` under way at once. A third order ends it."""

    room: str
    payload_bytes: int
    warm_up: int
    count: int
    rate: float
    in_flight: int


GO: Final = "go"
"""An order: go on."""


@dataclass(frozen=True)
class Heard:
    """The messages of all readers. `wrong`: messages out of turn, with other content, and announced losses."""

    messages: int
    wrong: int
    cpu_ns: int
    ages_us: Sequence[float]


@dataclass(frozen=True)
class Published:
    """The cost of publishing. `late_us`: the delay behind the schedule, its 99th percentile."""

    cpu_ns: int
    seconds: float
    late_us: float


class Program:
    """One of the processes."""

    def __init__(self, library: Library) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_program, args=(theirs, library, pin.DRIVER_CORE), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, order: object) -> Any:
        """Give an order and wait for its answer. Raises `ChildFailedError`."""
        try:
            self._pipe.send(order)
            if self._pipe.poll(ANSWER_S):
                answer = self._pipe.recv()
                if not isinstance(answer, BaseException):
                    return answer
                raise ChildFailedError(f"a program of the bench: {answer!r}")
            raise ChildFailedError(f"a program of the bench did not answer for {ANSWER_S:g} s")
        except (EOFError, BrokenPipeError):
            self._process.join(1.0)
            raise ChildFailedError(f"a program of the bench ended with {self._process.exitcode}") from None

    def stop(self) -> None:
        """End it."""
        self._pipe.close()
        self._process.join(10.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class Reader:
    """Counts and checks the messages of one reader."""

    def __init__(self, payload_bytes: int) -> None:
        self._rest = REST[: payload_bytes - HEAD.size]
        self.next = 0
        self.messages = self.wrong = 0
        self.ages_us: list[float] = []

    def take(self, data: bytes) -> None:
        """A message, or what stands for a loss."""
        now = time.monotonic_ns()
        if len(data) < HEAD.size:
            self.wrong += 1
            return
        number, published = HEAD.unpack_from(data)
        if number != self.next or data[HEAD.size :] != self._rest:
            self.wrong += 1
        self.next = number + 1
        self.messages += 1
        self.ages_us.append((now - published) / 1_000)


def _program(pipe: Connection, library: Library, core: int) -> None:
    """The process: carries out orders until its parent ends it."""
    pin.pin(core)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        while True:
            try:
                order = pipe.recv()
            except EOFError:
                return
            work = _read if isinstance(order, Reading) else _publish
            try:
                runner.run(work(pipe, library, order))
            except Exception as error:
                pipe.send(ChildFailedError(repr(error)))


async def _order(pipe: Connection) -> Any:
    """The next order; the loop goes on meanwhile."""
    loop, came = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pipe.fileno(), came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(pipe.fileno())
        os.set_blocking(pipe.fileno(), True)
    return pipe.recv()


async def _read(pipe: Connection, library: Library, order: Reading) -> None:
    readers = [Reader(order.payload_bytes) for _ in range(order.readers)]
    async with AsyncExitStack() as stack:
        await library.read(stack, order.room, [reader.take for reader in readers])
        pipe.send(True)
        while True:
            began_ns = time.process_time_ns()
            upto = await _order(pipe)
            if not isinstance(upto, Upto):
                break
            await _until(readers, upto.messages)
            spent_ns = time.process_time_ns() - began_ns
            ages = [age for reader in readers for age in reader.ages_us]
            counts = (sum(each.messages for each in readers), sum(each.wrong for each in readers))
            pipe.send(Heard(*counts, spent_ns, ages))
            for reader in readers:
                reader.messages = reader.wrong = 0
                reader.ages_us.clear()
    pipe.send(True)


async def _until(readers: Sequence[Reader], messages: int) -> None:
    """Return once all have so many, or nothing more comes."""
    before, since = -1, time.monotonic()
    while any(reader.messages < messages for reader in readers) and time.monotonic() - since < PATIENCE_S:
        count = sum(reader.messages for reader in readers)
        if count != before:
            before, since = count, time.monotonic()
        await asyncio.sleep(LOOK_S)


async def _publish(pipe: Connection, library: Library, order: Publishing) -> None:
    async with AsyncExitStack() as stack:
        publisher = await library.publisher(stack, order.room)
        how = _paced if order.rate else _in_flight
        await how(publisher, order, range(order.warm_up))
        pipe.send(True)
        await _order(pipe)
        began_ns, began = time.process_time_ns(), time.monotonic()
        late_us = await how(publisher, order, range(order.warm_up, order.warm_up + order.count))
        pipe.send(Published(time.process_time_ns() - began_ns, time.monotonic() - began, late_us))
        await _order(pipe)
    pipe.send(True)


def _payload(number: int, size: int) -> bytes:
    return HEAD.pack(number, time.monotonic_ns()) + REST[: size - HEAD.size]


async def _in_flight(publisher: Publisher, order: Publishing, numbers: range) -> float:
    left = iter(numbers)

    def another() -> bytes | None:
        number = next(left, None)
        return None if number is None else _payload(number, order.payload_bytes)

    await publisher.publish_all(another, order.in_flight)
    return 0.0


async def _paced(publisher: Publisher, order: Publishing, numbers: range) -> float:
    """By the kernel's timer, since those of the loop count in milliseconds."""
    loop, ticked = asyncio.get_running_loop(), asyncio.Event()
    timer = _timer(order.rate)
    loop.add_reader(timer, ticked.set)
    began, due = time.monotonic(), 0
    late_us = array("d")
    try:
        for place, number in enumerate(numbers, 1):
            while due < place:
                await ticked.wait()
                ticked.clear()
                due += int.from_bytes(os.read(timer, 8), "little")
            late_us.append((time.monotonic() - began - place / order.rate) * 1e6)
            await publisher.publish(_payload(number, order.payload_bytes))
    finally:
        loop.remove_reader(timer)
        os.close(timer)
    return float(np.percentile(late_us, 99)) if late_us else 0.0


def _timer(rate: float) -> int:
    """A descriptor that is readable so many times a second."""
    libc = ctypes.CDLL(None, use_errno=True)
    timer: int = libc.timerfd_create(MONOTONIC, NONBLOCK)
    seconds, nanoseconds = divmod(round(1e9 / rate), 1_000_000_000)
    every = (ctypes.c_long * 4)(seconds, nanoseconds, seconds, nanoseconds)
    if timer < 0 or libc.timerfd_settime(timer, 0, every, None) < 0:
        raise OSError(ctypes.get_errno(), "no timer")
    return timer
