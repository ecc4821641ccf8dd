"""The life of one node, in a process of its own or beside others: run by the supervisor or by `muster serve`.

Combines a role of `plane` with logs, administration and its owner. It reports to a parent with lines of JSON on stdout:
`{"state": "ready"}`, `{"state": "not_ready"}`, `{"state": "failed", "error": …}`. With a registry, `{"state":
"waiting", "error": …}` comes first if the registry does not answer, then `{"state": "starting", "epoch": …}`, and
`{"state": "registered"}` until it knows all nodes that start with it. It dies with its parent: by the kernel's signal,
or by the end of its stdin, whichever comes first.
"""

import asyncio
import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import msgspec
import structlog

from muster import __version__
from muster._core import PROTOCOLS
from muster_server.control.config.layout import instance_name
from muster_server.control.errors import FAILURE, ConfigError, UserError
from muster_server.control.host.group import memory_max
from muster_server.control.node import admin, logs, memory
from muster_server.control.node.admin import Companion
from muster_server.control.node.cutoff import CutOff
from muster_server.control.node.live import Again, Live, Now
from muster_server.plane import main as plane
from muster_server.plane.kind import named
from muster_server.plane.kinds import kind
from muster_server.plane.role import Handler
from muster_server.plane.server import Others, Server
from muster_server.plane.service import Context, Service
from muster_server.plane.spec import Spec, SpecError, content, decoded
from muster_server.plane.trust import shared_token

if TYPE_CHECKING:  # imported only with a registry
    from muster_server.control.host.ports import Ports
    from muster_server.control.node.enrolment import Enrolment

SUPERSEDED: Final = (
    "a later process registered as {name}, so this one has ended; give each process its own name: see serve.name, "
    "instance.name"
)
DISPLACED: Final = "{name} lost its number while it ran, so it has ended; start it again: {why}"
MOVED: Final = ("messages_", "repairs_")
"""Prefixes of counters that grow while a broker is still needed."""


class Running(Companion, Protocol):
    """A companion, which runs while its context is open."""

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Handlers of the engine's events for it, by the event's name."""

    async def __aenter__(self) -> Self:
        """Start."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, after all pending writes."""


Begin = Callable[[Any, structlog.typing.FilteringBoundLogger, Callable[[], int]], Running]
"""Makes a companion from its engine, a log, and a function that returns its layer's current number of partitions."""


class Owner(Protocol):
    """The owner of the process: it receives reports of the state, and decides the end."""

    def tell(self, state: str, **more: Any) -> None:
        """Report `waiting` with its reason (`error`), `starting`, `registered`, `ready`, `not_ready`, or `failed` with
        its reason (`error`)."""

    def watch(self, end: asyncio.Event, stop: asyncio.Event, attach: Callable[[Live], None]) -> None:
        """From now on set `end` when the process must end in order, `stop` when it must end at once.

        `attach` gives the node later values.
        """

    def current(self, spec: Spec) -> Spec:
        """The spec with all values that were reloaded since it was read."""


class FileOwner(ABC):
    """An owner that has written the spec into a file, and writes it again when values are reloaded."""

    def __init__(self, file: Path) -> None:
        self._file, self._seen = file, b""
        self._live: Live | None = None
        self._again: Again | None = None

    @abstractmethod
    def tell(self, state: str, **more: Any) -> None:
        """As `Owner.tell`."""

    @abstractmethod
    def watch(self, end: asyncio.Event, stop: asyncio.Event, attach: Callable[[Live], None]) -> None:
        """As `Owner.watch`."""

    def spec(self) -> Spec:
        """Read the file. Raises `SpecError`."""
        return decoded(self._file, self._content(), Spec)

    def _content(self) -> bytes:
        self._seen = content(self._file)
        return self._seen

    def begin(self, log: structlog.typing.FilteringBoundLogger, spec: Spec) -> None:
        """Set the current values; later ones are reloaded from now on."""

        def again() -> Now:
            now = self.spec()
            return Now(now.log_level, now)

        self._live, self._again = Live(log, spec.log_level, spec), again

    def current(self, spec: Spec) -> Spec:
        """Read the file again."""
        self.reload()
        return spec if self._live is None else self._live.current(spec)

    def reload(self) -> None:
        """Use the new spec, if there is one: a signal may come without one."""
        seen = self._seen
        with contextlib.suppress(SpecError):
            if self._content() == seen:
                return
        if self._live is not None and self._again is not None:
            self._live.reload(self._again)

    def _attach(self, attach: Callable[[Live], None]) -> None:
        """Pass to a node what was reloaded before it was ready for it, and then all later values."""
        self.reload()
        if self._live is not None:
            attach(self._live)


