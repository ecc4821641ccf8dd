"""The process of one role: `python -m control.node.process --spec FILE`, run by the supervisor or by `muster serve`.

Composes what `plane` serves with logs, administration and the tie to its owner. Speaks to a parent by one line of
JSON each on stdout: `{"state": "ready"}`, `{"state": "not_ready"}`, `{"state": "failed", "error": …}`; with a registry
first `{"state": "waiting", "error": …}` if that does not answer, then `{"state": "starting", "epoch": …}`, and
`{"state": "registered"}` until it knows all that start with it. It dies with its parent: by the kernel's signal, and by the
end of its stdin, whichever comes first.
"""

import argparse
import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import structlog
import uvloop

from control.errors import FAILURE, ConfigError, UserError
from control.node import admin, logs
from control.node.cutoff import CutOff
from control.node.live import Again, Limit, Live, Now, Weigh
from muster import __version__
from plane import main as plane
from plane.engine import Engine
from plane.role import TakeSecrets
from plane.server import Server
from plane.spec import Spec, SpecError, T, content, decoded

if TYPE_CHECKING:  # loaded only where there is a database, or a registry
    from control.node.enrolment import Enrolment
    from control.rooms.database.keeper import Keeper, Late

PR_SET_PDEATHSIG: Final = 1
M_MMAP_THRESHOLD: Final = -3
MMAP_THRESHOLD: Final = 128 << 10
SUPERSEDED: Final = (
    "{name} is registered by a later process, so this one has ended; each needs a name of its own: see serve.name, "
    "instance.name"
)
DISPLACED: Final = "{name} has lost its number while it ran, so it has ended; start it again: {why}"
MOVED: Final = ("messages_", "repairs_")
"""Counters that grow while a broker is still needed begin so."""


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends; end now if that has happened already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


class Owner(Protocol):
    """Who runs the process: is told how it goes, and says when it is to end."""

    def tell(self, state: str, **more: Any) -> None:
        """`waiting` and for what (`error`), `starting`, `registered`, `ready`, `not_ready`, `failed` and why (`error`)."""

    def watch(
        self,
        end: asyncio.Event,
        stop: asyncio.Event,
        engine: Engine | None = None,
        node: int = 0,
        weigh: Weigh | None = None,
        take_secrets: TakeSecrets | None = None,
        limit: Limit | None = None,
    ) -> None:
        """From now on set `end` when the process is to end in order, `stop` when it is to end at once.

        The engine, if there is one, is told what else is to be in force from now on; `weigh` its weight, for others;
        `take_secrets` what users' tokens are signed with; `limit` is told a prober's limits.
        """

    def current(self, spec: Spec) -> Spec:
        """The spec with what came into force since it was read."""


class Parent:
    """The supervisor, at the other ends of stdin and stdout. By SIGHUP it says that it has written the spec anew."""

    def __init__(self, file: Path) -> None:
        """Until it watches, what the supervisor says is not heard, and read then."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._file, self._seen = file, b""
        self._live: Live | None = None
        self._again: Again | None = None

    def spec(self, kind: type[T]) -> T:
        """What the file says now. Raises `SpecError`."""
        return decoded(self._file, self._content(), kind)

    def _content(self) -> bytes:
        self._seen = content(self._file)
        return self._seen

    def reloads(self, live: Live, again: Again) -> None:
        """What is in force, and how it is read again."""
        self._live, self._again = live, again

    def tell(self, state: str, **more: Any) -> None:
        """Say one line. A parent that is gone will be noticed elsewhere."""
        with contextlib.suppress(OSError):
            os.write(1, msgspec.json.encode({"state": state, **more}) + b"\n")

    def watch(
        self,
        end: asyncio.Event,
        stop: asyncio.Event,
        engine: Engine | None = None,
        node: int = 0,
        weigh: Weigh | None = None,
        take_secrets: TakeSecrets | None = None,
        limit: Limit | None = None,
    ) -> None:
        """SIGTERM, SIGHUP, and the end of stdin."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, end.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the terminal's Ctrl-C is the supervisor's business
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._reload()
        if self._live is not None and engine is not None:
            self._live.attach(engine, node, weigh, take_secrets)
        if self._live is not None and limit is not None:
            self._live.attach_prober(limit)
        loop.add_reader(0, self._read, stop)

    def current(self, spec: Spec) -> Spec:
        """As the file is by now."""
        self._reload()
        return spec if self._live is None else self._live.current(spec)

    def _reload(self) -> None:
        """If there is something new: whoever signals may not have written."""
        seen = self._seen
        with contextlib.suppress(SpecError):
            if self._content() == seen:
                return
        if self._live is not None and self._again is not None:
            self._live.reload(self._again)

    @staticmethod
    def _read(stop: asyncio.Event) -> None:
        if not os.read(0, 4096):
            asyncio.get_running_loop().remove_reader(0)
            stop.set()


