"""Several machines in one run: the first one leads and makes the report, the others join it.

Owns the questions between them, by `plane/calls`. All begin within a round trip of each other; each second is reported as
counts and histograms. A host that is gone leaves its last counts, and the run says so.
"""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Final

import msgspec

from muster_server.control.errors import TRY_LATER, UNAVAILABLE, USAGE, UserError
from muster_server.control.host.addresses import NO_ADDRESS, address_text, split_address
from muster_server.control.load.drive import EVERY_S, opened
from muster_server.control.load.generator import Settings, Share
from muster_server.control.load.series import Second, second
from muster_server.control.terminal.words import say
from muster_server.plane.calls import CallError, Peer, Server, key_of

JOIN_S: Final = 300.0
"""Time for all hosts to come and to connect."""
HOSTS_MAX: Final = 64


class Come(msgspec.Struct, frozen=True, tag=True):
    """A host joins the run."""


class Part(msgspec.Struct, frozen=True):
    """Its part, and the settings of the system's load."""

    share: Share
    system: str
    settings: bytes
    """As MessagePack, decoded as the type of that system."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A host is connected. The answer comes when all are."""

    index: int


class Done(msgspec.Struct, frozen=True, tag=True):
    """A host's last second."""

    index: int
    second: Second


class Go(msgspec.Struct, frozen=True):
    """Whether the run goes on."""

    on: bool


class Lead:
    """The host that leads: `count` others join it."""

    def __init__(self, count: int, run: str, system: str, settings: Settings) -> None:
        self.count = count
        self._run, self._system = run, system
        self._settings = msgspec.msgpack.encode(settings)
        self._come = 0
        self._ready = set[int]()
        self._all, self._began = asyncio.Event(), asyncio.Event()
        self._on = True
        self._seconds: dict[int, list[Second]] = {}
        self._word = secrets.token_urlsafe(16)
        self._server = Server(key_of(self._word.encode()), {Come: self._join, Ready: self._wait, Done: self._take})

    async def listen(self, address: str) -> None:
        """Listen, and say how to join. Raises `UserError`."""
        try:
            host, port = split_address(address)
        except ValueError:
            raise UserError(f"--listen: {address!r} {NO_ADDRESS}", USAGE) from None
        try:
            await self._server.start(host, port)
        except OSError as error:
            raise UserError(f"--listen {address}: {error.strerror or error}", UNAVAILABLE) from None
        say(f"on {self.count} more hosts run: muster load --join {address_text(host, self.port)}/{self._word}")

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    async def start(self) -> None:
        """Wait until all are connected, then have them begin. Raises `UserError`."""
        try:
            async with asyncio.timeout(JOIN_S):
                await self._all.wait()
        except TimeoutError:
            raise UserError(
                f"only {len(self._ready)} of {self.count} other hosts were ready within {JOIN_S:g} s", TRY_LATER
            ) from None
        self._began.set()

    def take(self) -> Mapping[int, list[Second]]:
        """The seconds of each host since the last call, by its index."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def stop(self) -> None:
        """Have them end now."""
        self._on = False

    async def close(self) -> None:
        """No host is told anything any more."""
        await self._server.stop()

    async def _join(self, _: Come) -> Part:
        if self._come >= self.count:
            raise CallError("full", f"this run already has its {self.count} hosts")
        self._come += 1
        share = Share(run=self._run, index=self._come, of=self.count + 1)
        return Part(share, self._system, self._settings)

    async def _wait(self, ready: Ready) -> Go:
        self._ready.add(ready.index)
        if len(self._ready) >= self.count:
            self._all.set()
        await self._began.wait()
        return Go(self._on)

    async def _take(self, done: Done) -> Go:
        self._seconds.setdefault(done.index, []).append(done.second)
        return Go(self._on)


async def join(where: str, known: Mapping[str, type[Settings]]) -> int:
    """Join the run that is led at `HOST:PORT/WORD`. `known`: the type of the settings of each system."""
    address, slash, word = where.partition("/")
    try:
        at = split_address(address)
        if not slash or not word:
            raise ValueError(where)
    except ValueError:
        raise UserError(
            f"--join: invalid value {where!r} (expected HOST:PORT/WORD, as the leading host prints it)", USAGE
        ) from None
    peer = Peer(at, key_of(word.encode()))
    try:
        part = await peer.ask(Come(), Part, 10.0)
        of = known.get(part.system)
        if of is None:
            raise UserError(f"the run loads {part.system}, which this version does not know")
        generator = msgspec.msgpack.decode(part.settings, type=of).generator(part.share)
        async with opened(generator) as connected:
            say(f"muster load {part.system}: {connected}; host {part.share.index + 1} of {part.share.of}")
            go = await peer.ask(Ready(part.share.index), Go, JOIN_S + 10.0)
            last = Second(counts={})
            while go.on and not last.complete:
                last = second(await generator.advance(EVERY_S))
                go = await peer.ask(Done(part.share.index, last), Go, 10.0)
    except CallError as error:
        raise UserError(f"the leading host at {address}: {error}", UNAVAILABLE) from None
    finally:
        await peer.close()
    return 0
