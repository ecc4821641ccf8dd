"""What a process hears of drops: by a connection of its own to the Redis, where their script publishes them.

Each second it sends itself a sign of life through the way that drops take. So what it heard is complete up to the time at
which the last one that came back was sent, and level 1 may serve for `lease_s` more (C-7).
"""

import asyncio
import contextlib
import json
import logging
import math
import secrets
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from redis.exceptions import RedisError

from ..errors import Unavailable
from ..redis.connections import cut
from .ending import ended
from .far import InRedis

LOG: Final = logging.getLogger("muster.cache")
BEAT_S: Final = 1.0
AGAIN_S, AGAIN_S_MAX = 0.05, 1.0
BEATS_MAX: Final = 16
"""Signs of life that are remembered."""

Told = Callable[[str, Sequence[str], float | None], None]
"""A writer, keys, and when the Redis took them, in ms of its clock."""


class HearsAlways:
    """Of a cache in one process."""

    until = math.inf
    epoch = 0

    def start(self) -> None:
        """As `Hearing`."""

    async def close(self) -> None:
        """As `Hearing`."""


def read(message: bytes) -> tuple[str, list[str], float]:
    """A drop as the script tells it. Raises `ValueError`."""
    at, _, content = message.partition(b" ")
    told = json.loads(content)
    if not isinstance(told, list) or not told or not all(isinstance(each, str) for each in told):
        raise ValueError("no list of texts")
    return told[0], told[1:], float(at)


class Hearing:
    """Hears until it is closed. `on_drop` is told of keys; `on_clear`, that any key may have been dropped."""

    def __init__(self, far: InRedis, lease_s: float, on_drop: Told, on_clear: Callable[[], None]) -> None:
        self._far, self._lease_s = far, lease_s
        self._on_drop, self._on_clear = on_drop, on_clear
        self._own = f"{far.channel}:{secrets.token_hex(8)}"
        self.until = 0.0
        self.epoch = 0
        self.heard = asyncio.Event()
        """Set while level 1 serves, as far as is known."""
        self._beat = 0
        self._sent: dict[int, float] = {}
        self._servers: list[str] | None = None
        """All that take drops; None before the first answer of a cluster."""
        if not far.is_cluster:
            self._servers = [""]
        self._came: dict[str, float] = {}
        """By server: when the last sign of life that came back through it was sent."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            await ended([self._task])
            self._task = None
        self._deaf()

    async def _run(self) -> None:
        pause_s = AGAIN_S
        while True:
            try:
                await self._listen()
            except (Unavailable, RedisError, OSError, TimeoutError) as error:
                if self.until > 0:
                    LOG.warning("the cache hears of no drops, so its level 1 is empty: %s", error)
                    pause_s = AGAIN_S
                self._deaf()
            await asyncio.sleep(pause_s)
            pause_s = min(AGAIN_S_MAX, pause_s * 2)

    def _deaf(self) -> None:
        self.until = 0.0
        self.heard.clear()
        self._came.clear()
        self._sent.clear()
        self.renew()

    def renew(self) -> None:
        """Any drop may have been missed: level 1 begins empty, and so do flights."""
        self.epoch += 1
        self._on_clear()

    async def _listen(self) -> None:
        """Subscribe, and hear until the connection ends or is silent."""
        connection = await self._far.apart()
        beats: asyncio.Task[None] | None = None
        try:
            own, all_ = self._own.encode(), self._far.channel.encode()
            await connection.send_command("SUBSCRIBE", all_, own)
            confirmed = 0
            while True:
                said = await connection.read_response(timeout=self._lease_s, push_request=True)
                if said is None:
                    raise TimeoutError(f"nothing came for {self._lease_s} s")
                kind, channel, data = said
                if kind == b"subscribe":
                    confirmed += 1
                    if confirmed == 2:
                        self.renew()
                        beats = asyncio.get_running_loop().create_task(self._beats())
                elif channel == own:
                    self._alive(data.decode())
                elif kind == b"message":
                    self._drop(data)
        finally:
            if beats is not None:
                await ended([beats])
            await cut(connection)

    def _drop(self, data: bytes) -> None:
        try:
            told = read(data)
        except ValueError:
            LOG.warning("a message on %s is no drop, so level 1 begins empty", self._far.channel)
            self.renew()
        else:
            self._on_drop(*told)

    def _alive(self, data: str) -> None:
        """A sign of life came back."""
        number, _, server = data.partition(" ")
        sent = self._sent.get(int(number))
        if sent is None:
            return
        self._came[server] = sent
        self._judge()

    def _judge(self) -> None:
        """Level 1 serves from the oldest of the servers' signs of life on."""
        if self._servers and all(server in self._came for server in self._servers):
            self.until = min(self._came[server] for server in self._servers) + self._lease_s
            self.heard.set()

    async def _beats(self) -> None:
        while True:
            self._beat += 1
            self._sent[self._beat] = monotonic()
            self._sent.pop(self._beat - BEATS_MAX, None)
            began = monotonic()
            with contextlib.suppress(Unavailable):
                self._servers = await self._far.beat(self._own, self._beat)
                self._judge()
            await asyncio.sleep(max(0.0, BEAT_S - (monotonic() - began)))