class Parent(FileOwner):
    """The supervisor, at the other ends of stdin and stdout. Its SIGHUP announces that it has written a new spec."""

    def __init__(self, file: Path) -> None:
        """Messages of the supervisor wait until `watch` reads them."""
        super().__init__(file)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def tell(self, state: str, **more: Any) -> None:
        """Write one line. The loss of the parent is detected elsewhere."""
        with contextlib.suppress(OSError):
            os.write(1, msgspec.json.encode({"state": state, **more}) + b"\n")

    def watch(self, end: asyncio.Event, stop: asyncio.Event, attach: Callable[[Live], None]) -> None:
        """Handle SIGTERM, SIGHUP, and the end of stdin."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, end.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the terminal's Ctrl-C goes to the supervisor
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        self._attach(attach)
        loop.add_reader(0, self._read, stop)

    @staticmethod
    def _read(stop: asyncio.Event) -> None:
        if not os.read(0, 4096):
            asyncio.get_running_loop().remove_reader(0)
            stop.set()


async def serve_enrolled(
    spec: Spec,
    log: structlog.typing.FilteringBoundLogger,
    owner: Owner,
    companion: "Begin | None" = None,
    ports: "Ports | None" = None,
    others: Others | None = None,
) -> None:
    """Start once the registry has answered. Raises `SpecError`.

    While it waits, its admin port shows so; its files are read before. `ports` holds the node's ports, which another
    process would get meanwhile. Raises `ConfigError` when it has drained because another process uses its name: a
    restart would displace that one. Raises `UserError` when the registry assigned its number to another node: a restart
    takes another number, unless the number is prescribed.
    """
    from muster_server.control.node.enrolment import enrolled

    about = {
        "instance": spec.instance,
        "role": spec.role,
        "node": spec.node,
        "name": name_of(spec),
        "pid": os.getpid(),
        "memory_bytes_max": memory_max(),
        "version": __version__,
        "protocol": PROTOCOLS,
    }
    async with contextlib.AsyncExitStack() as stack:
        early = admin.Early(about, _admin_token(spec))
        port = admin.Port(early, spec.admin_access)
        stack.push_async_callback(port.close)

        def waits(what: str) -> None:
            owner.tell("waiting", error=what)
            if ports is not None:
                ports.release_tcp(spec.admin)
            early.waits = what
            try:
                port.open(spec.admin)
            except OSError as error:
                log.warning("cannot open the admin port while waiting", error=error.strerror)

        begun, enrolment = await stack.enter_async_context(enrolled(spec, log, waits))
        owner.tell("starting", epoch=begun.epoch)
        log = log.bind(node=begun.node)
        if ports is not None:
            ports.release()
        await serve(owner.current(begun), log, owner, enrolment, companion, early=port, others=others)
        if enrolment.superseded:
            raise ConfigError(SUPERSEDED.format(name=enrolment.name))
        if enrolment.displaced:
            raise UserError(DISPLACED.format(name=enrolment.name, why=enrolment.displaced), FAILURE)


def made(spec: Spec, log: structlog.typing.FilteringBoundLogger, enrolment: "Enrolment | None" = None) -> Service:
    """Build the role or service of the spec. Raises `SpecError`, and `OSError` if an address is in use."""
    of = kind(spec.role)
    return plane.server(of, spec, log) if of.linked else plane.service(of, spec, context(spec, log, enrolment))


def name_of(spec: Spec) -> str:
    """The node's stable name, by which its peers, metrics and logs know it."""
    return instance_name(spec.instance, spec.node) if spec.registry is None else spec.registry.name


