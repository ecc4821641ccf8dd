"""The load of delayed messages: sends them by an open schedule, and takes their callbacks.

Each message is due some time after it was sent. Its latency is how late its callback came. A callback before its time, a
second one, and a message without any are counted.
"""

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Final, cast

import msgspec
import numpy as np

from muster_server.control.errors import TRY_LATER, UNAVAILABLE, USAGE, UserError
from muster_server.control.host.addresses import NO_ADDRESS, address_text, split_address
from muster_server.control.load.generator import Share, Slice
from muster_server.control.load.openloop import OpenLoop
from muster_server.systems.messages.link import Link
from muster_server.systems.messages.receiver import Unreachable
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.shapes import Refused, Send, Sent
from muster_server.systems.messages.system import ADMIN, RECEIVE
from muster_server.systems.messages.topics import NewTopic, Topic

BATCH_MAX: Final = 200
LATE_S: Final = 8.0
"""Time for the last callbacks after the last message was due."""
LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
REQUEST_BYTES_MAX: Final = 1 << 20
OK: Final = b"HTTP/1.1 204 No Content\r\n\r\n"


class MessagesLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one topic for each host, due evenly between `delay_s` and twice that after they are sent."""

    receivers: Sequence[tuple[str, int]]
    admins: Sequence[tuple[str, int]]
    token: bytes
    callback: str
    """Where this host takes callbacks, HOST:PORT; port 0: a free one."""
    rate: float
    size: int
    delay_s: float
    for_s: float
    ramp_s: float

    def generator(self, share: Share) -> "MessagesGenerator":
        """The generator of one host."""
        return MessagesGenerator(self, share)


class MessagesGenerator:
    """One host's topic, messages and callbacks."""

    sent = "sent"
    done = "fired"
    wrong = ("failed", "early", "twice", "missing")

    def __init__(self, load: MessagesLoad, share: Share) -> None:
        self._load, self._share = load, share
        self._topic = f"load-{share.run}-{share.index}"
        self._receive = Link(RECEIVE, lambda: load.receivers, load.token)
        self._admin = Link(ADMIN, lambda: load.admins, load.token)
        self._loop = OpenLoop(self._send, share.rate(load.rate), load.for_s, load.ramp_s)
        self._due: dict[int, int] = {}
        """When each accepted message is due, in ms since 1970, until its callback."""
        self._fired = set[int]()
        self._counts = Counter[str]()
        self._lateness: list[int] = []
        self._server: asyncio.Server | None = None
        self._last_due = 0
        self._made = False

    async def open(self) -> str:
        """Listen for callbacks, and create the topic."""
        try:
            host, port = split_address(self._load.callback)
        except ValueError:
            raise UserError(f"--callback: {self._load.callback!r} {NO_ADDRESS}", USAGE) from None
        try:
            self._server = await asyncio.get_running_loop().create_server(lambda: _Hook(self._came), host, port)
        except OSError as error:
            raise UserError(f"--callback {self._load.callback}: {error.strerror or error}", UNAVAILABLE) from None
        where = address_text(host, self._server.sockets[0].getsockname()[1])
        try:
            network = f"{host}/{ip_address(host).max_prefixlen}"
            topic = NewTopic(name=self._topic, callback=f"http://{where}/", allowed=(network,))
            await self._admin.ask("topic-create", topic, Topic)
        except (Refusal, Unreachable) as error:
            raise UserError(f"topic {self._topic}: {error}", TRY_LATER) from None
        self._made = True
        rate = self._share.rate(self._load.rate)
        return (
            f"topic {self._topic}, {rate:,g} messages/s, due in {self._load.delay_s:g} to {2 * self._load.delay_s:g} s"
        )

    async def advance(self, seconds: float) -> Slice:
        """Send messages, and note their callbacks."""
        began = time.monotonic()
        made = await self._loop.advance(seconds)
        over = made.complete
        while over and self._due and time.time() * 1_000 < self._last_due + LATE_S * 1_000:
            if time.monotonic() - began >= seconds:
                break
            await asyncio.sleep(0.02)
        complete = over and (not self._due or time.time() * 1_000 >= self._last_due + LATE_S * 1_000)
        lateness, self._lateness = self._lateness, []
        counts = {**made.counts, "accepted": made.counts["done"], "fired": len(self._fired), **self._counts}
        del counts["done"]
        counts["missing"] = len(self._due) if complete else 0
        return msgspec.structs.replace(
            made,
            counts=counts,
            latencies=np.array(lateness, dtype=np.uint64),
            over=made.over and time.time() * 1_000 >= self._last_due,
            complete=complete,
        )

    async def close(self) -> None:
        """Remove the topic."""
        await self._loop.close()
        if self._made:
            with contextlib.suppress(Refusal, Unreachable):
                await self._admin.ask("topic-remove", self._topic, Topic)
        if self._server is not None:
            self._server.close()
        await self._receive.close()
        await self._admin.close()

    async def _send(self, number: int) -> str | None:
        load = self._load
        spread = (number * 7_919 % 1_000) / 1_000
        due = int((time.time() + load.delay_s * (1 + spread)) * 1_000)
        body = (b"%016d" % number).ljust(load.size, b".")
        self._due[number] = due
        self._last_due = max(self._last_due, due)
        message = Send(body=body, id=f"{number}", at=due)
        try:
            (answer,) = await self._receive.ask("send", (self._topic, [message]), list[Sent | Refused])
        except (Refusal, Unreachable) as error:
            self._due.pop(number, None)  # it may fire all the same, and is not missing if it does not
            return "refused" if isinstance(error, Refusal) else "no_answer"
        if isinstance(answer, Refused):
            self._due.pop(number, None)
            return "refused"
        return None

    def _came(self, body: bytes) -> None:
        now = time.time() * 1_000
        try:
            number = int(body[:16])
        except ValueError:
            self._counts["strange"] += 1
            return
        if number in self._fired:
            self._counts["twice"] += 1
            return
        self._fired.add(number)
        due = self._due.pop(number, None)
        if due is None:
            return
        if now < due - 1:
            self._counts["early"] += 1
        self._lateness.append(int(max(0.0, now - due) * 1_000))


class _Hook(asyncio.Protocol):
    """One connection of a worker, which posts callbacks."""

    def __init__(self, came: Callable[[bytes], None]) -> None:
        self._came, self._buffer = came, b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        data = self._buffer + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            found = LENGTH.search(data, 0, end + 2)
            length = int(found[1]) if found else 0
            if len(data) < end + 4 + length:
                break
            self._came(data[end + 4 : end + 4 + length])
            self._transport.write(OK)
            data = data[end + 4 + length :]
        self._buffer = data
        if len(data) > REQUEST_BYTES_MAX:
            self._transport.abort()


SETTINGS: Final = MessagesLoad
