"""A blocking client for scripts and notebooks: the calls of `muster.Client` and `muster.Room`, without `await`.

All clients of a process share one loop in its own thread, which ends with the process. A call waits for its result; it
may come from any thread but that one. After a fork, each call in the child raises `Invalid`, as for `muster.Client`.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, TypeVar, final
from weakref import WeakSet

from .client import REQUEST_S, TIMEOUT_S
from .client import Client as AsyncClient
from .client import connect as connect_async
from .errors import Invalid, MusterError, TimedOut
from .filters import Filter
from .inputs import NO_JSON
from .instance import Address, Endpoint
from .items import DeviceResult, History, Item, Members, Message, Outcome, Position, Reply
from .room import Policy, advance
from .room import Room as AsyncRoom
from .tokens import Token

__all__ = ["Client", "Room", "connect"]

END_S: Final = 2.0
"""At the end of the process, clients that were not closed wait this long for acknowledgements, in seconds."""
_T = TypeVar("_T")


class _Loop:
    """The loop and its thread, one per process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="muster.sync")
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, _T]) -> "Future[_T]":
        """Run a coroutine in the loop's thread. Raises `Invalid` in a forked child, and in the loop's own thread."""
        if self.pid != os.getpid():
            work.close()
            raise Invalid("this client belongs to the process that opened it; connect again in this process")
        if threading.get_ident() == self._thread.ident:
            work.close()
            raise Invalid("a blocking call in the thread of muster.sync would wait for itself; use muster.Client there")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of a coroutine. An interrupted wait cancels it."""
        begun = self.begin(work)
        try:
            return begun.result()
        except BaseException:
            begun.cancel()
            raise


_OPEN: "Final[WeakSet[Client]]" = WeakSet()
_LOCK: Final = threading.Lock()
_loops: Final[dict[int, _Loop]] = {}
"""Loops by process id: a forked child has its own."""


def _loop() -> _Loop:
    with _LOCK:
        pid = os.getpid()
        if pid not in _loops:
            _loops[pid] = _Loop()
        return _loops[pid]


@final
class Client:
    """The blocking `muster.Client`, already open. Made by `connect`. Use it in a `with` block, or call `close`."""

    def __init__(self, opened: AsyncClient, loop: _Loop) -> None:
        self._client, self._loop = opened, loop
        _OPEN.add(self)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _OPEN.discard(self)
        self._loop.run(self._client.__aexit__(kind, error, trace))

    def close(self, timeout: float | None = None) -> None:
        """Wait until everything published is acknowledged, then close the sessions. Raises `TimedOut`; the client is
        closed then too."""
        _OPEN.discard(self)
        self._loop.run(self._client.close(timeout))

    @property
    def closed(self) -> bool:
        """Whether the client is not open any more."""
        return self._client.closed

    def join(
        self,
        name: str,
        *,
        positions: bytes | None = None,
        history: int = 0,
        policy: Policy = "drop_oldest",
        filter: Filter | None = None,
        timeout: float | None = None,
    ) -> "Room":
        """Become a member at once; use a `with` block, or call `leave`. Arguments as for `muster.Client.join`."""

        async def joined() -> tuple[AsyncRoom, bytes]:
            options: dict[str, Any] = {"positions": positions, "history": history, "policy": policy, "filter": filter}
            room = await self._client.join(name, timeout=timeout, **options)
            return room, room.positions

        return Room(*self._loop.run(joined()), self._loop)

    def history(self, room: str, count: int, *, timeout: float | None = None) -> list[Message]:
        """The last messages of a room, oldest first. As `muster.Client.history`."""
        return self._loop.run(self._client.history(room, count, timeout=timeout))

    def publish(
        self,
        room: str,
        data: bytes | None = None,
        *,
        json: Any = NO_JSON,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Position:
        """Return the position once the room's owner has numbered the message. As `muster.Client.publish`."""
        return self._loop.run(self._client.publish(room, data, json=json, headers=headers, timeout=timeout))

    def command(self, room: str, data: bytes, *, expires: float = 5.0) -> Outcome:
        """Tell every member of a room, and return the outcome. As `muster.Client.command`."""
        return self._loop.run(self._client.command(room, data, expires=expires))

    def request(
        self,
        room: str,
        data: bytes | None = None,
        *,
        json: Any = NO_JSON,
        timeout: float = REQUEST_S,
        user: int | None = None,
    ) -> Reply:
        """Ask a room's responders, and return the reply. As `muster.Client.request`."""
        return self._loop.run(self._client.request(room, data, json=json, timeout=timeout, user=user))

    def send(
        self, user: int, data: bytes, *, device: str | None = None, expires: float = 5.0
    ) -> Sequence[DeviceResult]:
        """Send a message to a user's devices, and return the outcomes. As `muster.Client.send`."""
        return self._loop.run(self._client.send(user, data, device=device, expires=expires))

    def end_sessions(self, user: int, *, device: str | None = None, expires: float = 5.0) -> Sequence[DeviceResult]:
        """End the sessions of a user's devices, and return the outcomes. As `muster.Client.end_sessions`."""
        return self._loop.run(self._client.end_sessions(user, device=device, expires=expires))

    def end_member(self, room: str, user: int, *, expires: float = 5.0) -> int:
        """End the sessions with which a user is a member, and return their number. As `muster.Client.end_member`."""
        return self._loop.run(self._client.end_member(room, user, expires=expires))

    def members(self, room: str, *, ids: bool = False, start: int = 0, wait: float = 1.0) -> Members:
        """Count a room's members, and list users. As `muster.Client.members`."""
        return self._loop.run(self._client.members(room, ids=ids, start=start, wait=wait))

    def stats(self) -> dict[str, int]:
        """Return the counts of this client. As `muster.Client.stats`."""

        async def counted() -> dict[str, int]:
            return self._client.stats()

        return self._loop.run(counted())