def _admin_token(spec: Spec) -> bytes:
    """The token of its admin port; empty if none is required. Raises `SpecError`."""
    file = spec.admin_access.token_file
    return shared_token(file) if file else b""


def context(spec: Spec, log: structlog.typing.FilteringBoundLogger, enrolment: "Enrolment | None") -> Context:
    """The parts of this process for a service."""
    if enrolment is None:
        return Context(log, lambda: None, lambda: None, name_of(spec))
    return Context(log, lambda: enrolment.snapshot, lambda: enrolment.session, name_of(spec))


async def serve(
    spec: Spec,
    log: structlog.typing.FilteringBoundLogger,
    owner: Owner,
    enrolment: "Enrolment | None" = None,
    companion: "Begin | None" = None,
    service: Service | None = None,
    early: admin.Port | None = None,
    others: Others | None = None,
) -> None:
    """Run until the owner ends it, then drain. `service`: replaces that of the spec. `early`: its admin port, if it is
    open already. `others`: the other machines of the process."""
    service = made(spec, log, enrolment) if service is None else service
    server = service if isinstance(service, Server) else None
    if server is not None:
        server.others = others
    engine = None if server is None else server.engine
    stop = asyncio.Event()
    end = stop if enrolment is None else asyncio.Event()

    def attach(live: Live) -> None:
        weigh = None if enrolment is None else enrolment.weigh
        linger = None if server is None else server.linger
        live.attach(engine, spec.node, service.take, weigh, service.take_trust, linger)

    owner.watch(end, stop, attach)
    service.on_ready = lambda ready: owner.tell("ready" if ready else "not_ready")
    handing_over = None
    if enrolment is None and server is not None:
        server.name_of = partial(instance_name, spec.instance)
    if enrolment is not None:
        enrolment.on_superseded = enrolment.on_displaced = end.set
        _join(service, enrolment, owner)
        handing_over = asyncio.create_task(
            _hand_over(service, enrolment, end, stop, _cut_off(spec, server, enrolment, log))
        )
    service.on_ready = _freezing(service.on_ready)
    about = {
        "instance": spec.instance,
        "role": spec.role,
        "node": spec.node,
        "name": name_of(spec),
        "epoch": spec.epoch,
        "pid": os.getpid(),
        "version": __version__,
        "protocol": PROTOCOLS,
        "addresses": service.addresses(),
        "faults": spec.faults,
    }
    running = None if companion is None or engine is None else companion(engine, log, _partitions(spec, enrolment))
    if server is not None and running is not None:
        server.hear(running.handlers)
    token = _admin_token(spec)
    own = admin.Admin(service, about, enrolment, running, token)
    port = admin.Port(own, spec.admin_access) if early is None else early
    if isinstance(port.app, admin.Early):
        port.app.become(own)
    if not port.is_open:
        port.open(spec.admin)
    if spec.faults:
        log.warning("FAULTS ARE INJECTED ON PURPOSE", faults=spec.faults)
    for asked, effective in [] if engine is None else engine.buffers():
        if effective < asked:
            log.warning("the kernel gave a smaller receive buffer than requested", asked=asked, effective=effective)
    log.info("started", addresses=service.addresses(), admin=spec.admin, epoch=spec.epoch)
    try:
        async with contextlib.AsyncExitStack() as stack:
            if running is not None:
                await stack.enter_async_context(running)
            if server is not None and server.beside is not None:
                await stack.enter_async_context(server.beside(context(spec, log, enrolment)))
            try:
                await service.run(stop, spec.drain_ms / 1000)
            finally:  # at once: the companion may have to write for a while
                if handing_over is not None and enrolment is not None:
                    enrolment.detach()
                    handing_over.cancel()
    finally:
        await port.close()
    log.info("ended")


