"""One role's process in the registry: it registers its identity and state, and passes every map to its engine.

A start needs the registry and waits for it. From then on nothing on the message path waits for it: while it does not
answer, the last map stays in use. Knows no engine, only the functions that receive maps.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Set
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from muster import __version__
from muster_server.control.errors import ConfigError
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.identities import IdentityTaken
from muster_server.control.registry.number import NumberFile
from muster_server.control.registry.places import COUNT, Ack, Count, Node, Snapshot, State, concerns, layer
from muster_server.control.registry.server import STATE
from muster_server.control.registry.steps import Steps
from muster_server.control.registry.tree import Denied, Tree, TreeError
from muster_server.control.registry.view import Judge
from muster_server.plane.engine import Placement
from muster_server.plane.keys import KEY_BYTES
from muster_server.plane.kinds import clustered, kind, partitioned
from muster_server.plane.role import Servers
from muster_server.plane.spec import Registration, Spec, SpecError, secret

PATIENCE_S: Final = 1.0
"""Seconds after which the wait for the registry is reported."""
HAND_OVER_S: Final = 6.0
"""Limit of the time, in seconds, for which an ending broker keeps serving, for repairs of its gateways."""
AGAIN_S: Final = 0.5
"""Seconds between readings while the registry has impossible values for this process's layer."""
QUIET_S: Final = 1.0
LOOK_S: Final = 0.05
FRESH_S: Final = 0.5
"""A gateway that acknowledged everything within this many seconds has not stalled."""
SAID_S: Final = 1.0
"""Seconds for the registry to store that this process drains."""

REFUSED_MAX: Final = 100
"""Limit of refused values that operators are shown."""
UNCOVERED: Final = "Partitions whose rooms no node serves, because none of their replicas runs"
REPLICAS: Final = "Running replicas of the partition that has the fewest"
CERTIFIES_S: Final = 5.0
"""Seconds between checks whether the certificate must be renewed: the clock may have jumped, for example after suspend."""
SETTLED_S: Final = 0.1
"""Seconds between checks whether the engine has done its part of a growth."""

if TYPE_CHECKING:  # imported only where a server is certified
    from muster_server.control.registry.certified import Source

Take = Callable[[Placement], None]
"""The `place` function of a role."""
Name = Callable[[Servers], None]
"""The `name` function of a role."""


def load(where: Registration) -> None:
    """Load the library that `tree` needs."""
    if where.url == "embedded":
        import muster_server.control.registry.embedded
    else:
        import muster_server.control.registry.zookeeper  # noqa: F401


def tree(where: Registration) -> Tree:
    """The client of the registry that the spec names; no other library is loaded. Raises `SpecError`."""
    if where.url == "embedded":
        from muster_server.control.registry.embedded import EmbeddedTree

        return EmbeddedTree(Path(where.folder), session_s=where.session_ms / 1000)
    from muster_server.control.config.zookeeper import servers
    from muster_server.control.registry.zookeeper import ZooKeeperTree

    try:
        return ZooKeeperTree(servers(where.url, session_s=where.session_ms / 1000, **_credentials(where)))
    except ValueError as error:
        raise SpecError(f"registry.url: {error}") from None
    except OSError as error:
        files = " or ".join(filter(None, (where.tls_ca_file, where.tls_cert_file)))
        raise SpecError(f"registry.tls_ca_file: cannot use {files}: {error.strerror or error}") from None


def _credentials(where: Registration) -> dict[str, Any]:
    tls = {"ca": where.tls_ca_file, "certificate": where.tls_cert_file, "key": where.tls_key_file}
    return tls | _user(where)


def _user(where: Registration) -> dict[str, Any]:
    if where.auth == "none":
        return {}
    try:
        password = Path(where.password_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"registry.password_file: {where.password_file}: cannot be read: {error}") from None
    if where.auth == "digest":
        return {"digest": f"{where.user}:{password}"}
    return {"sasl": {"mechanism": "DIGEST-MD5", "username": where.user, "password": password}}