@final
class Room:
    """A membership, from `Client.join`. One thread at a time may read it; an interrupted read loses nothing."""

    def __init__(self, joined: AsyncRoom, positions: bytes, loop: _Loop) -> None:
        self._room, self._loop = joined, loop
        self._batches = joined.batches()
        self._batch: list[Item] = []
        self._at = 0
        self._before = positions
        self._reading: Future[tuple[list[Item], bytes] | None] | None = None
        """The read in progress: the next items with the positions before them, or None at the end. Kept until a caller
        takes them."""

    def __enter__(self) -> "Room":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """End the membership. Unread items are dropped. A second call does nothing."""

        async def left() -> None:
            self._room.leave()

        self._before, self._batch, self._at = self.positions, [], 0
        self._loop.run(left())

    @property
    def name(self) -> str:
        """Name of the room, as the join gave it."""
        return self._room.name

    @property
    def positions(self) -> bytes:
        """The value for `join(positions=…)`: after everything read so far. Opaque, at most 81 bytes."""
        return advance(self._before, self._batch[: self._at])

    @property
    def history(self) -> History:
        """Result of the request for earlier messages. As `muster.Room.history`."""
        return self._asked(lambda: self._room.history)

    @property
    def recovered(self) -> bool | None:
        """Whether the last join resumed without a loss. As `muster.Room.recovered`."""
        return self._asked(lambda: self._room.recovered)

    def stats(self) -> dict[str, int]:
        """Return the counts of this membership."""
        return self._asked(self._room.stats)

    def __iter__(self) -> "Room":
        return self

    def __next__(self) -> Item:
        item = self._take(None)
        if item is None:
            raise StopIteration
        return item

    def next(self, timeout: float | None = None) -> Item:
        """Return the next item. Raises `TimedOut` after `timeout` seconds without one, and `Invalid` once the room is
        left."""
        item = self._take(timeout)
        if item is None:
            raise Invalid(f"{self.name}: the room was left; join it again")
        return item

    def _take(self, timeout: float | None) -> Item | None:
        if self._at == len(self._batch):
            if self._reading is None:
                self._reading = self._loop.begin(self._next())
            try:
                taken = self._reading.result(timeout)
            except MusterError:
                self._reading = None
                raise
            except TimeoutError:
                raise TimedOut(f"{self.name}: nothing came in {timeout:g} s") from None
            self._reading = None
            if taken is None:
                return None
            (self._batch, self._before), self._at = taken, 0
        self._at += 1
        return self._batch[self._at - 1]

    async def _next(self) -> tuple[list[Item], bytes] | None:
        try:
            return await anext(self._batches), self._room.before
        except StopAsyncIteration:
            return None

    def _asked(self, question: Callable[[], _T]) -> _T:
        """Call a function of the room in its loop, and return the result."""

        async def ask() -> _T:
            return question()

        return self._loop.run(ask())


def connect(
    instance: str | os.PathLike[str] | Address | None = None,
    *,
    gateways: Sequence[Endpoint] | None = None,
    proxies: Sequence[Endpoint] | None = None,
    token: Token | None = None,
    timeout: float = TIMEOUT_S,
    ages: bool = False,
) -> Client:
    """Open a blocking client: `with muster.sync.connect() as client`. Arguments and errors as for `muster.connect`."""

    made = connect_async(instance, gateways=gateways, proxies=proxies, token=token, timeout=timeout, ages=ages)
    loop = _loop()

    async def opened() -> AsyncClient:
        return await made

    return Client(loop.run(opened()), loop)


def _end() -> None:
    """Close the clients that the program did not close, so that their messages are sent."""
    for client in list(_OPEN):
        with suppress(MusterError):
            client.close(END_S)


atexit.register(_end)