def _freezing(on_ready: Callable[[bool], None]) -> Callable[[bool], None]:
    """Freeze before the first report that the node is ready: by then it has loaded all that it needs."""
    frozen = False

    def told(ready: bool) -> None:
        nonlocal frozen
        if ready and not frozen:
            frozen = True
            memory.freeze()
        on_ready(ready)

    return told


def companion_of(spec: Spec) -> "Begin | None":
    """The function that makes the engine's companion; None if there is none. Raises `SpecError`."""
    of = kind(spec.role)
    if not of.companion:
        return None
    begin: Begin | None = named(of.companion)(spec, plane.settings(of, spec))
    return begin


def _partitions(spec: Spec, enrolment: "Enrolment | None") -> Callable[[], int]:
    """The current number of partitions of this node's layer."""

    def partitions() -> int:
        return spec.layers[spec.role][0] if enrolment is None else enrolment.partitions

    return partitions


def _join(service: Service, enrolment: "Enrolment", owner: Owner) -> None:
    """Pass every map to the engine. The node first registers as ready, and reports to its owner once it and the nodes
    that start with it know each other."""

    def on_ready(ready: bool) -> None:
        if ready:
            enrolment.serve()
        if enrolment.registered:
            owner.tell(("ready" if enrolment.acquainted else "registered") if ready else "not_ready")

    service.on_ready = on_ready
    enrolment.on_registered = lambda: on_ready(service.ready)
    if isinstance(service, Server):
        service.name_of = enrolment.name_of
        enrolment.attach(service.place, service.engine.settled, service.name)
    else:
        enrolment.attach(lambda placement: None, lambda: True)


def _cut_off(
    spec: Spec, server: Server | None, enrolment: "Enrolment", log: structlog.typing.FilteringBoundLogger
) -> CutOff | None:
    if server is None or not kind(spec.role).door or spec.registry is None or not spec.registry.cut_off_ms:
        return None
    return CutOff(server, enrolment, log, after_s=spec.registry.cut_off_ms / 1000)


async def _hand_over(
    service: Service, enrolment: "Enrolment", end: asyncio.Event, stop: asyncio.Event, cut_off: CutOff | None
) -> None:
    def moved() -> list[float]:
        return [value for name, _, value in service.counters() if name.startswith(MOVED)]

    def in_flight() -> dict[int, int]:
        return {link["node"]: link["in_flight"] for link in service.status()["links"]}

    watching = None if cut_off is None else asyncio.create_task(cut_off.run())
    try:
        await end.wait()
    finally:
        if watching is not None:
            watching.cancel()
    service.draining = True
    try:
        await enrolment.hand_over(moved, in_flight)
    finally:
        stop.set()


def run(owner: Parent) -> None:
    """Run one role until it has drained. Raises `SpecError`, and `OSError` if an address is in use."""
    spec = owner.spec()
    log = logs.configure(spec.log_level, spec.log_format, **names_of(spec))
    memory.run(live(owner, spec, log))


def names_of(spec: Spec) -> dict[str, Any]:
    """The fields that name a node in each line of its log."""
    return {"role": spec.role, "node": spec.node, "name": name_of(spec), "instance": spec.instance}


async def live(
    owner: FileOwner, spec: Spec, log: structlog.typing.FilteringBoundLogger, others: Others | None = None
) -> None:
    """The life of one node. Raises `SpecError`, and `OSError` if an address is in use."""
    owner.begin(log, spec)
    companion = companion_of(spec)
    if spec.registry is None:
        await serve(spec, log, owner, companion=companion, others=others)
    else:
        await serve_enrolled(spec, log, owner, companion, others=others)