def judge(where: Registration) -> Judge | None:
    """The judge of the servers in the registry; None if this process presents no credential to them."""
    if not where.signing_keys:
        return None
    from muster_server.control.registry.certified import Certified  # loads a library

    return Certified(where.signing_keys)


def _source(where: Registration, log: structlog.typing.FilteringBoundLogger) -> "Source":
    """The source of this server's certificate. Raises `SpecError`."""
    from muster_server.control.registry.certified import Delivered, Signer  # loads a library

    if where.signing_key_file:
        return Signer(secret(where.signing_key_file, KEY_BYTES))
    return Delivered(Path(where.certificate_file), where.signing_keys, log)


class Enrolment:
    """Made by `enrolled`. Used in one loop."""

    def __init__(self, spec: Spec, directory: Directory, log: structlog.typing.FilteringBoundLogger) -> None:
        assert spec.registry is not None
        self.on_registered: Callable[[], None] = lambda: None
        """Called when the map shows that this process serves, and when it shows so for all nodes that start with it."""
        self.on_superseded: Callable[[], None] = lambda: None
        """Called when a later process of the same name registers: this one must end."""
        self.on_displaced: Callable[[], None] = lambda: None
        """Called when the registry assigns this process's number to another node: this one must end too."""
        self._spec, self._where, self._directory, self._log = spec, spec.registry, directory, log
        self._kind = kind(spec.role)
        self._take: Take = _nowhere
        self._name: Name = _to_nobody
        self._settled: Callable[[], bool] = _all_done
        self._looks: asyncio.TimerHandle | None = None
        self._certifies: asyncio.TimerHandle | None = None
        self._steps = Steps()
        self._names: Mapping[int, str] = {}
        self._growing: Mapping[str, tuple[int, str]] = {}
        """For each layer: partitions and step of each growth that this process knows of."""
        self._others: list[str] = []
        """The other clusters, in the order in which they appeared: an engine knows them by their index."""
        self._own = Node(
            spec.node,
            spec.role,
            *(spec.link_bind or (spec.admin[0], 0)),
            partition=self._where.partition,
            state="init",
            cluster=self._where.cluster,
            client=self._where.client,
            public_key=self._where.public_key,
            weight=1 if spec.weight is None else spec.weight,
            admin=spec.admin,
            version=__version__,
            name=self._where.name,
            secure=self._where.secure,
        )
        self._apart = False
        """True while it has stepped back."""
        self.registered = False
        """True once the map has shown that this process serves."""
        self.acquainted = False
        """True once the map has shown so for all nodes that start with it."""
        self.superseded = False
        self.displaced = ""
        """The new owner of this process's number, if the registry reassigned it."""
        self._placed = asyncio.Event()
        directory.on_snapshot, directory.on_superseded = self._on_snapshot, self._on_superseded
        directory.on_displaced = self._on_displaced

    @property
    def name(self) -> str:
        """The stable name that owns this process's number."""
        return self._where.name

    @property
    def partitions(self) -> int:
        """The partitions of this process's layer; during a growth, the number before it until it is final."""
        return self._count(self._directory.snapshot).partitions

    # --- its life -------------------------------------------------------------------------------------------------

    async def begin(self) -> Spec:
        """Wait for the registry, take an epoch and the first map, and return the spec with both.

        Raises `SpecError`, and `ConfigError` if the registry refuses this client.
        """
        spec, where = self._spec, self._where
        kept = NumberFile(Path(where.number_file), self._log) if where.number_file else None
        before = None if kept is None else kept.read()
        if kept is not None:
            self._directory.on_identity(kept.write)
        epoch, had = (spec.epoch - 1, None) if before is None else (max(spec.epoch - 1, before.epoch), before.node)
        try:
            identity = await self._directory.identity(where.name, spec.node or None, epoch, had)
            snapshot = await self._known()
        except Denied as denied:
            keys = "check registry.auth, registry.user and registry.password_file"
            raise ConfigError(f"registry {where.url}: {denied}; {keys}") from None
        except (IdentityTaken, TreeError) as error:
            raise SpecError(f"registry {where.url}: {error}") from None
        taken = {"node": identity.node, "epoch": identity.epoch}
        self._own = msgspec.structs.replace(self._own, **taken)
        if where.signing_key_file or where.certificate_file:
            self._certify(_source(where, self._log))
        if spec.role in partitioned():
            of, mine = layer(spec.role, where.cluster), self._first_count
            count = snapshot.counts.get(of, Count(mine))
            least = count.spread
            known = f"registry {where.url}: {of} has {least} partitions"
            if mine not in {least, count.wide} and not where.grown:
                raise SpecError(f"{known}, but up.{kind(spec.role).plural} asks for {mine}; {self._way(least, mine)}")
            if where.partition >= count.wide:
                key = f"serve.{spec.role}_partitions"
                first = "" if of in snapshot.counts else f", by {key}, as no node has registered yet"
                raise SpecError(f"{known}{first}, so there is no partition {where.partition}")
        placement = self._placement(snapshot)  # it learns of other clusters once it is attached
        return msgspec.structs.replace(
            spec, **taken, placement_epoch=placement.epoch, nodes=placement.nodes, layers=dict(placement.layers)
        )

    def _way(self, partitions: int, wanted: int) -> str:
        """The remedy if the layer has another number of partitions than the configuration."""
        start = f"start it with {partitions}"
        if wanted < partitions:  # the number cannot be reduced
            return start
        grow = f"{start}, and run muster cluster grow {self._spec.role} --to {wanted} while it runs"
        if self._where.url != "embedded":
            return grow
        return f"{grow}, or delete {Path(self._where.folder) / STATE} to start from scratch"

    async def _known(self) -> Snapshot:
        """The first map with plausible values for this process's layer."""
        snapshot = await self._directory.known()
        if self._own.role not in partitioned():
            return snapshot
        of = layer(self._own.role, self._own.cluster)
        path, said = f"{of}/{COUNT}", ""
        while of not in snapshot.counts and path in self._directory.refused:
            if (cause := self._directory.refused[path]) != said:
                self._log.warning("waiting for a plausible number of partitions", path=path, cause=cause)
                said = cause
            await asyncio.sleep(AGAIN_S)
            snapshot = await self._directory.again()
        return snapshot

    def attach(self, take: Take, settled: Callable[[], bool], name: Name | None = None) -> None:
        """Pass every map to this engine from now on, and register. Some roles register only once they serve.

        `settled` returns whether the engine has done what the last map requires of it. `name` receives the servers that
        clients learn.
        """
        self._take, self._settled, self._name = take, settled, name or _to_nobody
        if self._kind.registers == "starting":
            self._announce()
        self._on_snapshot(self._directory.snapshot)

    def detach(self) -> None:
        """Stop: the engine gets no more maps and no more calls."""
        self._take, self._settled, self._name = _nowhere, _all_done, _to_nobody
        for timer in (self._looks, self._certifies):
            if timer is not None:
                timer.cancel()

    def _certify(self, source: "Source") -> None:
        """Register each new certificate of this process, and check again after a while."""
        made = source.fresh(self._own, time.time())
        if made is not None:
            self._own = msgspec.structs.replace(self._own, certificate=made)
            self._directory.certify(made)
        self._certifies = asyncio.get_running_loop().call_later(CERTIFIES_S, self._certify, source)

    def weigh(self, weight: int) -> None:
        """Register a new weight of this process."""
        if weight != self._own.weight:
            self._own = msgspec.structs.replace(self._own, weight=weight)
            self._directory.weigh(weight)

    def serve(self) -> None:
        """Called when the engine is ready: other nodes may use this process, unless it has stepped back."""
        if self._own.state == "init":
            state: State = "draining" if self._apart else "running"
            self._own = msgspec.structs.replace(self._own, state=state)
            if self._kind.registers == "serving":
                self._announce()
            else:
                self._directory.update(state)

    @property
    def connected(self) -> bool:
        """Whether the map is current, and other nodes see this process."""
        return self._directory.session == "connected"

    def can_be_spared(self) -> bool:
        """Whether at least half of the other servers that clients may use serve."""
        own = self._own
        kind = [
            node
            for node in self._directory.snapshot.of(own.role)
            if node.node != own.node and (own.role not in clustered() or node.cluster == own.cluster)
        ]
        serving = [node for node in kind if node.state == "running" and node.weight > 0]
        return 2 * len(serving) >= len(kind) + 1

    async def step_back(self) -> None:
        """Register that clients should not come at present. A process that does not serve yet gets none anyway."""
        self._apart = True
        if self._own.state != "init":
            await self._say_draining()

    def step_forward(self) -> None:
        """Register that it serves again, if it served before."""
        self._apart = False
        if self._own.state != "init":
            self._own = msgspec.structs.replace(self._own, state="running")
            self._directory.update("running")

    async def hand_over(self, moved: Callable[[], object], in_flight: Callable[[], Mapping[int, int]]) -> None:
        """Register that this process drains. A role that hands over then waits until its peers have everything.

        They have it when no counter of `moved` has grown for a while, though all peers are linked and acknowledge:
        `in_flight` returns the unacknowledged datagrams by peer. Without a successor it stays the owner to its end;
        without the registry no peer would learn of the drain.
        """
        if not self._can_say or (self._kind.hands_over_to and not self._has_successor()):
            return
        await self._say_draining()
        if self._kind.hands_over_to:
            began = asyncio.get_running_loop().time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HAND_OVER_S):
                    await self._quiet(moved, in_flight)
            self._log.info("handed over", seconds=round(asyncio.get_running_loop().time() - began, 3))

    async def leave(self) -> None:
        """Called after the engine's end. Registers that it drains, if that is not done, so that its end is believed."""
        if self._can_say and self._own.state == "running":
            await self._say_draining()

    @property
    def _can_say(self) -> bool:
        return self.connected and not self.superseded and not self.displaced

    async def _say_draining(self) -> None:
        self._own = msgspec.structs.replace(self._own, state="draining")
        self._directory.update("draining")
        if not self.connected:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SAID_S):
                await self._directory.settled()
                await asyncio.sleep(self._directory.heard_s)

    async def _quiet(self, moved: Callable[[], object], in_flight: Callable[[], Mapping[int, int]]) -> None:
        while self._state(self._directory.snapshot) != "draining":
            self._placed.clear()
            await self._placed.wait()
        loop, to = asyncio.get_running_loop(), self._kind.hands_over_to
        before, since, clear = moved(), loop.time(), dict[int, float]()
        while self._has_successor():
            await asyncio.sleep(LOOK_S)
            now, flying = loop.time(), in_flight()
            if (counted := moved()) != before:
                before, since = counted, now
            clear |= {node: now for node, count in flying.items() if not count}
            peers = [node.node for node in self._directory.snapshot.of(to) if node.state == "running"]
            if now >= since + QUIET_S and all(now < clear.get(node, 0.0) + FRESH_S for node in peers):
                return

    def _has_successor(self) -> bool:
        return any(
            node.node != self._own.node
            and (node.partition, node.state, node.cluster) == (self._own.partition, "running", self._own.cluster)
            for node in self._directory.snapshot.of(self._spec.role)
        )

    # --- the map --------------------------------------------------------------------------------------------------

    def _announce(self) -> None:
        self._directory.announce(self._where.name, self._own, self._first_count)

    @property
    def _first_count(self) -> int:
        return self._spec.layers.get(self._spec.role, (1, 0))[0]

    def name_of(self, node: int) -> str:
        """The stable name of a node of the map; empty if it is unknown."""
        return self._names.get(node, "")

    def _say_growth(self, counts: Mapping[str, Count]) -> None:
        """Log each step of each growth as this process learns of it."""
        now = {of: (count.growth.to, count.growth.step) for of, count in counts.items() if count.growth}
        for of, (to, step) in now.items():
            if self._growing.get(of) != (to, step):
                self._log.info("growth", layer=of, partitions=counts[of].partitions, to=to, step=step)
        for of in self._growing.keys() - now.keys():
            self._log.info("growth has ended", layer=of, partitions=counts[of].partitions if of in counts else None)
        self._growing = now

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        self._names = {node.node: node.name for node in snapshot.nodes}
        self._say_growth(snapshot.counts)
        self._steps.take(snapshot.counts, time.monotonic())
        if self._own.role not in partitioned() or self._own.partition < self._count(snapshot).wide:
            self._take(self._placement(snapshot))  # otherwise its partition was removed, and it must end
        # With several clusters a proxy names the proxies of its own cluster, a gateway names all.
        self._name(snapshot.servers(self._own.cluster if self._own.role in clustered() else None))
        self._look()
        self._placed.set()
        if not self.acquainted:
            self._look_around(snapshot)

    def _on_superseded(self) -> None:
        self.superseded = True
        self.on_superseded()

    def _on_displaced(self, why: str) -> None:
        self.displaced = why
        self.on_displaced()

    def _look_around(self, snapshot: Snapshot) -> None:
        running = {node.node for node in snapshot.nodes if node.state == "running"}
        registered = self.registered or self._said(snapshot) == "running"
        acquainted = registered and running.issuperset(self._where.fellows)
        if (registered, acquainted) != (self.registered, self.acquainted):
            self.registered, self.acquainted = registered, acquainted
            self.on_registered()

    def _look(self) -> None:
        """Acknowledge growing layers, as far as the engine has followed; check again while one grows."""
        if self._looks is not None:
            self._looks.cancel()
            self._looks = None
        growing = [(of, count) for of, count in self._directory.snapshot.counts.items() if count.growth]
        mine = [(of, count) for of, count in growing if self._concerns(of)]
        settled = self._settled() if mine else False
        self._directory.acknowledge(tuple(Ack(of, count.serial, settled) for of, count in sorted(mine)))
        if mine:
            self._looks = asyncio.get_running_loop().call_later(SETTLED_S, self._look)

    def _concerns(self, of: str) -> bool:
        return concerns(of, self._own.role, self._own.cluster)

    def _placement(self, snapshot: Snapshot) -> Placement:
        """The map for the engine: this process is always in it, in the state that others know.

        A role with clusters gets the nodes of its own cluster. A router or a gateway, which serve all, get the other
        clusters' nodes too, so that the engine uses nothing that these nodes have not learned of.
        """
        cluster = self._own.cluster
        own = msgspec.structs.replace(self._own, state=self._state(snapshot))
        others = [node for node in snapshot.nodes if node.node != own.node]
        first = {layer(role, cluster): Count(partitions) for role, (partitions, _) in self._spec.layers.items()}
        counts = first | dict(snapshot.counts)
        whole = Snapshot(snapshot.epoch, tuple(sorted([*others, own], key=lambda node: node.node)), counts)
        if self._own.role not in clustered():
            known = {cluster, *self._others}
            self._others += [other for other in whole.clusters() if other not in known]
        beside = whole.beside(self._own.role, self._others)
        return Placement(
            whole.epoch, whole.entries(self._own.role, cluster), whole.layers(self._own.role, cluster), beside
        )

    def _count(self, snapshot: Snapshot) -> Count:
        """The partitions of this process's layer."""
        return snapshot.counts.get(layer(self._own.role, self._own.cluster), Count(self._first_count))

    def _state(self, snapshot: Snapshot) -> State:
        return self._said(snapshot) or self._own.state

    def _said(self, snapshot: Snapshot) -> State | None:
        """The map's entry for the current epoch of this process."""
        for node in snapshot.nodes:
            if node.node == self._own.node and node.epoch >= self._own.epoch:
                return node.state
        return None

    # --- status -------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The state for operators, ready for JSON."""
        directory = self._directory
        return {
            "url": self._where.url,
            "session": directory.session,
            "state": self._said(directory.snapshot) or "absent",
            "placement_epoch": directory.snapshot.epoch,
            "nodes": {str(node.node): node.state for node in directory.snapshot.nodes},
            "weights": {str(node.node): node.weight for node in directory.snapshot.nodes if node.client is not None},
            "partitions": msgspec.to_builtins(dict(directory.snapshot.counts)),
            "uncovered": directory.snapshot.uncovered(),
            "growth_step_s": self._steps.seconds(time.monotonic()),
            "refused": dict(islice(directory.refused.items(), REFUSED_MAX)),
        }

    @property
    def snapshot(self) -> Snapshot:
        """The current map."""
        return self._directory.snapshot

    @property
    def session(self) -> str:
        """The state of the connection to the registry."""
        return self._directory.session

    def nodes(self) -> Set[int]:
        """All node numbers in the current map."""
        return {node.node for node in self._directory.snapshot.nodes}

    def placement(self) -> dict[str, Any]:
        """The current map, ready for JSON."""
        snapshot = self._directory.snapshot
        return {
            "epoch": snapshot.epoch,
            "partitions": {of: count.partitions for of, count in snapshot.counts.items()},
            "growth": {of: msgspec.to_builtins(count) for of, count in snapshot.counts.items() if count.growth},
            "nodes": msgspec.to_builtins(snapshot.nodes),
        }

    def counters(self) -> list[tuple[str, str, float]]:
        """Name, help and value of each counter, in the form of an engine."""
        directory = self._directory
        return [
            ("registry_sessions_lost", "Sessions with the registry that expired", directory.sessions_lost),
            ("registry_refused", "Values read from the registry that were refused", directory.refusals),
            (
                "registry_doubted",
                "Nodes kept in the map although the registry had lost most of their role",
                directory.doubts,
            ),
            ("registry_requests", "Requests to the registry", directory.requests),
            (
                "registry_digests",
                "Versions of the digest of the registry that this process has written",
                directory.digests,
            ),
        ]

    def gauges(self) -> list[tuple[str, str, float]]:
        """Name, help and value of each gauge, in the form of an engine."""
        connected, snapshot = self.connected, self._directory.snapshot
        uncovered, replicas = snapshot.uncovered(), snapshot.replicas_least()
        at_step = max(self._steps.seconds(time.monotonic()).values(), default=0.0)
        return [
            ("registry_connected", "1 while there is a session with the registry", float(connected)),
            ("registry_nodes", "Nodes in the current map", float(len(snapshot.nodes))),
            ("registry_digest", "1 while it reads or writes a digest, 0 with few nodes", float(self._directory.digest)),
            (
                "registry_growth_step_seconds",
                "Time since a growth of partitions entered its step, 0 without a growth",
                at_step,
            ),
            *((f'registry_partitions_uncovered{{layer="{of}"}}', UNCOVERED, len(at)) for of, at in uncovered.items()),
            *((f'registry_replicas_least{{layer="{of}"}}', REPLICAS, least) for of, least in replicas.items()),
            ("placement_epoch", "Maps that this process has used, including the current one", float(snapshot.epoch)),
        ]


def _to_nobody(servers: Servers) -> None:
    """Default receiver of servers without an engine: ignore."""


def _all_done() -> bool:
    """Default without an engine: the map's work is done."""
    return True


def _nowhere(placement: Placement) -> None:
    """Default receiver of maps without an engine: ignore."""


@contextlib.asynccontextmanager
async def enrolled(
    spec: Spec, log: structlog.typing.FilteringBoundLogger, waits: Callable[[str], None]
) -> AsyncIterator[tuple[Spec, Enrolment]]:
    """The spec with the registry's values, and the enrolment that keeps them current while the block lasts. Raises
    `SpecError`.

    `waits` is called when it waits for the registry.
    """
    assert spec.registry is not None
    where = f"the registry {spec.registry.url}"

    def late() -> None:
        log.warning(f"waits for {where}", admin=spec.admin)
        waits(where)

    async with Directory(tree(spec.registry), log, judge=judge(spec.registry)) as directory:
        made = Enrolment(spec, directory, log)
        impatient = asyncio.get_running_loop().call_later(PATIENCE_S, late)
        try:
            begun = await made.begin()
        finally:
            impatient.cancel()
        yield begun, made
        await made.leave()
