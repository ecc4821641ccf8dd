"""The unicast service: its engine, and the readers that tell where users are.

Owns the choice of readers, and the limit of open requests. The engine asks for the gateways of a user by events, and
repeats requests without an answer. Must not know the content of a message.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final, Protocol

from muster_server import _engines
from muster_server.plane.calls import CallError, key_of
from muster_server.plane.keys import link_options
from muster_server.plane.role import Role
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec, secret
from muster_server.systems.presence.asking import Address, Readers, addresses
from muster_server.systems.presence.build import placing
from muster_server.systems.presence.options import PresenceSettings
from muster_server.systems.presence.place import site_of

BATCH: Final = 1_000
"""Limit of users in one request."""
QUESTIONS_MAX: Final = 4
"""Limit of concurrent requests; users that come meanwhile are requested together."""
LOOK_S: Final = 0.5
"""Seconds between checks whether there are readers."""


class Engine(Protocol):
    """The methods of `muster_server._engines.UnicastEngine` for this."""

    def readers(self, known: bool) -> None:
        """Report whether there are readers."""

    def routed(self, found: list[tuple[int, list[tuple[int, str, bool]] | None]]) -> None:
        """Report where users are: gateway, device and whether it is online; None: no reader answered."""


class Routes:
    """Asks readers while the context of `opened` is open."""

    def __init__(self, engine: Engine, key: bytes) -> None:
        self._engine, self._key = engine, key
        self._readers: Readers | None = None
        self._wanted: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._addresses: Sequence[Address] = ()

    def want(self, user: int) -> None:
        """Look up a user for the engine. Users of one turn of the loop are requested together."""
        self._wanted.append(user)
        if len(self._wanted) == 1:
            asyncio.get_running_loop().call_soon(self._begin)

    @contextlib.asynccontextmanager
    async def opened(self, context: Context) -> AsyncIterator[None]:
        """While it is open, users are looked up through the readers of the registry's map."""
        self._look(context)
        self._readers = Readers(lambda: self._addresses, self._key)
        self._begin()  # users requested earlier
        looking = asyncio.create_task(self._looking(context), name="looks up online readers")
        try:
            yield
        finally:
            for task in (looking, *self._tasks):
                task.cancel()
            await asyncio.gather(looking, *self._tasks, return_exceptions=True)
            await self._readers.close()
            self._readers = None

    async def _looking(self, context: Context) -> None:
        while True:
            self._look(context)
            await asyncio.sleep(LOOK_S)

    def _look(self, context: Context) -> None:
        now = addresses(context.snapshot())
        if bool(now) != bool(self._addresses):
            self._engine.readers(bool(now))
        self._addresses = now

    def _begin(self) -> None:
        while self._wanted and self._readers is not None and len(self._tasks) < QUESTIONS_MAX:
            users, self._wanted = self._wanted[:BATCH], self._wanted[BATCH:]
            task = asyncio.create_task(self._ask(self._readers, users), name="looks up users")
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()
        self._begin()

    async def _ask(self, readers: Readers, users: list[int]) -> None:
        try:
            found = await readers.who(users, lost=True)
        except CallError:
            self._engine.routed([(user, None) for user in users])
            return
        self._engine.routed(
            [(user.user, [(each.gateway, each.device, not each.lost) for each in user.devices]) for user in found.users]
        )


def build(spec: Spec, settings: PresenceSettings) -> Role:
    """Make a unicast service, which binds its socket. Raises `SpecError`, and `OSError` if an address is in use."""
    engine = _engines.UnicastEngine(link_options(spec), site=site_of(spec, settings))
    routes = Routes(engine, key_of(secret(spec.cluster_secret_file, 32)))
    return Role(engine, {"route": routes.want}, place=partial(placing, engine), beside=routes.opened)