async def serve_enrolled(
    spec: Spec,
    log: structlog.typing.FilteringBoundLogger,
    owner: Owner,
    store: "Late | None" = None,
    release: Callable[[], None] = lambda: None,
) -> None:
    """Begin with what the registry says, which is waited for. Raises `SpecError`.

    `release` lets go of the node's ports, which somebody else would get while it waits. Raises `ConfigError` when it has
    drained because another process goes by its name: a new start would drive that one out. Raises `UserError` when the
    registry came to say that its number is another node's: a new start takes another number, if none is asked for.
    """
    from control.node.enrolment import enrolled

    async with enrolled(spec, log, lambda what: owner.tell("waiting", error=what)) as (begun, enrolment):
        owner.tell("starting", epoch=begun.epoch)
        log = log.bind(node=begun.node)
        release()
        now = owner.current(begun)
        await serve(now, plane.server(now, log), log, owner, enrolment, store)
        if enrolment.superseded:
            raise ConfigError(SUPERSEDED.format(name=enrolment.name))
        if enrolment.displaced:
            raise UserError(DISPLACED.format(name=enrolment.name, why=enrolment.displaced), FAILURE)


async def serve(
    spec: Spec,
    server: Server,
    log: structlog.typing.FilteringBoundLogger,
    owner: Owner,
    enrolment: "Enrolment | None" = None,
    store: "Late | None" = None,
) -> None:
    """Run until the owner says that it ends, then drain."""
    stop = asyncio.Event()
    end = stop if enrolment is None else asyncio.Event()
    weigh = None if enrolment is None else enrolment.weigh
    owner.watch(end, stop, server.engine, spec.node, weigh, server.take_secrets)
    server.on_ready = lambda ready: owner.tell("ready" if ready else "not_ready")
    handing_over = None
    if enrolment is not None:
        enrolment.on_superseded = enrolment.on_displaced = end.set
        _join(server, enrolment, owner)
        handing_over = asyncio.create_task(
            _hand_over(server, enrolment, end, stop, _cut_off(spec, server, enrolment, log))
        )
    about = {
        "instance": spec.instance,
        "role": spec.role,
        "node": spec.node,
        "epoch": spec.epoch,
        "pid": os.getpid(),
        "version": __version__,
        "addresses": server.engine.addresses(),
        "faults": spec.faults,
    }
    keeper = None if store is None else _keep(spec, store, server, log, enrolment)
    http = admin.http(admin.Admin(server, about, enrolment, keeper))
    serving = asyncio.create_task(http.serve(sockets=[admin.listen(spec.admin)]))
    if spec.faults:
        log.warning("FAULTS ARE INJECTED ON PURPOSE", faults=spec.faults)
    for asked, effective in server.engine.buffers():
        if effective < asked:
            log.warning("the kernel gave a smaller receive buffer", asked=asked, effective=effective)
    log.info("started", addresses=server.engine.addresses(), admin=spec.admin, epoch=spec.epoch)
    try:
        async with contextlib.nullcontext() if keeper is None else keeper:
            try:
                await server.run(stop, spec.drain_ms / 1000)
            finally:  # at once: the keeper may have to write for a while
                if handing_over is not None and enrolment is not None:
                    enrolment.detach()
                    handing_over.cancel()
    finally:
        http.end()
        await serving
    log.info("ended")


