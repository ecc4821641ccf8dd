"""`muster up`: nodes on this machine, each in a process or several in one, restarted when they die, stopped together.

Combines the instance's folder, the chosen addresses, the placement and one `Child` per node. With a registry the
children register there, this process serves the embedded one, and commands add and remove nodes.
"""

import asyncio
import contextlib
import functools
import os
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, Self

import msgspec
import structlog
from msgspec import UNSET

from muster import __version__
from muster.instance import pid_namespace, start_time
from muster_server import _engines
from muster_server.control.cluster import instance, requests, specs
from muster_server.control.cluster.child import Backoff, Child
from muster_server.control.cluster.instance import Endpoint, Process, Record
from muster_server.control.cluster.kept_ports import KeptPorts
from muster_server.control.cluster.programs import Programs
from muster_server.control.cluster.requests import Add, Counted, Look, Provide, Remove, Request, Seated, Withdraw
from muster_server.control.cluster.roster import Roster
from muster_server.control.cluster.shared import SharedProcess, Tenant
from muster_server.control.cluster.template import Node as Forked
from muster_server.control.cluster.template import Template
from muster_server.control.config.layout import NODES_MAX, Seat, of_instance, seat_name, together, wanted
from muster_server.control.config.load import Loaded
from muster_server.control.config.options import LINKS, Config, Faults
from muster_server.control.errors import TRY_LATER, ConfigError, UserError
from muster_server.control.host.addresses import split_address
from muster_server.control.host.openfiles import enough_files
from muster_server.control.host.ports import Ports
from muster_server.control.node.enrolment import tree
from muster_server.control.node.live import Live, Now, merged, needing_restart, reloading
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.epoch import next_epoch
from muster_server.control.registry.places import ROOT, Count, Node, Snapshot, layer
from muster_server.control.registry.server import RegistryServer
from muster_server.control.registry.tree import Tree, TreeError
from muster_server.plane import systems
from muster_server.plane.files import write_atomically
from muster_server.plane.kinds import command_keys, doors, kind, kinds, system_of
from muster_server.plane.spec import Fault, Registration, Spec, SpecError, secret

if TYPE_CHECKING:  # imported only with a registry
    from muster_server.control.cluster.certifier import Certifier

