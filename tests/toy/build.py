"""Makes the toy's roles. Its engine is Python: real sockets, nothing on them."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

from muster.turns import EVENTS
from muster_server._engines import Mailboxes
from muster_server.plane.engine import Event, Placement
from muster_server.plane.role import Role
from muster_server.plane.service import Context, Figure
from muster_server.plane.spec import Spec
from tests.toy.system import Steps, ToySettings


class Engine:
    """A `plane.engine.Engine`: ready once it has a map in which it is."""

    def __init__(self, spec: Spec, step: int) -> None:
        self.node, self.step, self.counted = spec.node, step, 0
        self.placed: Placement | None = None
        self.draining = False
        self._waiting: list[Event] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        assert spec.link_bind is not None
        self._socket.bind(spec.link_bind)
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK)

    def fd(self) -> int:
        return self._wake

    def join(self, mailboxes: Mailboxes) -> int:
        raise OverflowError("it sends nothing that could go through memory")

    def linger(self, us: int) -> None:
        """Its turns never do."""

    def place(self, placement: Placement) -> None:
        if self.placed is None:
            self._waiting.append(("ready",))
            os.write(self._woken, b"x")
        self.placed = placement

    def take(self, settings: Steps) -> None:
        self.step = settings.step

    def turn(self) -> int:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 64)
        self.counted += self.step
        return EVENTS if self._waiting else 0

    def events(self) -> list[Event]:
        taken, self._waiting = self._waiting, []
        return taken

    def take_late(self) -> float:
        return 0.0

    def cluster_keys(self, *keys: Any) -> None:
        """Without links there is nothing to seal."""

    def settled(self) -> bool:
        return True

    def counters(self) -> list[tuple[str, str, int]]:
        return [("toy_counted", "Counts of the toy", self.counted)]

    def gauges(self) -> list[Figure]:
        return [("toy_step", "What each count adds", self.step)]

    def status(self) -> dict[str, Any]:
        nodes = [] if self.placed is None else [entry[0] for entry in self.placed.nodes]
        layers = {} if self.placed is None else dict(self.placed.layers)
        return {"links": [], "links_lost": [], "step": self.step, "nodes": nodes, "layers": layers}

    def addresses(self) -> list[tuple[str, int]]:
        return [self._socket.getsockname()[:2]]

    def buffers(self) -> list[tuple[int, int]]:
        return []

    def drain(self) -> None:
        self.draining = True

    def drained(self) -> bool:
        return self.draining

    def close(self) -> None:
        self._socket.close()
        os.close(self._wake)
        os.close(self._woken)


class Service:
    """A `plane.service.Service`."""

    take_trust = None

    def __init__(self, spec: Spec, settings: ToySettings, context: Context, listens: bool) -> None:
        self.ready = self.draining = self.closed = False
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self._told, self._context, self._bind, self.shown = settings, context, spec.bind if listens else None, 0

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        server = None
        if self._bind is not None:
            server = await asyncio.start_server(self._show, *self._bind)
        self.ready = True
        self.on_ready(True)
        await stop.wait()
        if server is not None:
            server.close()
        self.closed = True

    async def _show(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.shown += 1
        writer.write(self._told.options["greeting"].encode())
        writer.close()

    def status(self) -> dict[str, Any]:
        snapshot = self._context.snapshot()
        return {"state": "ready" if self.ready else "not ready", "counters": len(snapshot.of("counter"))}

    def counters(self) -> list[Figure]:
        return [("toy_shown", "Greetings", self.shown)]

    def gauges(self) -> list[Figure]:
        return []

    def addresses(self) -> list[tuple[str, int]]:
        return [] if self._bind is None else [self._bind]

    def take(self, settings: ToySettings) -> None:
        """Nothing changes while it runs."""


def counter(spec: Spec, settings: Steps) -> Role:
    engine = Engine(spec, settings.step)
    return Role(engine, place=engine.place, take=engine.take)


def window(spec: Spec, settings: ToySettings, context: Context) -> Service:
    return Service(spec, settings, context, listens=True)


def clock(spec: Spec, settings: ToySettings, context: Context) -> Service:
    return Service(spec, settings, context, listens=False)


def pages(engine: Engine, path: str, query: str) -> tuple[int, Any] | None:
    return (200, {"counted": engine.counted}) if path == "/api/v1/toy" else None