def store_of(spec: Spec) -> "Late | None":
    """The database of a router that has one. Raises `SpecError`."""
    if spec.database is None:
        return None
    from control.rooms.database.keeper import opened

    return opened(spec.database)


def _keep(
    spec: Spec,
    store: "Late",
    server: Server,
    log: structlog.typing.FilteringBoundLogger,
    enrolment: "Enrolment | None",
) -> "Keeper":
    from control.rooms.database.keeper import keeper

    def partitions() -> int:
        return spec.partitions[1] if enrolment is None else enrolment.partitions

    return keeper(spec, store, server.engine, log, partitions)


def _join(server: Server, enrolment: "Enrolment", owner: Owner) -> None:
    """The engine takes every map; that it is ready is said to others first, and to the owner once both know each other."""

    def on_ready(ready: bool) -> None:
        if ready:
            enrolment.serve()
        if enrolment.registered:
            owner.tell(("ready" if enrolment.acquainted else "registered") if ready else "not_ready")

    server.on_ready = on_ready
    enrolment.on_registered = lambda: on_ready(server.ready)
    enrolment.attach(server.engine.placement, server.engine.settled, server.engine.servers)


def _cut_off(
    spec: Spec, server: Server, enrolment: "Enrolment", log: structlog.typing.FilteringBoundLogger
) -> CutOff | None:
    after_ms = 0 if spec.registry is None or spec.bind is None else spec.registry.cut_off_ms
    return CutOff(server, enrolment, log, after_s=after_ms / 1000) if after_ms else None


async def _hand_over(
    server: Server, enrolment: "Enrolment", end: asyncio.Event, stop: asyncio.Event, cut_off: CutOff | None
) -> None:
    def moved() -> list[int]:
        return [value for name, _, value in server.engine.counters() if name.startswith(MOVED)]

    def in_flight() -> dict[int, int]:
        return {link["node"]: link["in_flight"] for link in server.engine.status()["links"]}

    watching = None if cut_off is None else asyncio.create_task(cut_off.run())
    try:
        await end.wait()
    finally:
        if watching is not None:
            watching.cancel()
    server.draining = True
    try:
        await enrolment.hand_over(moved, in_flight)
    finally:
        stop.set()


def give_back_memory() -> None:
    """Let glibc return freed blocks from 128 KiB on to the kernel; by itself it stops after the first large one.

    What a role frees is large: rings, and pieces of 256 keys of sessions that fell idle.
    """
    with contextlib.suppress(AttributeError, OSError):  # another libc
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)


def child(prog: str, run: Callable[[Parent], None]) -> int:
    """Run something under a supervisor. `run` raises `SpecError`, `OSError` or `UserError`.

    Exit codes: 0 ended as told, 1 failed, 78 and is not to be started again.
    """
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    die_with(arguments.parent)
    owner = Parent(arguments.spec)
    give_back_memory()
    try:
        run(owner)
    except (SpecError, OSError, UserError) as error:
        owner.tell("failed", error=str(error))
        return error.exit_code if isinstance(error, UserError) else FAILURE
    return 0


def run(owner: Parent) -> None:
    """Run one role until it has drained. Raises `SpecError`, and `OSError` when an address is taken."""

    def again() -> Now:
        now = owner.spec(Spec)
        return Now(now.log_level, now)

    spec = owner.spec(Spec)
    log = logs.configure(spec.log_level, spec.log_format, role=spec.role, node=spec.node, instance=spec.instance)
    owner.reloads(Live(log, spec.log_level, spec), again)
    store = store_of(spec)
    if spec.registry is None:
        uvloop.run(serve(spec, plane.server(spec, log), log, owner, store=store))
    else:
        uvloop.run(serve_enrolled(spec, log, owner, store))


def main() -> int:
    """Run one role under a supervisor, and give the exit code."""
    return child("control.node.process", run)


if __name__ == "__main__":
    sys.exit(main())
