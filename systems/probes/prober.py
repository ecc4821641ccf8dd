"""Sends and receives probes: a member of every probe room at every gateway, a publisher at every proxy (ROOM-13).

A client like others, through the library only. `paths.py` keeps the results, `rounds.py` the turns, and `rooms.py` the
brokers' rooms. Between the probes each publisher asks for a room's members: the answer has the time of each hop
(`hops.py`).
"""

import asyncio
import contextlib
import itertools
import secrets
import struct
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
import structlog

import muster
from muster.client import ROOMS_MAX
from muster_server.control.cluster import sdk
from muster_server.control.cluster.instance import Endpoint
from muster_server.control.errors import UserError
from muster_server.control.registry.places import Node, Snapshot
from muster_server.systems.probes.hops import Hops
from muster_server.systems.probes.paths import Figures, Ledger
from muster_server.systems.probes.rooms import Rooms
from muster_server.systems.probes.rounds import Rounds
from muster_server.systems.probes.system import Probes

LOOK_S: Final = 1.0
TICK_S: Final = 0.05
"""Longest delay of the report of a failed probe, in seconds."""
RETRY_S: Final = 0.5
UNANSWERED_MAX: Final = 8
"""Limit per proxy and broker. A probe that is not even numbered is not repeated without end: it fails."""
PATHS_MAX: Final = 16_384
"""Limit of paths; each takes about 0.5 KiB of memory with a window of 100."""
LINES_MAX: Final = 20
"""Limit of log lines within `LOOK_S`: one node may make thousands of paths fail."""
ASK_S: Final = 2.0
"""Shortest time between two requests to a proxy, in seconds: it allows a session one request per second."""
ASKED_SHARE: Final = 0.1
"""Share of `per_s_max` for requests: each goes to all gateways and back."""
PAYLOAD: Final = struct.Struct("<8sQ")


@dataclass(frozen=True, slots=True)
class Source:
    """The prober's source of the map, and its secrets: as a client, and to compute a room's owner."""

    snapshot: Callable[[], Snapshot]
    client: muster.Address
    """Only the credential: the map names the servers."""
    name_key: bytes


