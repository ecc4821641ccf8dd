"""One process in the registry: its identity, its registration, and the map of all nodes, kept current by reading again.

Level triggered: at any event one loop reads the whole map and reconciles the registration. `readings.py` decides what of it
is asked for, `view.py` what to believe. While the registry does not answer the last map stays in use, and nothing else
happens.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import msgspec
import structlog

from muster_server.control.registry.epoch import EPOCH_MAX
from muster_server.control.registry.identities import Identities, IdentityTaken
from muster_server.control.registry.keeper import READERS_S
from muster_server.control.registry.places import (
    COUNT,
    ROOT,
    Ack,
    Certificate,
    Count,
    Identity,
    Node,
    Snapshot,
    State,
    Wrong,
    encode,
    folder,
    is_behind,
    layer,
    may_follow,
    read_count,
    read_identity,
)
from muster_server.control.registry.readings import FEW, Reader, Reading, Readings
from muster_server.control.registry.tree import BadVersion, Check, Entry, NodeExists, NoNode, Session, Tree, Unavailable
from muster_server.control.registry.view import HOLD_S, Judge, View
from muster_server.plane.kinds import partitioned

POLL_S: Final = 5.0
READS_S: Final = 20_000
"""Limit of entries per second that all nodes together read by polling: with more nodes, each one polls less often."""
POLLS_S: Final = 500
"""Limit of polls per second by all nodes that read the digest."""
SPREAD_S: Final = 0.2
"""Readings are delayed by up to this many seconds, so that one change does not start all processes at the same moment."""
RETRY_S: Final = 1.0
BACK_S: Final = 5.0
"""Seconds that running nodes have to return to a registry that lost everything, before others start there."""
MEND_S: Final = 1.0
"""An impossible count is replaced about this many seconds after it was read, and at most this often by one process."""
SAID_MAX: Final = 100
"""Limit of a replaced value in the log, in bytes."""
TRIED_MAX: Final = 64
"""Limit of epochs with which this process registered and that it remembers; each may have left an entry that ends with
an old session."""


@dataclass(slots=True)
class _Own:
    """The target state of this process's registration."""

    name: str
    node: Node
    partitions: int
    live: bool = False
    """It may be registered in this session, with this epoch."""
    path: str = ""
    """The path of its registration, once known."""
    leaving: bool = False
    superseded: bool = False
    """A later process of the name was registered, whether or not it still is."""
    tried: list[int] = field(default_factory=list)


