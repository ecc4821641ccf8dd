"""Runs one engine on the loop: its descriptor, its events, drain. Knows no role.

The engine's descriptor is an inner epoll, so that an ICMP error on a UDP socket cannot block the loop's own poll.
`muster.turns` runs the turns: one Python call each.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import structlog

from muster.turns import Turns
from muster_server.plane.engine import Event
from muster_server.plane.role import Handler, Role
from muster_server.plane.service import Figure

DRAIN_POLL_S: Final = 0.02

ORDERLY: Final = frozenset({"renewed", "replaced", "closed"})
"""Reasons of a link's end that are no loss: another link replaces it, or the peer closed it."""


class Others(Protocol):
    """The other machines of the process, see `plane/together.py`."""

    def add(self, server: "Server") -> bool:
        """Run a machine's turns from now on; False if the limit is reached."""

    def remove(self, server: "Server") -> None:
        """Stop running its turns."""

    def linger(self, us: int) -> None:
        """Wait at most `us` microseconds for the next datagram of any machine."""

    def deliver(self) -> None:
        """Give a turn to the machines to which this machine's last turn has sent something."""


class Server:
    """Owns the engine from the first turn to `close`. Made and used in one loop."""

    def __init__(self, role: Role, log: structlog.typing.FilteringBoundLogger) -> None:
        self.others: Others | None = None
        """Set before it runs, if the process has other machines."""
        self.engine = role.engine
        self.place, self.name, self.take = role.place, role.name, role.take
        self.take_trust = role.take_trust
        self.texts = role.texts
        self.beside = role.beside
        self._counted = role.counters
        self.ready = False
        self.draining = False
        self.closed = False
        """The engine must not be called again."""
        self.on_ready: Callable[[bool], None] = lambda ready: None
        self.name_of: Callable[[int], str] = lambda node: ""
        """The stable name of a node; empty where it is unknown."""
        self._handlers: dict[str, Handler] = {
            "ready": self._became_ready,
            "not_ready": self._lost_ready,
            "stalled": self._stood_still,
            **role.handlers,
        }
        self._log = log
        self._turns: Turns | None = None
        self._failed: asyncio.Future[None] | None = None

    async def run(self, stop: asyncio.Event, drain_s: float) -> None:
        """Run turns until `stop` is set, then drain for at most `drain_s` seconds. Raises the engine's exception."""
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        if self.others is not None and not self.others.add(self):
            self.others = None
        self._turns = Turns(self.engine, self._dispatch_all, self._fail, watched=self.others is None)
        if self.others is not None:
            self._turns.after = self.others.deliver
        stopped = asyncio.create_task(stop.wait())
        try:
            self.turn()
            waited: set[asyncio.Future[Any]] = {self._failed, stopped}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                await self._failed
            await self._drain(drain_s)
        finally:
            stopped.cancel()
            if self.others is not None:
                self.others.remove(self)
            self.closed = True
            self._turns.close()

    def hear(self, handlers: Mapping[str, Handler]) -> None:
        """Call these at the engine's events of their names."""
        self._handlers.update(handlers)

    def status(self) -> dict[str, Any]:
        """The engine's status, and the server's own fields."""
        buffers = [{"asked": asked, "effective": effective} for asked, effective in self.engine.buffers()]
        state = "draining" if self.draining else "ready" if self.ready else "not ready"
        return {"state": state, "turns": self._count(), "receive_buffers": buffers, **self.engine.status()}

    def addresses(self) -> list[tuple[str, int]]:
        """The bound addresses: the one for clients first, if there is one, then the one for links."""
        return self.engine.addresses()

    def counters(self) -> list[Figure]:
        """All counters of the engine, its server, and the work beside it since the start."""
        return [*self.engine.counters(), ("turns", "Turns of the engine", self._count()), *self._counted()]

    def gauges(self) -> list[Figure]:
        """All gauges of the engine and its server."""
        late = ("loop_lag_seconds", "Longest delay of the event loop since the last scrape", self.engine.take_late())
        return [*self.engine.gauges(), late]

    def linger(self, us: int) -> None:
        """Let a turn wait at most `us` microseconds for the next datagram, if turns follow each other closely."""
        self.engine.linger(us)
        if self.others is not None:
            self.others.linger(us)

    def turn(self) -> bool:
        """As `Turns.turn`. An exception of the engine ends its node, and the supervisor restarts it."""
        return self._turns is None or self._turns.turn()

    def _fail(self, error: BaseException) -> None:
        if self._failed is not None:
            self._failed.set_exception(error if isinstance(error, Exception) else RuntimeError(f"engine: {error!r}"))

    def _count(self) -> int:
        return 0 if self._turns is None else self._turns.count

    def _dispatch_all(self, events: list[Event]) -> None:
        for event in events:
            self._dispatch(event)

    def _dispatch(self, event: Event) -> None:
        name, *fields = event
        handler = self._handlers.get(name)
        if handler is not None:
            handler(*fields)
        elif name in {"link_up", "link_down"}:
            node, role, detail = fields
            lost = name == "link_down" and not self.draining and detail not in ORDERLY
            (self._log.warning if lost else self._log.info)(name, **self._peer(node, role), detail=detail)
        elif name == "link_refused":
            node, role, _ = fields
            self._log.warning(
                "a node refused the handshake of this node: it has another cluster secret, or does not list "
                "this node's key",
                **self._peer(node, role),
            )
        elif name == "link_mistaken":
            node, role, found = fields
            self._log.warning(
                "a different node answers at the address of a node: two registered nodes have the same address",
                **self._peer(node, role),
                found=found,
            )
        elif name == "link_differs":
            node, role, theirs = fields
            self._log.warning(
                "no link: this node and its peer have no version of the protocol in common; upgrade the older one",
                **self._peer(node, role),
                theirs=list(theirs),
            )
        elif name == "link_unlisted":
            node, role, _ = fields
            self._log.warning(
                "no link: cluster.nodes_file does not list this node in this role",
                **self._peer(node, role),
            )
        elif name == "link_stranger":
            node, _, why = fields
            self._log.warning("handshake refused: the peer proved no key listed in nodes_file", says=node, detail=why)
        else:
            self._log.error("unknown event", name=name)

    def _peer(self, node: int, role: str) -> dict[str, Any]:
        """Fields for the log: the node at the other end of a link."""
        name = self.name_of(node)
        return {"peer": node, "peer_role": role} | ({"peer_name": name} if name else {})

    def _became_ready(self) -> None:
        self.ready = True
        self._log.info("ready")
        self.on_ready(True)

    def _lost_ready(self, reason: str) -> None:
        self.ready = False
        self._log.warning("not ready", reason=reason)
        self.on_ready(False)

    def _stood_still(self, seconds: float) -> None:
        self._log.warning("the event loop stalled", seconds=round(seconds, 3))

    async def _drain(self, drain_s: float) -> None:
        self.draining = True
        self.engine.drain()
        deadline = time.monotonic() + drain_s
        while not self.engine.drained():
            if time.monotonic() >= deadline:
                self._log.warning("not drained in time", seconds=drain_s)
                return
            self.turn()
            if self._failed is not None and self._failed.done():
                await self._failed
            await asyncio.sleep(DRAIN_POLL_S)
