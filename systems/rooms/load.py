"""The load of rooms: members and publishers in the compiled engine, which checks every delivery byte for byte."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from muster_server._engines import LoadEngine
from muster_server.control.cluster.instance import Endpoint
from muster_server.control.errors import TRY_LATER, UNAVAILABLE, USAGE, UserError
from muster_server.control.load.drive import check_target
from muster_server.control.load.generator import Micros, Share, Slice
from muster_server.control.terminal.found import Target, client_of, found

CONNECT_S: Final = 120.0
STEP_S: Final = 1.0
"""The engine connects for this long at a time: Ctrl-C ends it in between."""
ROOMS_MAX: Final = 100_000
PUBLICATIONS: Final = 256
"""Rooms that one session may publish to."""
SOCKETS_MAX: Final = 1_024
"""Members share sockets above this number of them."""
Server = tuple[str, int, bytes]
"""Host, port and public key."""
Fault = tuple[str, None, float, float, float, float, int, int, int]
"""As the engine takes it: the way, no peer, and the chances and times of each kind."""


class RoomsLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Members that are in one room each, spread evenly, and publishers that go round the rooms."""

    gateways: Sequence[Server]
    proxies: Sequence[Server]
    credential: bytes
    members: int
    rooms: int
    publishers: int
    rate: float
    size: int
    for_s: float
    ramp_s: float
    faults: Sequence[Fault] = ()
    """Faults injected into the clients' own links."""

    def generator(self, share: Share) -> "RoomsGenerator":
        """The generator of one host."""
        return RoomsGenerator(self, share)

    def check(self) -> None:
        """Raise `UserError` for numbers that don't go together."""
        if self.rooms > self.members:
            raise UserError(f"--rooms {self.rooms} is more than --members {self.members}: a room needs a member", USAGE)
        if self.publishers > self.rooms:
            raise UserError(f"--publishers {self.publishers} is more than --rooms {self.rooms}", USAGE)


class RoomsGenerator:
    """One host's members, rooms and publishers. Its rooms are its own, so each delivery can be checked here."""

    sent = "published"
    done = "delivered"
    wrong = ("lost", "out_of_turn", "corrupted")

    def __init__(self, load: RoomsLoad, share: Share) -> None:
        self._load, self._share = load, share
        self._engine: LoadEngine | None = None
        self._began = False
        self._running: asyncio.Future[Any] | None = None
        """Run the engine; the work of its thread."""

    async def open(self) -> str:
        """Open all sessions and join."""
        load, share = self._load, self._share
        members, rooms = share.part(load.members), share.part(load.rooms)
        if not members or not rooms:
            raise UserError(f"{share.of} hosts need at least {share.of} rooms and members", USAGE)
        names = [f"load-{share.run}-{share.index}-{number}" for number in range(rooms)]
        publishers = max(1, share.part(load.publishers))
        self._engine = engine = LoadEngine(
            gateways=list(load.gateways),
            proxies=list(load.proxies),
            credential=load.credential,
            members=members,
            rooms=names,
            seed=secrets.randbits(60),
            recv_buffer=1 << 20,
            faults=list(load.faults) or None,
            members_each=-(-members // SOCKETS_MAX),
            publishers=publishers,
            learns=True,
        )
        joined, until = 0, time.monotonic() + CONNECT_S
        while joined < members and time.monotonic() < until:
            joined = await self._run(engine.connect, STEP_S)
        check_joined(joined, members)
        publishers = max(publishers, -(-rooms // PUBLICATIONS))
        return (
            f"{members:,} members in {rooms:,} rooms, {publishers:,} publishers, {share.rate(load.rate):,g} messages/s"
        )

    async def advance(self, seconds: float) -> Slice:
        """Publish, and check what arrived."""
        assert self._engine is not None
        if not self._began:
            self._began, load = True, self._load
            self._engine.schedule(load.size, self._share.rate(load.rate), load.for_s, load.ramp_s)
        told = await self._run(self._engine.advance, seconds)
        counts = {name: told[name] for name in COUNTS}
        counts["out_of_turn"] = unannounced(told)
        return Slice(
            counts=counts,
            latencies=_micros(told["latencies_us"]),
            late=_micros(told["late_us"]),
            over=told["over"],
            complete=told["complete"],
        )

    async def close(self) -> None:
        """End all sessions."""
        if self._running is not None:
            await asyncio.wait([self._running])
        if self._engine is not None:
            await self._run(self._engine.close)

    async def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Have the engine work in a thread. A task that is cancelled leaves it at work, which `close` waits for."""
        self._running = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
        return await asyncio.shield(self._running)


COUNTS: Final = (
    "published",
    "delivered",
    "delivered_bytes",
    "lost",
    "gaps",
    "out_of_turn",
    "corrupted",
    "sessions_lost",
    "joined",
)


def _micros(data: bytes) -> Micros:
    return np.frombuffer(data, dtype="<u4").astype(np.uint64)


async def servers(where: Target, owned: bool) -> tuple[list[Server], list[Server], bytes]:
    """Gateways, proxies and the credential that a target names. Raises `UserError`.

    `owned`: the user says that servers on other machines are theirs.
    """
    if (end := where.end.gateway()) is not None:
        gateways, proxies, token = list(end.gateways), list(end.proxies), end.token
    else:
        async with found(where) as nodes:
            record = await nodes.record()
        own = where.end.credential()
        token = client_of(record).token if own is None else own
        lists = (record.gateways, record.proxies)
        gateways, proxies = ([(each.host, each.port, each.public_key) for each in ends] for ends in lists)
        if not gateways or not proxies:
            raise UserError("no gateway and proxy run here; start them: muster up", UNAVAILABLE)
    check_target("rooms", [host for host, _, _ in (*gateways, *proxies)], owned)
    return _servers(gateways), _servers(proxies), token


def check_joined(joined: int, members: int) -> None:
    """Raise `UserError` if members are missing after `CONNECT_S`."""
    if joined < members:
        raise UserError(f"only {joined:,} of {members:,} members joined within {CONNECT_S:g} s", TRY_LATER)


def unannounced(told: Mapping[str, Any]) -> int:
    """Jumps in the order of messages that no gap announced; the engine counts each jump."""
    return max(0, int(told.get("out_of_turn", 0)) - int(told.get("gaps", 0)))


def endpoints(ends: Sequence[Endpoint]) -> list[Server]:
    """Servers of a record as the engine takes them."""
    return _servers([(each.host, each.port, each.public_key) for each in ends])


def _servers(ends: Sequence[tuple[str, int, str]]) -> list[Server]:
    return [(host, port, bytes.fromhex(key)) for host, port, key in ends]


def faults(loss: float | None) -> list[Fault]:
    """Losses of the clients' own links, both ways."""
    return [(way, None, loss, 0.0, 0.0, 0.0, 0, 0, 0) for way in ("in", "out")] if loss else []


SETTINGS: Final = RoomsLoad