class Prober:
    """Runs as long as `run` does. `every_s` replaces the interval of the limits."""

    def __init__(
        self,
        limits: Probes,
        source: Source,
        log: structlog.typing.FilteringBoundLogger,
        *,
        every_s: float | None = None,
    ) -> None:
        self._source, self._log = source, log
        self._address = source.client
        self._rooms = Rooms(source.name_key)
        self._limits, self._every_s = limits, limits.every_ms / 1000 if every_s is None else every_s
        self._rounds = Rounds(self._every_s, limits.per_s_max)
        self.ledger = Ledger(limits, self._tell)
        self._hops = Hops()
        self.snapshot = Snapshot()
        self.paths = 0
        """The probed paths."""
        self.left_out = 0
        """Number of paths that are not probed, because there are more than `PATHS_MAX`."""
        self._run_id = secrets.token_bytes(8)
        self._listeners: dict[tuple[Node, int], _Listener] = {}
        self._publishers: dict[Node, _Publisher] = {}
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._by_proxy: dict[int, _Publisher] = {}
        self._gateways: list[int] = []
        self._told = 0
        """Alarms since the last look."""

    def limit(self, limits: Probes) -> None:
        """Use these limits from now on."""
        if limits != self._limits:
            self._limits, self._every_s = limits, limits.every_ms / 1000
            self._rounds.limit(self._every_s, limits.per_s_max)
            self.ledger.limit(limits)
            self._pace()

    async def run(self) -> None:
        """Probe until cancelled."""
        try:
            await self._turn()
        finally:
            tasks = [*self._tasks.values(), *self._sending]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _turn(self) -> None:
        look = wake = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= look:
                self._follow(now)
                self._sum_up()
                look = now + LOOK_S
            # After a delay of the loop, read the waiting messages first: a probe among them has not failed.
            self.ledger.pass_time(min(now, wake))
            for proxy, broker in self._rounds.due(now):
                self._send(now, proxy, broker)
            wake = now + min(TICK_S, self._rounds.wait_s(now))
            await asyncio.sleep(wake - now)

    # --- nodes ----------------------------------------------------------------------------------------------------

    def _follow(self, now: float) -> None:
        snapshot = self._source.snapshot()
        if snapshot is self.snapshot:
            return
        self.snapshot = snapshot
        moved = self._rooms.follow(snapshot)
        gateways = [node for node in snapshot.of("gateway") if _serves(node)]
        proxies = [node for node in snapshot.of("proxy") if _serves(node)]
        rooms = self._rooms.of
        pairs = sorted(
            (proxy.node, broker)
            for proxy in proxies
            for broker in rooms
            if self._rooms.cluster(broker) == proxy.cluster
        )
        fit = pairs[: PATHS_MAX // max(1, len(gateways))]
        self.paths = len(fit) * len(gateways)
        self.left_out = len(pairs) * len(gateways) - self.paths
        if self.left_out:
            self._log.warning("more paths than are probed", left_out=self.left_out, probed=self.paths)
        self._gateways = [node.node for node in gateways]
        self.ledger.keep({node.node for node in proxies}, rooms.keys(), set(self._gateways))
        self._hops.follow(fit, self._gateways)
        for broker in moved:
            self.ledger.excuse(now, broker)
        self._rounds.follow(fit)
        names = [rooms[broker] for broker in sorted(rooms)]
        parts = [set(names[at : at + ROOMS_MAX]) for at in range(0, len(names), ROOMS_MAX)]
        self._keep(
            self._listeners,
            {(_apart(node), at) for node in gateways for at in range(len(parts))},
            lambda key: _Listener(self._address, key[0], self._saw),
        )
        self._keep(
            self._publishers,
            {_apart(node) for node in proxies},
            lambda node: _Publisher(self._address, node, self._asked),
        )
        by_proxy: dict[int, list[str]] = {}
        for proxy, broker in fit:
            by_proxy.setdefault(proxy, []).append(rooms[broker])
        for node, publisher in self._publishers.items():
            publisher.want(by_proxy.get(node.node, []))
        self._pace()
        for (_, at), listener in self._listeners.items():
            listener.want(parts[at])
        self._by_proxy = {node.node: publisher for node, publisher in self._publishers.items()}

    def _pace(self) -> None:
        """Make the askers follow the limits."""
        pause_s = max(ASK_S, self._every_s, len(self._publishers) / (ASKED_SHARE * self._limits.per_s_max))
        for publisher in self._publishers.values():
            publisher.pace(pause_s, self._limits.timeout_ms / 1000)

    def _keep(self, have: "dict[_Key, _Each]", wanted: "set[_Key]", make: "Callable[[_Key], _Each]") -> None:
        for key in have.keys() - wanted:
            del have[key]
            self._tasks.pop(key).cancel()
        for key in wanted - have.keys():
            have[key] = make(key)
            self._tasks[key] = asyncio.create_task(have[key].run())

    def names(self) -> dict[int, str]:
        """The stable names of the nodes of the map."""
        return {node.node: node.name for node in self.snapshot.nodes}

    def figures(self, now: float) -> Iterator[Figures]:
        """The reports of all paths, with their hops."""
        return map(self._with_hops, self.ledger.figures(now))

    def worst(self, now: float, count: int) -> Iterator[Figures]:
        """The reports of this many paths, the worst first, with their hops."""
        return map(self._with_hops, self.ledger.worst(now, count))

    def _with_hops(self, figures: Figures) -> Figures:
        return msgspec.structs.replace(figures, hops=self._hops.of(figures.path))

    # --- probes -----------------------------------------------------------------------------------------------------

    def _send(self, now: float, proxy: int, broker: int) -> None:
        """A probe that cannot be sent is not seen, and so it fails."""
        number = self.ledger.send(now, proxy, broker, self._gateways)
        work = self._by_proxy[proxy].publish(broker, self._rooms.of[broker], PAYLOAD.pack(self._run_id, number))
        if work is not None:
            task = asyncio.create_task(work)
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def _saw(self, gateway: int, message: sdk.Message) -> None:
        if len(message.data) == PAYLOAD.size:
            run_id, number = PAYLOAD.unpack(message.data)
            if run_id == self._run_id:
                assert isinstance(message.position, muster.Position)
                self.ledger.saw(time.monotonic(), number, gateway, message.position.stream.node)

    def _asked(self, proxy: int, members: muster.Members) -> None:
        if not members.partial:  # otherwise the times would include the wait
            self._hops.take(proxy, members.hops)

    def _tell(self, figures: Figures) -> None:
        self._told += 1
        if self._told > LINES_MAX:
            return
        names = self.names()
        ends = figures.path._asdict()
        path = ends | {f"{role}_name": names.get(node, "") for role, node in ends.items()}
        if figures.failing:
            self._log.warning("path fails", **path, sent=figures.sent, seen=figures.seen)
        else:
            self._log.info("path works again", **path, sent=figures.sent, seen=figures.seen)

    def _sum_up(self) -> None:
        """Log the number of alarms without a line of their own."""
        if self._told > LINES_MAX:
            more, failing = self._told - LINES_MAX, self.ledger.failing
            self._log.warning("more paths fail, or work again", more=more, failing=failing)
        self._told = 0


def _serves(node: Node) -> bool:
    return node.state == "running" and node.client is not None


def _apart(node: Node) -> Node:
    """Fields of a node that a session with it depends on."""
    client = node.client
    return Node(node.node, node.role, node.host, node.link_port, client=client, public_key=node.public_key)


def _endpoint(node: Node) -> Endpoint:
    host, port = node.client or ("", 0)
    return Endpoint(node=node.node, host=host, port=port, public_key=node.public_key)


class _Listener:
    """The members at one gateway."""

    def __init__(self, address: muster.Address, node: Node, saw: Callable[[int, sdk.Message], None]) -> None:
        self._address, self._node, self._saw = address, node, saw
        self._wanted: set[str] = set()
        self._changed = asyncio.Event()

    def want(self, rooms: set[str]) -> None:
        """Join these rooms, and leave all others."""
        self._wanted = rooms
        self._changed.set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            with contextlib.suppress(UserError):
                await self._connected()
            await asyncio.sleep(RETRY_S)

    async def _connected(self) -> None:
        async with sdk.connect(self._address, publishes=False, at=_endpoint(self._node)) as client:
            readers: dict[str, asyncio.Task[None]] = {}
            try:
                while True:
                    self._changed.clear()
                    for room in readers.keys() - self._wanted:
                        readers.pop(room).cancel()
                    for room in self._wanted - readers.keys():
                        readers[room] = asyncio.create_task(self._read(client, room))
                    await self._changed.wait()
            finally:
                for reader in readers.values():
                    reader.cancel()
                await asyncio.gather(*readers.values(), return_exceptions=True)

    async def _read(self, client: sdk.Client, room: str) -> None:
        while True:
            with contextlib.suppress(muster.MusterError):
                async with client.join(room) as joined:
                    async for batch in joined.batches():
                        for item in batch:
                            if sdk.is_message(item):
                                self._saw(self._node.node, item)
            await asyncio.sleep(RETRY_S)


class _Publisher:
    """A publisher at one proxy, which asks for members between probes."""

    def __init__(
        self,
        address: muster.Address,
        node: Node,
        asked: Callable[[int, muster.Members], None],
    ) -> None:
        self._address, self._node, self._asked = address, node, asked
        self._rooms: Sequence[str] = ()
        self._pause_s, self._wait_s = ASK_S, 1.0
        self._client: sdk.Client | None = None
        self._unanswered: dict[int, int] = {}

    def want(self, rooms: Sequence[str]) -> None:
        """Ask about these rooms in turn."""
        self._rooms = rooms

    def pace(self, pause_s: float, wait_s: float) -> None:
        """Set the time between questions, and the time to wait for an answer."""
        self._pause_s, self._wait_s = pause_s, wait_s

    async def run(self) -> None:
        """Run until cancelled; unacknowledged probes are then abandoned."""
        while True:
            with contextlib.suppress(UserError):
                async with sdk.connect(self._address, reads=False, at=_endpoint(self._node)) as self._client:
                    await self._ask(self._client)
            self._client = None
            await asyncio.sleep(RETRY_S)

    def publish(self, broker: int, room: str, data: bytes) -> Coroutine[Any, Any, None] | None:
        """Return the coroutine that publishes one probe; None without a session, or with too many unacknowledged
        probes."""
        if self._client is None or self._unanswered.get(broker, 0) >= UNANSWERED_MAX:
            return None
        self._unanswered[broker] = self._unanswered.get(broker, 0) + 1
        return self._publish(self._client, broker, room, data)

    async def _ask(self, client: sdk.Client) -> None:
        for turn in itertools.count():
            with contextlib.suppress(muster.MusterError):
                if self._rooms:
                    room = self._rooms[turn % len(self._rooms)]
                    members = await client.members(room, ids=False, start=0, wait=self._wait_s)
                    self._asked(self._node.node, members)
            await asyncio.sleep(self._pause_s)

    async def _publish(self, client: sdk.Client, broker: int, room: str, data: bytes) -> None:
        try:
            with contextlib.suppress(muster.MusterError):
                await client.publish(room, data)
        finally:
            self._unanswered[broker] -= 1


_Key = TypeVar("_Key")
_Each = TypeVar("_Each", _Listener, _Publisher)
