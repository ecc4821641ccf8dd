"""The load of presence and unicast: devices that are online, and messages to their users by an open schedule.

Each device receives in a client of its own, so a message that was reported as delivered and did not come, or came twice, is
counted.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import msgspec

import muster
from muster_server.control.cluster import sdk
from muster_server.control.cluster.specs import signing_secret
from muster_server.control.config.options import Config
from muster_server.control.errors import TRY_LATER, UserError
from muster_server.control.load.generator import Share, Slice
from muster_server.control.load.openloop import OpenLoop
from muster_server.plane.auth import mint

SEND_S: Final = 5.0
SENDERS: Final = 8
CONNECTING_AT_ONCE: Final = 64
BODY_BYTES: Final = 16
FIRST: Final = b"first"
"""The message that shows that a device is known; it is not counted."""
KNOWN_S: Final = 60.0
KNOWN_AGAIN_S: Final = 0.05
DEVICE: Final = "load"
EXTRA_S: Final = 900.0
"""Time beyond the schedule for which tokens are good."""
Server = tuple[str, int, str]


class PresenceLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Users with one device each, and messages to them in turn."""

    gateways: Sequence[Server]
    proxies: Sequence[Server]
    credential: bytes
    """Credential of the senders, who may send to every user."""
    tokens: Sequence[bytes]
    """One for each device."""
    users: Sequence[int]
    rate: float
    size: int
    for_s: float
    ramp_s: float

    def generator(self, share: Share) -> "PresenceGenerator":
        """The generator of one host."""
        return PresenceGenerator(self, share)


class PresenceGenerator:
    """One host's devices and senders."""

    sent = "sent"
    done = "done"
    wrong = ("failed", "twice", "missing")

    def __init__(self, load: PresenceLoad, share: Share) -> None:
        self._load, self._share = load, share
        first = len(load.users) * share.index // share.of
        self._mine = range(first, first + share.part(len(load.users)))
        self._stack = AsyncExitStack()
        self._senders: list[muster.Client] = []
        self._reading: list[asyncio.Task[None]] = []
        self._came = Counter[int]()
        """How often each message came to its device."""
        self._delivered = set[int]()
        self._random = random.Random(share.index)
        self._loop = OpenLoop(self._send, share.rate(load.rate), load.for_s, load.ramp_s)

    async def open(self) -> str:
        """Bring all devices online."""
        if not self._mine:
            raise UserError(f"{self._share.of} hosts need at least {self._share.of} users", TRY_LATER)
        began, gate = time.monotonic(), asyncio.Semaphore(CONNECTING_AT_ONCE)
        with sdk.in_one_line():
            await asyncio.gather(*(self._device(number, gate) for number in self._mine))
            for _ in range(SENDERS):
                address = muster.Address(tuple(self._load.gateways), tuple(self._load.proxies), self._load.credential)
                client = await self._stack.enter_async_context(muster.connect(address, gateways=()))
                self._senders.append(client)
            await asyncio.gather(*(self._known(number, gate) for number in self._mine))
        took = time.monotonic() - began
        rate = self._share.rate(self._load.rate)
        return f"{len(self._mine):,} devices online after {took:.1f} s, {rate:,g} messages/s to their users"

    async def advance(self, seconds: float) -> Slice:
        """Send messages to users."""
        made = await self._loop.advance(seconds)
        twice = sum(count - 1 for count in self._came.values() if count > 1)
        missing = sum(number not in self._came for number in self._delivered) if made.complete else 0
        return msgspec.structs.replace(
            made, counts={**made.counts, "received": len(self._came), "twice": twice, "missing": missing}
        )

    async def close(self) -> None:
        """Take all devices offline."""
        await self._loop.close()
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await self._stack.aclose()

    async def _device(self, number: int, gate: asyncio.Semaphore) -> None:
        async with gate:
            address = muster.Address(tuple(self._load.gateways), (), self._load.tokens[number])
            client = await self._stack.enter_async_context(muster.connect(address, proxies=()))
        self._reading.append(asyncio.create_task(self._read(client)))

    async def _known(self, number: int, gate: asyncio.Semaphore) -> None:
        """Wait until a message reaches the device: presence learns of it a moment after it has connected."""
        until = time.monotonic() + KNOWN_S
        async with gate:
            while True:
                results = await self._senders[number % SENDERS].send(self._load.users[number], FIRST, expires=SEND_S)
                if {result.outcome for result in results} == {"delivered"}:
                    return
                if time.monotonic() > until:
                    raise UserError(f"user {self._load.users[number]} is not online after {KNOWN_S:g} s", TRY_LATER)
                await asyncio.sleep(KNOWN_AGAIN_S)

    async def _read(self, client: muster.Client) -> None:
        async for message in client.direct():
            if message.data == FIRST:
                continue
            self._came[int(message.data[:BODY_BYTES])] += 1

    async def _send(self, number: int) -> str | None:
        user = self._load.users[self._random.choice(self._mine)]
        body = (b"%016d" % number).ljust(self._load.size, b".")
        try:
            results = await self._senders[number % SENDERS].send(user, body, expires=SEND_S)
        except muster.MusterError as error:
            return error.code
        outcomes = {result.outcome for result in results}
        if outcomes == {"delivered"}:
            self._delivered.add(number)
            return None
        return min(outcomes - {"delivered"}, default="no_device")


def tokens(config: Config, users: Sequence[int], for_s: float) -> list[bytes]:
    """A token of each user, signed with the cluster's secret, that outlives the run. Raises `UserError`."""
    secret = signing_secret(config)
    now = time.time()
    return [mint(secret, user, ["read"], now, for_s + EXTRA_S, device=DEVICE).encode() for user in users]


SETTINGS: Final = PresenceLoad