"""The program of a node, and of the template from which nodes are forked."""
READY_S: Final = 20.0
READY_EACH_S: Final = 1.0
"""Additional seconds for each node: all start at once, on the available cores."""
REGISTRY_S: Final = 2.0
"""Seconds that a start waits for the registry's numbers of partitions. If they come later, missing nodes start then."""
_PortRequest = tuple[dict[Seat, tuple[str, int]], Seat, str, str, int]
"""Table for the address, its node, the key that configures it, and the requested host and port."""
Started = Forked | Tenant
Start = Callable[[str], Awaitable[Started]]
"""Starts a node, given the file of its spec."""
STARTS_MAX: Final = 3
BASE: Final = "rooms"
"""The system without which an instance does not start. Other systems may start later."""
AGAIN_S: Final = 15.0
"""A node of another system that refuses to start (a damaged store, a server that does not run yet) is retried after
this many seconds."""
TURN_S: Final = 5.0
"""A node that starts later blocks the next start for this many seconds, unless it serves earlier."""
KILL_S: Final = 2.0
LEAVE_S: Final = 10.0
"""Additional seconds with a registry: a broker first hands over its rooms, and the end is registered."""
FORSAKE_S: Final = 3.0
"""Additional seconds with a companion, which may have to write at the end: a database's driver may wait this long for a
stalled server."""
WRITE_AGAIN_S: Final = 1.0
OTHERS: Final = ("serve.", "links.")
"""Prefixes of keys that have no meaning for a running instance, besides those that only a system's commands read."""
LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address for clients of this machine, if a node listens on all addresses."""


class Supervisor:
    """Runs an instance while the context is open."""

    def __init__(
        self,
        config: Config,
        log: structlog.typing.FilteringBoundLogger,
        *,
        command: Sequence[str] | None = None,
        logs_to_files: bool = False,
    ) -> None:
        _check(config)
        self.folder = instance.folder(config)
        self.config, self._log, self._template = config, log, Template(command or systems.node_command())
        self._logs_to_files = logs_to_files
        self.snapshot = Snapshot()
        self._roster = Roster(config)
        self._servers = self._doors(self._roster.seats)
        self._clients: dict[Seat, tuple[str, int]] = {}
        self._links: dict[Seat, tuple[str, int]] = {}
        self._admins: dict[Seat, tuple[str, int]] = {}
        self._epochs: dict[Seat, int] = {}
        self._public_keys: dict[Seat, str] = {}
        self._taken: dict[Seat, list[_PortRequest]] = {}
        """Keys and addresses of nodes that others had at the start, or that nodes have which come first."""
        self._children: dict[Seat, Child] = {}
        self._tasks: dict[Seat, asyncio.Task[None]] = {}
        self._leaving: dict[Seat, asyncio.Task[None]] = {}
        self._certifier: Certifier | None = None
        self._started = self._ending = False
        self._counting: asyncio.Task[Mapping[str, Count]] | None = None
        """Runs until the registry's numbers of partitions are known."""
        self._reloads = 0
        self._to_read: Callable[[], Loaded] | None = None
        """The configuration to read once the start is over."""
        # A start takes a second of a processor: half of the processors stay with running traffic.
        self._turns = asyncio.Semaphore(max(1, len(os.sched_getaffinity(0)) // 2))
        self._live: Live | None = None
        self._changed = asyncio.Event()
        self._write_again: asyncio.TimerHandle | None = None
        self._unwritten = False
        """The last record could not be written, which is logged once."""
        self._shared: dict[tuple[str, ...], SharedProcess] = {}
        """The processes that several nodes share, by the roles of the nodes."""
        self._programs = Programs(config, self.folder, log, self._on_change)
        self._open = contextlib.AsyncExitStack()
        self._registry = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            self._prepare(self._servers)
            self._open.enter_context(instance.lock(self.folder))
            self._check_addresses()
            await self._programs.start()
            if self.config.registry.url == "embedded":
                # Every node registered in the file ended with the previous instance.
                server = RegistryServer(self.folder.path, self._log, sessions=False)
                await self._registry.enter_async_context(server)
            if self.config.registry.url:
                self._certify()
                await self._count()
            self._choose(self._roster.seats)
            awaited = [seat for seat in self._roster.seats if kind(seat.role).awaited]
            self._start(awaited, asyncio.Semaphore(len(awaited)))
            await self._until_ready()
            self._started = True
            others = [seat for seat in self._roster.seats if seat not in awaited]
            self._start(others, self._turns)
            told = self.spec(self._representative())
            self._live = Live(self._log, self.config.log.level, told, linked=True)
            if self._to_read is not None:
                self.reload(self._to_read)
            await self._open.enter_async_context(requests.answered(self.folder.path, self.take))
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    def record(self) -> Record:
        """The record of the instance."""
        made = Record(
            name=self.config.instance.name,
            version=__version__,
            pid=os.getpid(),
            started=start_time(os.getpid()) or 0,
            pid_namespace=pid_namespace(),
            token_file=specs.token_file(self.config, self.folder),
            processes=[
                self._process(seat, child)
                for seat, child in self._children.items()
                if kind(seat.role).awaited or child.served  # a node that is not awaited is listed once it serves
            ],
            faults=self.config.faults.active(),
            registry=self.config.registry.url or UNSET,
            programs=self._programs.told() or UNSET,
        )
        return made.with_endpoints(
            (seat.role, self._endpoint(seat)) for seat in self._servers if kind(seat.role).listed
        )

    # --- start ----------------------------------------------------------------------------------------------------

    def _prepare(self, servers: Sequence[Seat]) -> None:
        token_file = specs.token_file(self.config, self.folder)
        instance.prepare(self.folder, [seat.name for seat in servers], token_file)

    def _certify(self) -> None:
        """Write certificates for nodes; the key stays in this process. Raises `ConfigError`."""
        from muster_server.control.cluster.certifier import Certifier  # loads a library

        self._certifier = Certifier(self.folder, specs.certifying_key(self.config, self.folder), self._log)
        certifying = asyncio.create_task(self._certifier.run(), name="renews certificates")
        self._registry.callback(certifying.cancel)

    async def _count(self) -> None:
        """Start as many partitions as the registry has, or as the configuration has until that is known. Raises
        `UserError`."""
        self._counting = counting = asyncio.create_task(self._counted(), name="reads the numbers of partitions")
        await asyncio.wait([counting], timeout=REGISTRY_S)
        if counting.done():
            self._take_up(counting.result())
            self._counting = None
        else:
            self._log.warning(f"waits for the registry {self.config.registry.url}")
            self._take_up({})
            counting.add_done_callback(lambda _: self._changed.set())

    async def _counted(self) -> Mapping[str, Count]:
        """The registry's numbers of partitions, by layer. Waits for the registry. Raises `UserError`."""
        try:
            opened = tree(specs.reader(self.config, self.config.registry.url))
        except SpecError as error:
            raise UserError(str(error)) from None
        async with Directory(opened, self._log) as directory:
            counts = (await directory.known()).counts
            if self.config.registry.url == "embedded":
                with contextlib.suppress(TreeError):
                    await self._free_numbers(directory, opened)
            return counts

    async def _free_numbers(self, directory: Directory, opened: Tree) -> None:
        """Delete the numbers of nodes that an instance of another name had in this folder. Raises `TreeError`."""
        for number, name in (await directory.names()).items():
            if of_instance(number) and name != self._registered(seat_name(number)):
                await opened.delete(f"{ROOT}/ids/{name}")

    def _take_up(self, counts: Mapping[str, Count]) -> None:
        """Start as many partitions as the registry has: grown ones stay, whatever the configuration has. Raises
        `UserError`."""
        up = self.config.up
        for role in Roster(self.config).partitions:
            known, (partitions, replicas) = counts.get(layer(role), Count(1)), wanted(self.config, kind(role))
            if partitions < known.spread:
                up = msgspec.structs.replace(up, **{kind(role).plural: f"{known.spread}x{replicas}"})
                self._log.warning(
                    "starting as many partitions as the registry has",
                    layer=role,
                    partitions=known.spread,
                    asked=partitions,
                )
        self._roster = Roster(msgspec.structs.replace(self.config, up=up))
        for role, partitions in self._roster.partitions.items():
            known = counts.get(layer(role), Count(partitions))
            if partitions == known.wide:
                self._roster.partitions[role] = known.spread  # a growth that is only prepared may be undone
        count = len(self._roster.seats)
        if count > NODES_MAX:
            raise UserError(
                f"too many nodes: {count} with the grown partitions (limit {NODES_MAX} per instance); use fewer "
                "replicas"
            )
        enough_files(count)
        self._servers = self._doors(self._roster.seats)

    @staticmethod
    def _doors(seats: Sequence[Seat]) -> list[Seat]:
        """The nodes that clients connect to over UDP."""
        return [seat for seat in seats if kind(seat.role).door]

    def _catch_up(self, counts: Mapping[str, Count]) -> None:
        """Start the missing nodes after a late answer of the registry, beside the nodes that waited for it too. Raises
        `UserError`."""
        before = self._roster.seats
        self._take_up(counts)
        new = [seat for seat in self._roster.seats if seat not in before]
        self._choose(new)
        self._start(new, asyncio.Semaphore(max(1, len(new))))

    def _check_addresses(self) -> None:
        """Try addresses before any node starts. Raises `UserError` if one is not available."""
        with Ports(marks=False) as ports:
            for chosen, seat, key, host, port in self._asked(self._roster.seats):
                with contextlib.nullcontext() if _is_base(seat) else contextlib.suppress(UserError):
                    self._held(ports, chosen, seat)(key, host, port)

    def _choose(self, new: Sequence[Seat]) -> None:
        kept = KeptPorts(self.folder.ports)
        with Ports() as ports:
            for chosen, seat, key, host, port in self._asked(new):
                bind = self._held(ports, chosen, seat)
                try:
                    if chosen is self._clients and kind(seat.role).serves:
                        chosen[seat] = kept.bound(f"{seat.name} {key}", bind, key, host, port)
                    else:
                        chosen[seat] = bind(key, host, port)
                except UserError:
                    if _is_base(seat):
                        raise
                    chosen[seat] = host, port  # of others: the node is tried again until it is free
                    self._taken.setdefault(seat, []).append((chosen, seat, key, host, port))
            for seat in new:
                self._admins[seat] = ports.tcp("admin.host", self.config.admin.host)
        kept.keep()
        for seat in new:
            if seat in self._servers:
                private = secret(str(self.folder.server_key(seat.name)), 32)
                self._public_keys[seat] = bytes(_engines.public_key(private)).hex()
        self._place()

    def _place(self) -> None:
        nodes = [
            Node(seat.node, seat.role, *self._link(seat), seat.partition)
            for seat in self._roster.seats
            if kind(seat.role).linked or self.config.registry.url
        ]
        counts = {layer(role): Count(partitions) for role, partitions in self._roster.partitions.items()}
        self.snapshot = Snapshot(1, tuple(sorted(nodes, key=lambda node: node.node)), counts)

    def _held(
        self, ports: Ports, chosen: dict[Seat, tuple[str, int]], seat: Seat
    ) -> Callable[[str, str, int], tuple[str, int]]:
        """The function that reserves this address of a node: TCP for clients of a face or a listening machine, else UDP."""
        return ports.tcp if chosen is self._clients and kind(seat.role).serves else ports.udp

    def _link(self, seat: Seat) -> tuple[str, int]:
        """Its address for links; port 0 if it has none."""
        return self._links.get(seat) or (self._admins[seat][0], 0)

    def _asked(self, new: Sequence[Seat]) -> list[_PortRequest]:
        """The requested address of each socket. Configured ports come first, so that no free port from the kernel is
        one of them."""
        return sorted(self._binds(new), key=lambda asked: asked[-1] == 0)

    def _binds(self, new: Sequence[Seat]) -> Iterator[_PortRequest]:
        for seat in new:
            section, of = self.config.role(seat.role), kind(seat.role)
            binds: list[tuple[dict[Seat, tuple[str, int]], str]] = []
            if of.door or of.listens:
                binds = [(self._clients, "bind"), (self._links, "link_bind")]
            elif of.process != "worker":
                binds = [(self._links if of.linked else self._clients, "bind")]
            for chosen, name in binds:
                host, port = split_address(getattr(section, name))
                yield chosen, seat, f"{of.key}.{name}", host, port and port + seat.index

    def _start(self, new: Sequence[Seat], turns: asyncio.Semaphore) -> None:
        for seat in new:
            start = functools.partial(self._fork, seat, self._starts(seat))
            again_s = None if _is_base(seat) else AGAIN_S
            child = Child(seat.name, start, self._on_change, self._log, Backoff(random.Random()), again_s=again_s)
            self._children[seat] = child
            self._tasks[seat] = asyncio.create_task(_run(child, turns), name=f"child {seat.name}")

    def _stderr(self, name: str) -> IO[bytes] | None:
        if not self._logs_to_files:
            return None
        self.folder.logs.mkdir(mode=0o700, exist_ok=True)
        file = self.folder.log(name)
        if file.exists():
            file.replace(self.folder.former_log(name))
        return self._open.enter_context(file.open("wb"))

    async def _fork(self, seat: Seat, start: Start) -> Started:
        """Write the spec for one start, with its epoch, and start the node. Raises `UserError` and `OSError`."""
        self._needs(seat)
        self._epochs[seat] = next_epoch(self.folder.epochs, seat.node)
        file = self.folder.spec(seat.name)
        made = self.spec(seat)
        if self._certifier is not None and kind(seat.role).certified:
            self._certifier.take(seat.name, made)
        write_atomically(file, msgspec.json.encode(made))
        return await start(str(file))

    def _needs(self, seat: Seat) -> None:
        """Check that its programs and its addresses are there. Raises `ConfigError`: it cannot start now."""
        if why := self._programs.missing(system_of(seat.role)):
            raise ConfigError(why)
        try:
            with Ports(marks=False) as ports:
                for chosen, _, key, host, port in self._taken.get(seat, ()):
                    self._held(ports, chosen, seat)(key, host, port)
        except UserError as error:
            raise ConfigError(str(error)) from None
        self._taken.pop(seat, None)

    def _starts(self, seat: Seat) -> Start:
        """Return the function that starts the node's process, given the file of its spec."""
        group = together(self.config, seat)
        if group is None:
            return self._forks(seat.name)
        if group not in self._shared:
            name = "+".join(group)
            self._shared[group] = SharedProcess(self._forks(name, "--shared"), self._log.bind(process=name))
        return functools.partial(self._shared[group].start, seat.name)

    def _forks(self, name: str, *words: str) -> Callable[[str], Awaitable[Forked]]:
        stderr = self._stderr(name)

        async def fork(spec: str) -> Forked:
            every = ["--spec", spec, *words, "--parent", str(os.getpid())]
            return await self._template.start(name, every, stderr)

        return fork

    def spec(self, seat: Seat) -> Spec:
        """The spec of a node."""
        config, placement, linked = self.config, self.snapshot, kind(seat.role).linked
        own = specs.Own(
            role=seat.role,
            files=seat.name,
            node=seat.node,
            epoch=self._epochs[seat],
            partition=seat.partition,
            bind=self._clients.get(seat),
            link_bind=self._links.get(seat),
            admin=self._admins[seat],
        )
        made = specs.spec(
            config,
            self.folder,
            own,
            placement,
            self._registration(seat, own) if config.registry.url else None,
            fault_rules(seat.role, config.faults, placement) if linked and config.faults.active() else None,
            self._programs.addresses,
        )
        made = msgspec.structs.replace(made, reloads=self._reloads)
        if config.registry.url or seat not in self._servers:
            return made
        return msgspec.structs.replace(made, servers={role: self._told(role) for role in doors()})

    def _registered(self, name: str) -> str:
        """The registered name of a node."""
        return f"{self.config.instance.name}-{name}"

    def _told(self, role: str) -> list[tuple[str, int, str]]:
        """The servers of a role that clients learn if there is no registry."""
        ends = [self._endpoint(seat) for seat in self._servers if seat.role == role]
        return [(end.host, end.port, end.public_key) for end in ends]

    def _registration(self, seat: Seat, own: specs.Own) -> Registration:
        client, public_key = None, ""
        if seat in self._clients:
            client, public_key = self._reached(seat), self._public_keys.get(seat, "")
        name = self._registered(seat.name)
        certificate = str(self.folder.certificate(seat.name))
        made = specs.registration(self.config, self.folder, own, name, client, public_key, certificate)
        fellows = [] if self._started else [other.node for other in self._awaited() if _is_base(other)]
        return msgspec.structs.replace(made, grown=self._started or self._counting is not None, fellows=fellows)

    async def _until_ready(self) -> None:
        """Wait until all nodes of rooms are ready, and those of other systems are ready or refuse to start. Raises
        `UserError`."""
        wait = READY_S + READY_EACH_S * len(self._roster.seats)
        try:
            async with asyncio.timeout(wait) as limit:
                while self._counting or not all(map(self._settled, self._children)):
                    if self._counting and self._counting.done():
                        self._catch_up(self._counting.result())
                        self._counting = None
                        wait = READY_S + READY_EACH_S * len(self._roster.seats)
                        limit.reschedule(None)
                    base = [child for seat, child in self._children.items() if _is_base(seat)]
                    if any(child.state == "waiting" for child in base):
                        limit.reschedule(None)  # the limit does not apply any more
                    elif limit.when() is None:
                        limit.reschedule(asyncio.get_running_loop().time() + wait)
                    for child in base:
                        if child.state == "failed":
                            raise UserError(f"{child.name} cannot start: {child.error}")
                        if child.restarts >= STARTS_MAX:
                            raise UserError(
                                f"{child.name} died {child.restarts} times before it was ready; see its log"
                            )
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            if not self._counting and all(self._settled(seat) for seat in self._children if _is_base(seat)):
                return  # the instance runs without the others, which are retried
            late = [f"{child.name} ({child.state})" for child in self._children.values() if child.state != "ready"]
            who = ", ".join(late) or f"the registry {self.config.registry.url}"
            raise UserError(f"not ready after {wait:.0f} s: {who}; see their logs") from None

    def _settled(self, seat: Seat) -> bool:
        """Whether the start need not wait for a node: it is ready, or it belongs to another system than rooms and
        cannot start now or
        lacks a node that cannot."""
        child = self._children[seat]
        if child.state == "ready":
            return True
        if _is_base(seat):
            return False
        fellows = (each for other, each in self._children.items() if system_of(other.role) == system_of(seat.role))
        lacks = child.state == "not_ready" and any(each.state == "failed" for each in fellows)
        return lacks or child.state == "failed" or child.restarts >= STARTS_MAX

    # --- while it runs ----------------------------------------------------------------------------------------------

    def _on_change(self) -> None:
        self._changed.set()
        if self._children.keys() >= set(self._awaited()) and any(child.pid for child in self._children.values()):
            self._write_record()

    def _write_record(self) -> None:
        """Write the record, and retry without limit: no node ends because of a failed record."""
        if self._write_again is not None:
            self._write_again.cancel()
            self._write_again = None
        try:
            instance.write(self.folder, self.record())
        except OSError as error:
            if not self._unwritten:
                self._log.warning("cannot be written", file=str(self.folder.record), error=error.strerror)
            self._unwritten = True
            self._write_again = asyncio.get_running_loop().call_later(WRITE_AGAIN_S, self._write_record)
        else:
            if self._unwritten:
                self._log.info("written again", file=str(self.folder.record))
            self._unwritten = False

    def _awaited(self) -> list[Seat]:
        """The nodes that must be ready before the instance is."""
        return [seat for seat in self._roster.seats if kind(seat.role).awaited]

    def _reached(self, seat: Seat) -> tuple[str, int]:
        """The address of a node for clients of this machine."""
        host, port = self._clients[seat]
        return LOOPBACK.get(host, host), port

    def _endpoint(self, seat: Seat) -> Endpoint:
        host, port = self._reached(seat)
        return Endpoint(node=seat.node, host=host, port=port, public_key=self._public_keys[seat])

    def _process(self, seat: Seat, child: Child) -> Process:
        return Process(
            name=seat.name,
            role=seat.role,
            node=seat.node,
            partition=seat.partition,
            pid=child.pid,
            epoch=child.epoch or self._epochs.get(seat, 0),
            restarts=child.restarts,
            ready=child.state == "ready",
            link=self._link(seat),
            admin=self._admins[seat],
            access=specs.admin_access(self.config),
            bind=self._reached(seat) if kind(seat.role).serves else UNSET,
            secure=kind(seat.role).secure(self.config.section),
            waits=self._why(child) or UNSET,
        )

    def _why(self, child: Child) -> str:
        """The reason why a node does not serve; empty if it serves or is about to."""
        if child.state in {"waiting", "failed"}:
            return child.error or child.why
        return "" if child.state == "ready" or child.served else child.why

    # --- reload -----------------------------------------------------------------------------------------------------

    def reload(self, read: Callable[[], Loaded]) -> None:
        """Read the configuration again, after the start: all nodes use the values that can change while they run; a bad
        configuration changes nothing."""
        if self._ending:
            return
        if self._live is None:
            self._to_read = read
            return
        before = self.config

        def again() -> Now:
            now = read().config
            _check(now)
            self.config = merged(before, now)
            needs_restart, in_force = needing_restart(before, now, (*OTHERS, *command_keys())), reloading(before, now)
            return Now(now.log.level, self.spec(self._representative()), needs_restart, in_force)

        if not self._live.reload(again):
            self.config = before
            return
        self._reloads += 1
        for seat in self._roster.seats:
            if seat in self._epochs and seat in self._children:
                self._pass_on(self._children[seat], seat.name, self.spec(seat))
        self._follow_counts()

    def _follow_counts(self) -> None:
        """Start or stop nodes of roles whose number depends on other keys."""
        for of in (of for of in kinds().values() if not of.plural and self.config.runs(system_of(of.name))):
            staying, count = self._roster.staying(of.name), of.wanted(self.config.section)
            self._retire(staying[count:])
            self._add([self._roster.another(of.name, 0) for _ in range(count - len(staying))])

    def _pass_on(self, child: Child, name: str, told: msgspec.Struct) -> None:
        try:
            write_atomically(self.folder.spec(name), msgspec.json.encode(told))
        except OSError as error:
            self._log.error("did not get the new configuration", child=name, error=error.strerror)
        else:
            child.hang_up()

    def _representative(self) -> Seat:
        """The node whose spec has the largest number of keys that can change."""
        seats = [seat for seat in self._roster.seats if seat in self._epochs] or self._roster.seats
        return max(seats, key=lambda seat: (kind(seat.role).linked, len(kind(seat.role).reloads)))

    # --- adding and removing nodes ----------------------------------------------------------------------------------

    def take(self, request: Request) -> list[Seated]:
        """Start the work of a command's request. Raises `UserError`."""
        roster = self._roster
        if isinstance(request, Look):
            return [self._seated(seat) for seat in roster.seats]
        if not self.config.registry.url:
            raise UserError(
                "nodes can be added and removed only with a registry, since without it the other nodes cannot learn "
                "of the change: muster up --registry embedded"
            )
        if self._ending:
            raise UserError("the instance is ending", TRY_LATER)
        match request:
            case Add(role=role, partition=partition):
                concerned = [roster.another(role, partition)]
                live = specs.live(self.config, self.folder, role, partition, self._programs.addresses)
                if why := kind(role).alone(live["settings"]):
                    raise UserError(why)
                self._add(concerned)
            case Remove(node=node):
                concerned = [roster.dispensable(node, lambda seat: self._children[seat].state == "ready")]
                self._retire(concerned)
            case Provide(role=role, partitions=partitions):
                self._add(roster.lacking(role, partitions))
                concerned = roster.beyond(role, roster.partitions[role])
            case Withdraw(role=role, partitions=partitions):
                concerned = roster.beyond(role, partitions)
                self._retire(concerned)
            case Counted(role=role, partitions=partitions):
                roster.partitions[role] = max(partitions, roster.partitions[role])
                self._place()
                concerned = []
        return [self._seated(seat) for seat in concerned]

    def _add(self, new: Sequence[Seat]) -> None:
        if not new:
            return
        count = len(self._roster.seats) + len(new)
        if count > NODES_MAX:
            raise UserError(f"too many nodes in one instance (limit {NODES_MAX})")
        enough_files(count)
        servers = self._doors(new)
        self._prepare(servers)
        self._servers += servers
        self._roster.seats += new
        try:
            self._choose(new)
        except BaseException:
            for seat in new:
                self._forget(seat)
            raise
        self._log.info("adds", nodes=[seat.name for seat in new])
        self._start(new, self._turns)

    def _retire(self, gone: Sequence[Seat]) -> None:
        async def retire(seat: Seat) -> None:
            await self._children[seat].stop(self._patience_s(seat))
            await self._tasks[seat]
            self._forget(seat)
            self._log.info("removed", node=seat.name)

        for seat in gone:
            if seat not in self._leaving:
                self._log.info("removes", node=seat.name)
                self._roster.leaving.add(seat)
                self._leaving[seat] = asyncio.create_task(retire(seat), name=f"removes {seat.name}")

    def _forget(self, seat: Seat) -> None:
        self._roster.seats.remove(seat)
        self._roster.leaving.discard(seat)
        if seat in self._servers:
            self._servers.remove(seat)
        if self._certifier is not None:
            self._certifier.forget(seat.name)
        for by_seat in (self._links, self._admins, self._clients, self._children, self._tasks, self._leaving):
            by_seat.pop(seat, None)
        self._on_change()

    def _seated(self, seat: Seat) -> Seated:
        child = self._children[seat]
        return Seated(
            name=seat.name,
            role=seat.role,
            node=seat.node,
            partition=seat.partition,
            state=child.state,
            leaving=seat in self._leaving,
            error=child.error or "",
        )

    # --- end ----------------------------------------------------------------------------------------------------------

    def _patience_s(self, seat: Seat) -> float:
        """Limit of a node's end, in seconds."""
        patience = KILL_S + (LEAVE_S if self.config.registry.url else 0.0)
        return patience + (FORSAKE_S if kind(seat.role).companion else 0.0)

    async def _end(self) -> None:
        """Stop all nodes, even if the waiting task is cancelled: a node that is not told to end loses accepted
        messages."""
        self._ending = True
        ending = asyncio.create_task(self._end_all(), name="ends the instance")
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([ending])
        ending.result()

    async def _end_all(self) -> None:
        if self._counting is not None:
            self._counting.cancel()
            await asyncio.gather(self._counting, return_exceptions=True)
        # Close the registry first: all nodes end, and without a session no node waits for the readers of its
        # registration.
        await self._registry.aclose()
        for order in sorted({kind(seat.role).ends for seat in self._children}):
            ending = [(seat, child) for seat, child in self._children.items() if kind(seat.role).ends == order]
            await asyncio.gather(*(child.stop(self._patience_s(seat)) for seat, child in ending))
        await self._programs.stop()
        if self._tasks:
            await asyncio.gather(*self._tasks.values(), *self._leaving.values())
            await asyncio.gather(*(each.close() for each in self._shared.values()))
            await self._template.close()
            if self._write_again is not None:
                self._write_again.cancel()
            self.folder.record.unlink(missing_ok=True)
        await self._open.aclose()


def _is_base(seat: Seat) -> bool:
    """Whether the instance cannot run without the node: it belongs to rooms."""
    return system_of(seat.role) == BASE


async def _run(child: Child, turns: asyncio.Semaphore) -> None:
    """Run the node when it is its turn, until it is stopped."""
    async with turns:
        running = asyncio.create_task(child.run(), name=f"runs {child.name}")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.begun.wait(), TURN_S)
    await running


def _check(config: Config) -> None:
    """Refuse what only `muster serve` can do. Raises `ConfigError`."""
    if config.cluster.identity != "off":
        raise ConfigError(
            "cluster.identity: applies only to muster serve; the nodes of muster up share a user and a folder, "
            "and so their keys"
        )


def fault_rules(role: str, faults: Faults, placement: Snapshot) -> list[Fault]:
    """The fault rules of a role's node: for datagrams to its peers, and for both directions of its clients' links."""
    rules = [
        _rule(faults, f"{role}->{node.role}", "out", (node.host, node.link_port))
        for node in placement.nodes
        if f"{role}->{node.role}" in LINKS
    ]
    clients = ((f"{role}->client", "out"), (f"client->{role}", "in"))
    return rules + [_rule(faults, link, direction, None) for link, direction in clients if link in LINKS]


def _rule(faults: Faults, link: str, direction: str, peer: tuple[str, int] | None) -> Fault:
    own = faults.links.get(link)

    def pick(name: str) -> Any:
        value = getattr(own, name, None)
        return getattr(faults, name) if value is None else value

    return (
        direction,
        peer,
        pick("loss"),
        pick("duplicate"),
        pick("corrupt"),
        pick("reorder"),
        pick("reorder_hold_ms"),
        pick("delay_ms"),
        pick("jitter_ms"),
        pick("burst"),
    )
