"""Receives drops, by a connection of its own to the Redis, where the script publishes them.

Each second it publishes a heartbeat to itself on the path that drops take. It has therefore received every drop up to
the send time of the last heartbeat that came back, and level 1 may serve for `lease_s` more (C-7).
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
"""Limit of heartbeats that are remembered."""

OnDrop = Callable[[str, Sequence[str], float | None], None]
"""Callback with a writer, its keys, and the time of the drop in ms of the Redis's clock (None: unknown)."""


class HearsAlways:
    """Stands for `Hearing` in a cache of one process, which misses no drop."""

    until = math.inf
    epoch = 0

    def start(self) -> None:
        """As `Hearing.start`."""

    async def close(self) -> None:
        """As `Hearing.close`."""


def read(message: bytes) -> tuple[str, list[str], float]:
    """Parse a drop as the script publishes it. Raises `ValueError`."""
    at, _, content = message.partition(b" ")
    told = json.loads(content)
    if not isinstance(told, list) or not told or not all(isinstance(each, str) for each in told):
        raise ValueError("expected a list of texts")
    return told[0], told[1:], float(at)


class Hearing:
    """Receives until it is closed. It calls `on_drop` with dropped keys, and `on_clear` when any key may have been
    dropped."""

    def __init__(self, far: InRedis, lease_s: float, on_drop: OnDrop, on_clear: Callable[[], None]) -> None:
        self._far, self._lease_s = far, lease_s
        self._on_drop, self._on_clear = on_drop, on_clear
        self._own = f"{far.channel}:{secrets.token_hex(8)}"
        self.until = 0.0
        self.epoch = 0
        self.heard = asyncio.Event()
        """Set while level 1 may serve."""
        self._beat = 0
        self._sent: dict[int, float] = {}
        self._servers: list[str] | None = None
        """All servers that accept drops; None before the first answer of a cluster."""
        if not far.is_cluster:
            self._servers = [""]
        self._came: dict[str, float] = {}
        """For each server: the send time of the last heartbeat that came back through it."""
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
                    LOG.warning("the cache receives no drops, so its level 1 is empty: %s", error)
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
        """Empty level 1 and mark all flights dirty: a drop may have been missed."""
        self.epoch += 1
        self._on_clear()

    async def _listen(self) -> None:
        """Subscribe, and receive until the connection ends or is silent."""
        connection = await self._far.apart()
        beats: asyncio.Task[None] | None = None
        try:
            own, all_ = self._own.encode(), self._far.channel.encode()
            await connection.send_command("SUBSCRIBE", all_, own)
            confirmed = 0
            while True:
                said = await connection.read_response(timeout=self._lease_s, push_request=True)
                if said is None:
                    raise TimeoutError(f"no message for {self._lease_s} s")
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
            LOG.warning("malformed drop on %s, so level 1 was emptied", self._far.channel)
            self.renew()
        else:
            self._on_drop(*told)

    def _alive(self, data: str) -> None:
        """A heartbeat came back."""
        number, _, server = data.partition(" ")
        sent = self._sent.get(int(number))
        if sent is None:
            return
        self._came[server] = sent
        self._judge()

    def _judge(self) -> None:
        """Let level 1 serve for a lease from the oldest of the servers' heartbeats."""
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
