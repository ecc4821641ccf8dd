"""Clients of rooms for callers over HTTP: those of the process itself, and those of users by their tokens.

Opens a client when it is first needed, closes it when its user is idle, and bounds the number of users. Knows no HTTP.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import muster
from muster.client import ROOMS_MAX
from muster.instance import Endpoint

SWEEP_S: Final = 1.0
OWN_BUFFER_BYTES: Final = 8 << 20
USER_BUFFER_BYTES: Final = 256 << 10
"""Limit of a user's unread bytes; small, because there may be a thousand users."""

Target = str | muster.Address


class Session:
    """One caller's clients: one that publishes, one that asks responders, and one that reads per 256 rooms.

    A message to the user counts as delivered once a stream of the user has it: a client alone takes none.
    """

    def __init__(self, where: Target, token: bytes | None) -> None:
        self._where, self._token = where, token
        self._publisher: muster.Client | None = None
        self._requester: muster.Client | None = None
        self._readers: list[muster.Client] = []
        self._opening = asyncio.Lock()
        self._rooms: dict[muster.Client, int] = {}
        self.used = 0.0
        """The time of its last use."""
        self.users = 0
        """Requests and rooms that use the session now."""
        self.closed = False
        self.ended = False
        """An operator ended it: a later request gets another one."""

    async def publisher(self) -> muster.Client:
        """The client that publishes, commands and counts. Raises `MusterError`."""
        if self._publisher is None or self._publisher.closed:
            async with self._opening:
                if self._publisher is None or self._publisher.closed:
                    self._publisher = await self._open(gateways=[])
        return self._publisher

    async def requester(self) -> muster.Client:
        """The client that asks responders, and has a room for their replies. Raises `MusterError`."""
        if self._requester is None or self._requester.closed:
            async with self._opening:
                if self._requester is None or self._requester.closed:
                    self._requester = await self._open()
        return self._requester

    async def reader(self) -> muster.Client:
        """A client that can join one more room, until `left`. Raises `MusterError`."""
        async with self._opening:
            for reader in self._readers:
                if not reader.closed and self._rooms[reader] < ROOMS_MAX:
                    self._rooms[reader] += 1
                    return reader
            reader = await self._open(proxies=[])
            self._readers.append(reader)
            self._rooms[reader] = 1
            return reader

    @asynccontextmanager
    async def at(self, proxy: Endpoint) -> AsyncIterator[muster.Client]:
        """A client at this proxy alone, while the block lasts. Raises `MusterError`."""
        client = await self._open(gateways=[], proxies=[proxy])
        try:
            yield client
        finally:
            await _close(client)

    def proxies(self) -> Sequence[Endpoint]:
        """The proxies that are known. Raises `MusterError`."""
        where = self._where if isinstance(self._where, muster.Address) else muster.instance.find(self._where)
        return where.proxies

    def failed(self, error: muster.MusterError) -> None:
        """A client of the session has failed."""
        self.ended |= error.code == "ended"

    async def left(self, reader: muster.Client) -> None:
        """Release a room of a client; a client without rooms is closed, except the last one."""
        self._rooms[reader] -= 1
        if reader.closed or (not self._rooms[reader] and len(self._readers) > 1):
            self._readers.remove(reader)
            del self._rooms[reader]
            await _close(reader)

    def redirect(self, address: muster.Address) -> None:
        """Use these servers from now on."""
        self._where = address
        for client in self._clients():
            client.redirect(muster.Address(address.gateways, address.proxies, self._token or address.token))

    def forget(self, client: muster.Client) -> None:
        """Mark a client with an expired credential to be replaced when it is next needed."""
        if client is self._publisher:
            self._publisher = None
        if client is self._requester:
            self._requester = None

    async def close(self) -> None:
        """Close all its clients."""
        self.closed = True
        clients = self._clients()
        self._publisher, self._requester, self._readers = None, None, []
        await asyncio.gather(*map(_close, clients))

    def _clients(self) -> list[muster.Client]:
        found = [*self._readers, self._publisher, self._requester]
        return [client for client in found if client is not None and not client.closed]

    async def _open(
        self, *, gateways: Sequence[Endpoint] | None = None, proxies: Sequence[Endpoint] | None = None
    ) -> muster.Client:
        if isinstance(self._where, muster.Address):  # a missing list of servers is no mistake of the caller
            if gateways is None and not self._where.gateways:
                raise muster.Unavailable("no gateway is known yet")
            if proxies is None and not self._where.proxies:
                raise muster.Unavailable("no proxy is known yet")
        size = OWN_BUFFER_BYTES if self._token is None else USER_BUFFER_BYTES
        return await muster.connect(
            self._where,
            gateways=gateways,
            proxies=proxies,
            token=self._token,
            buffer_bytes=size,
            receive_buffer_bytes=size,
            confirms=True,
        )


async def _close(client: muster.Client) -> None:
    try:
        await client.close(timeout=1.0)
    except muster.MusterError:  # it is closed, and its publishers have got the error
        return


class TooManySessions(Exception):
    """The limit is reached, and all sessions are in use."""


class Sessions:
    """All sessions of a process. Users beyond `users_max` replace an idle one."""

    def __init__(
        self, where: Target, users_max: int, idle_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._where, self._users_max, self._idle_s, self._clock = where, users_max, idle_s, clock
        self.own = Session(where, None)
        self._users: OrderedDict[bytes, Session] = OrderedDict()
        """Sessions in order of use, the latest last."""
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._users)

    def of(self, token: bytes | None) -> Session:
        """The session of a user's token; the process's own without one. Raises `TooManySessions`."""
        if token is None:
            return self.own
        session = self._users.get(token)
        if session is not None and session.ended:
            self._drop(token)
            session = None
        if session is None:
            if len(self._users) >= self._users_max:
                self._evict()
            session = self._users[token] = Session(self._where, token)
        session.used = self._clock()
        self._users.move_to_end(token)
        return session

    def sweep(self) -> None:
        """Close sessions that were idle for too long."""
        since = self._clock() - self._idle_s
        for token, session in list(self._users.items()):
            if session.used > since:
                return
            if session.users:
                self._users.move_to_end(token)
                session.used = self._clock()
            else:
                self._drop(token)

    def redirect(self, address: muster.Address) -> None:
        """Use these servers from now on."""
        self._where = address
        for session in (self.own, *self._users.values()):
            session.redirect(address)

    async def close(self) -> None:
        """Close all."""
        await asyncio.gather(self.own.close(), *(session.close() for session in self._users.values()), *self._closing)

    def _evict(self) -> None:
        idle = next((token for token, session in self._users.items() if not session.users), None)
        if idle is None:
            raise TooManySessions
        self._drop(idle)

    def _drop(self, token: bytes) -> None:
        task = asyncio.ensure_future(self._users.pop(token).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