class Directory:
    """Used in one loop, open as a context. `on_snapshot` is called with each new map."""

    def __init__(
        self,
        tree: Tree,
        log: structlog.typing.FilteringBoundLogger,
        *,
        root: str = ROOT,
        poll_s: float = POLL_S,
        spread_s: float = SPREAD_S,
        hold_s: float = HOLD_S,
        back_s: float = BACK_S,
        epoch: int = 0,
        judge: Judge | None = None,
        dice: random.Random | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.on_snapshot: Callable[[Snapshot], None] = lambda snapshot: None
        self.on_superseded: Callable[[], None] = lambda: None
        """Called when a later process of this name registers; this one is then removed."""
        self.on_displaced: Callable[[str], None] = lambda why: None
        """Called when the registry assigns this number to another name; this one is then removed."""
        self._tree, self._log, self._root = tree, log, root
        self._ended = False
        self._poll_s, self._spread_s, self._back_s = poll_s, spread_s, back_s
        self._dice = dice or random.Random()
        self._identities = Identities(tree, root=root, wall=wall)
        self._identities.runs = self._numbers
        self._readings = Readings(tree, root, log, self._dice, self._stir_in)
        self._view = View(log, hold_s=hold_s, epoch=epoch, judge=judge)
        self._own: _Own | None = None
        self._stirred, self._read, self._settled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._hurried, self._asked = asyncio.Event(), 0
        self._poll_at, self._whole = 0.0, True
        """The time of the next full reading, whatever the watches report."""
        self._stays = False
        """This is a node's process, not a reader."""
        self._unnamed = False
        """It takes its identity first: the number of names says how it reads."""
        self._polled = self._directly = False
        """The next reading also checks that the digest lives; it rests on no digest."""
        self._connected = asyncio.Event()
        self.trouble: Exception | None = None
        """The error of the last reading, or of the work that followed it."""
        self.takes_steps_of = ""
        """The layer whose growth this process coordinates: it may be the only one that knows the step."""
        self._begins = True
        self._mends: dict[str, tuple[int, float]] = {}
        """Refused counts: the version that was read, and the time of its replacement."""
        self._entries: Mapping[str, Entry] = {}
        """The last reading."""
        self.sessions_lost = 0
        """Number of registrations lost with their session."""
        self._timer: asyncio.Handle | None = None
        self._due = 0.0
        """The time at which the timer fires, by the loop's clock. uvloop's handle cannot say it if that is now."""
        self._task: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        self._tree.on_session(self._on_session)
        self._unwatch = self._tree.watch(self._root, self._stirred.set)
        await self._tree.start()
        self._task = asyncio.create_task(self._run(), name="registry")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._ended = True
        await self._tree.close()

    async def _numbers(self) -> set[int]:
        self._unnamed = False
        self._stirred.set()
        return {node.node for node in (await self.known()).nodes}

    def on_identity(self, keep: Callable[[Identity], Awaitable[None]]) -> None:
        """Await `keep` with each number and epoch that the process takes, before other nodes see it."""
        self._identities.keep = keep

    @property
    def snapshot(self) -> Snapshot:
        """The current map."""
        return self._view.snapshot

    @property
    def acks(self) -> Mapping[int, tuple[Ack, ...]]:
        """The acknowledgements of growing layers by the nodes of the map, by number."""
        return self._view.acks

    @property
    def session(self) -> Session:
        """The state of the connection to the registry."""
        return self._tree.session

    @property
    def heard_s(self) -> float:
        """Seconds within which other nodes read what this one has registered, unless the registry is busy."""
        return 1.5 * SPREAD_S + (SPREAD_S + len(self.snapshot.nodes) / READERS_S if self.digest else 0.0)

    @property
    def digest(self) -> bool:
        """It reads, or writes, a digest of the registry in place of each entry."""
        return self._readings.follows or self._readings.keeper.leads

    @property
    def digests(self) -> int:
        """The versions of the digest that this process has written."""
        return self._readings.keeper.written

    @property
    def requests(self) -> int:
        """The number of requests to the registry so far."""
        return self._tree.requests

    @property
    def refused(self) -> Mapping[str, str]:
        """Refused values, with the reason, by path."""
        return self._view.refused

    @property
    def refusals(self) -> int:
        """The number of values refused so far."""
        return self._view.refusals

    @property
    def doubts(self) -> int:
        """The number of vanished nodes that the map kept so far."""
        return self._view.doubts

    async def known(self) -> Snapshot:
        """Wait for the first map."""
        await self._read.wait()
        return self.snapshot

    async def names(self) -> dict[int, str]:
        """The stable names of all numbers ever taken. Raises `TreeError`."""
        return await self._identities.names()

    async def again(self) -> Snapshot:
        """Wait for a map read from the server after this call."""
        self._whole = self._directly = True
        self._hurry()
        await self._settled.wait()
        return self.snapshot

    def present(self) -> list[Node]:
        """The map's nodes that the registry's last reading contains, without those that are only kept for a while."""
        return [node for _, node in self._view.present()]

    def checks(self, of: str, first: int) -> list[Check]:
        """Conditions that the nodes of the map have not changed since they were read.

        First a running node for each partition of the layer `of` from `first` on, then others of these.
        """
        led: set[int] = set()

        def rank(found: tuple[str, Node]) -> int:
            node = found[1]
            if node.role not in partitioned() or layer(node.role, node.cluster) != of:
                return 3
            if node.partition < first:
                return 2
            if node.state != "running" or node.partition in led:
                return 1
            led.add(node.partition)
            return 0

        nodes = sorted(self._view.present(), key=rank)
        return [Check(f"{self._root}/{path}", self._entries[path].version) for path, _ in nodes]

    # --- identity
    # ------------------------------------------------------------------------------------------------------

    async def identity(self, name: str, node: int | None = None, epoch: int = 0, had: int | None = None) -> Identity:
        """Take the number of a stable name, and an epoch greater than any before and `epoch`.

        The number is `node` if given; else the one that the name has in the registry, or `had` before. A registry that
        does not know the name of a node with a number has lost data: running nodes get a while to return first. Waits
        for the registry. Raises `IdentityTaken`.
        """
        self._stays = self._unnamed = True
        try:
            return await self._named(name, node, epoch, had)
        finally:
            self._unnamed = False
            self._stirred.set()

    async def _named(self, name: str, node: int | None, epoch: int, had: int | None) -> Identity:
        waited = had is None
        while True:
            try:
                if not waited and not await self._identities.has(name):
                    self._log.warning(
                        "registry: it has forgotten this node; waiting for running nodes to return", name=name, node=had
                    )
                    await asyncio.sleep(self._jittered(self._back_s))
                waited = True
                return await self._identities.claim(name, node, epoch, had)
            except Unavailable:
                if self._connected.is_set():  # the report of the session's end may still be in transit
                    await asyncio.sleep(self._jittered(RETRY_S))
                else:
                    await _within(self._jittered(RETRY_S), self._connected)

    # --- registration
    # --------------------------------------------------------------------------------------------------

    def announce(self, name: str, node: Node, partitions: int = 1) -> None:
        """Register, and again with a new epoch whenever the registration is lost.

        `partitions`: the initial number of partitions of the node's layer, if the registry has none yet.
        """
        self._own = _Own(name, node, partitions)
        self._hurry()

    def update(self, state: State) -> None:
        """Register a new state."""
        if self._own is not None:
            self._own.node = msgspec.structs.replace(self._own.node, state=state)
            self._hurry()

    def weigh(self, weight: int) -> None:
        """Register a new weight."""
        if self._own is not None:
            self._own.node = msgspec.structs.replace(self._own.node, weight=weight)
            self._hurry()

    def certify(self, certificate: Certificate) -> None:
        """Register a new certificate."""
        if self._own is not None:
            self._own.node = msgspec.structs.replace(self._own.node, certificate=certificate)
            self._hurry()

    def acknowledge(self, acks: tuple[Ack, ...]) -> None:
        """Register an acknowledgement of growing layers."""
        if self._own is not None and self._own.node.acks != acks:
            self._own.node = msgspec.structs.replace(self._own.node, acks=acks)
            self._hurry()

    async def settled(self) -> Node | None:
        """Wait until the last change is in the registry, and return it; None after `leave`."""
        await self._settled.wait()
        return None if self._own is None else self._own.node

    async def leave(self) -> None:
        """Remove the registration. Waits for the registry."""
        if self._own is not None:
            self._own.leaving = True
            self._hurry()
            await self._settled.wait()

    def _hurry(self) -> None:
        self._asked += 1
        self._settled.clear()
        self._hurried.set()
        self._stirred.set()

    async def _keep(self, own: _Own, reading: Mapping[str, Entry]) -> None:
        claims = self._view.claims(own.node.node)
        if not own.superseded and await self._is_superseded(own, claims.values()):
            self._log.error("registry: a later process has this identity", name=own.name, node=own.node.node)
            own.superseded = own.leaving = True
        mine = None
        if own.live and not own.leaving:
            lost = (path for path, node in claims.items() if node.epoch == own.node.epoch)  # unless the answer was lost
            mine = own.path if own.path in reading else next(lost, None)
        for path, node in claims.items():
            forged = mine is not None and (node.epoch > own.node.epoch or node.role != own.node.role)
            if (forged or node.epoch in own.tried) and path != mine:
                with contextlib.suppress(NoNode):
                    await self._tree.delete(f"{self._root}/{path}")
        if own.leaving:
            self._own = None
            if own.superseded:
                self.on_superseded()
            return
        if own.node.role in partitioned():
            await self._count(own, reading)
            known = self.snapshot.counts.get(layer(own.node.role, own.node.cluster))
            own.node = msgspec.structs.replace(own.node, among=0 if known is None else known.partitions)
        if mine is None:
            try:
                await self._register(own)
            except IdentityTaken as taken:
                self._log.error(
                    "registry: this process's number belongs to another node now", name=own.name, cause=str(taken)
                )
                self._own = None
                self.on_displaced(str(taken))
        elif reading[mine].data != encode(own.node):
            await self._tree.set(f"{self._root}/{mine}", encode(own.node), reading[mine].version)

    async def _is_superseded(self, own: _Own, claims: Iterable[Node]) -> bool:
        """Whether a later process of the name is registered, in any role.

        An entry of the map counts only with an epoch of the name.
        """
        own_epoch = own.tried[-1] if own.tried else EPOCH_MAX
        later = [node.epoch for node in claims if node.epoch > own_epoch]
        entry = await self._tree.get(f"{self._root}/ids/{own.name}") if later else None
        if entry is None:
            return False
        try:
            taken = read_identity(entry.data)
        except Wrong:
            return False
        return taken.node == own.node.node and taken.epoch >= min(later)

    async def _register(self, own: _Own) -> None:
        if own.node.epoch in {0, *own.tried}:
            taken = await self._identities.claim(own.name, own.node.node, own.node.epoch)
            own.node = msgspec.structs.replace(own.node, epoch=taken.epoch)
        own.tried = [*own.tried[-TRIED_MAX:], own.node.epoch]
        own.live, own.path = True, ""  # from here on it may be registered, whatever the call returns
        path = await self._tree.create(
            f"{folder(self._root, own.node)}/r", encode(own.node), ephemeral=True, sequence=True
        )
        own.path = path.removeprefix(f"{self._root}/")
        self._log.info("registered", path=path, epoch=own.node.epoch)

    async def _mend(self, own: _Own | None, reading: Mapping[str, Entry]) -> None:
        """Write a growth's step again if the registry lost it, or has a value that is not a later step.

        Only registered nodes, or the growth's coordinator, do so: a reader may have an outdated view of a cluster. A
        possible step of a coordinator is left alone, whatever it is. A number that others use is accepted. If many
        nodes know the step, one writes it: each waits for a random time.
        """
        now, loop = time.monotonic(), asyncio.get_running_loop()
        for of, count in self.snapshot.counts.items():
            path = f"{of}/{COUNT}"
            if path not in reading or path not in self._view.refused:
                self._mends.pop(path, None)
                continue
            if own is None and of != self.takes_steps_of:
                continue
            data, version = reading[path]
            if not is_behind(data, count):
                if not self._insists(own, of, count, data):
                    continue
                if self._mends.get(path, (None, 0.0))[0] != version:
                    pause = self._jittered(MEND_S)
                    self._mends[path] = version, now + pause
                    loop.call_later(pause, self._stirred.set)
                if now < self._mends[path][1]:
                    continue
            with contextlib.suppress(BadVersion, NoNode):
                await self._tree.set(f"{self._root}/{path}", encode(count), version)
                self._log.warning(
                    "registry: mended", path=path, partitions=count.partitions, was=ascii(data[:SAID_MAX])
                )

    def _insists(self, own: _Own | None, of: str, count: Count, data: bytes) -> bool:
        """Whether this process insists on its own count against a refused one."""
        if own is None or may_follow(data, count):
            return False
        try:
            return read_count(data).partitions not in self._view.said(of, own.node.node)
        except Wrong:
            return True

    async def _count(self, own: _Own, reading: Mapping[str, Entry]) -> None:
        of = layer(own.node.role, own.node.cluster)
        if f"{of}/{COUNT}" not in reading:
            count = self.snapshot.counts.get(of, Count(own.partitions))
            with contextlib.suppress(NodeExists):
                await self._tree.create(f"{self._root}/{of}/{COUNT}", encode(count))

    # --- the map ------------------------------------------------------------------------------------------------------

    def _on_session(self, session: Session) -> None:
        if self._ended:  # ended by this process: nothing is lost
            return
        if session == "connected":
            self._log.info("registry", session=session)
        else:
            self._log.warning("registry", session=session)
        if session == "expired":
            self._readings.expired()
        if session == "expired" and self._own is not None:
            self.sessions_lost += 1
            self._own.live = False
            self._settled.clear()
        self._connected.clear()
        if session == "connected":
            self._connected.set()
            self._view.again(time.monotonic())
            self._stirred.set()

    async def _run(self) -> None:
        while True:
            await self._wait()
            try:
                if self._tree.session == "connected" and not self._unnamed:
                    await self._reconcile()
                    self.trouble = None
            except Exception as error:
                self._whole = True
                self._complain(error)
                asyncio.get_running_loop().call_later(self._jittered(RETRY_S), self._stirred.set)

    async def _wait(self) -> None:
        next_at = self._poll_at
        if self._view.deadline is not None and self._tree.session == "connected" and self.trouble is None:
            next_at = min(next_at, self._view.deadline)  # kept nodes are not released without a reading
        await _within(max(0.0, next_at - time.monotonic()), self._stirred)
        share = min(1.0, len(self.snapshot.nodes) / FEW) if self._begins else 1.0
        await _within(self._dice.uniform(0, share * self._spread_s), self._hurried)
        self._hurried.clear()
        self._stirred.clear()
        now = time.monotonic()
        if now >= self._poll_at:
            self._whole = self._polled = True
            self._poll_at = now + self._jittered(self._pause_s())

    def _pause_s(self) -> float:
        """Seconds between two polls, on average: watches report every known entry, and a poll reads all.

        By the digest a poll reads one entry.
        """
        nodes = len(self.snapshot.nodes)
        return max(self._poll_s, nodes / POLLS_S if self.digest else nodes**2 / READS_S)

    async def _reconcile(self) -> None:
        asked, began = self._asked, time.monotonic()
        if self._view.deadline is not None and began >= self._view.deadline:
            self._whole = True  # so that an old reading does not release kept nodes
        whole, directly, polled = self._whole, self._directly, self._polled
        self._whole = self._directly = self._polled = False
        try:
            reading = await self._readings.take(self._reader(), whole=whole, directly=directly, polled=polled)
        except BaseException:
            self._directly, self._polled = self._directly or directly, self._polled or polled
            raise
        if reading is None:
            return
        self._entries = reading.entries
        if self._taken(reading, began):
            self._publish()
        self._begins = self._begins and not self._serves()
        self._read.set()
        if self._own is None or self._own.live:
            await self._mend(self._own, reading.entries)
        if self._own is not None:
            await self._keep(self._own, reading.entries)
        if asked == self._asked and (self._own is None or self._own.live):
            self._settled.set()

    def _reader(self) -> Reader:
        own = self._own
        if own is None:
            return Reader(stays=self._stays, layers=self.snapshot.counts)
        node = own.node
        count = f"{layer(node.role, node.cluster)}/{COUNT}" if node.role in partitioned() else ""
        return Reader(own.path if own.live else "", count, not own.leaving, node.cluster, self.snapshot.counts)

    def _taken(self, reading: Reading, began: float) -> bool:
        """Whether the map changed."""
        if reading.changed is not None:
            news = {path: reading.entries.get(path) for path in reading.changed}
            changed = self._view.change({path: entry and entry.data for path, entry in news.items()})
            if changed is not None:
                return changed
        if reading.old and self._view.deadline is not None:
            return False  # kept nodes are not released without a reading
        return self._view.take({path: entry.data for path, entry in reading.entries.items()}, began)

    def _serves(self) -> bool:
        return self._own is not None and any(
            (node.node, node.epoch, node.state) == (self._own.node.node, self._own.node.epoch, "running")
            for node in self.snapshot.nodes
        )

    def _publish(self) -> None:
        try:
            self.on_snapshot(self.snapshot)
        except Exception:
            self._log.exception("the new map was not used", epoch=self.snapshot.epoch)

    def _complain(self, error: Exception) -> None:
        if repr(error) != repr(self.trouble):
            self._log.warning("registry: keeping the last map", trouble=f"{type(error).__name__}: {error}")
        self.trouble = error

    def _stir_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if not loop.time() < self._due <= loop.time() + seconds:
            if self._timer is not None:
                self._timer.cancel()
            self._due = loop.time() + seconds
            self._timer = loop.call_later(seconds, self._stirred.set)

    def _jittered(self, seconds: float) -> float:
        return self._dice.uniform(0.5, 1.5) * seconds


async def _within(seconds: float, event: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # not wait_for: before Python 3.12 it may swallow a cancellation
            await event.wait()
