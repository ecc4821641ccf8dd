"""`muster cluster grow`: doubles the partitions of a layer. The command coordinates; another command may continue it.

The supervisor of `muster up` starts the nodes of its instance; operators of hosts start those of `muster serve`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from muster_server.control.cluster import instance, requests, specs
from muster_server.control.cluster.growth import Coordinator, Hosts, Report
from muster_server.control.cluster.requests import Counted, Layered, Look, Provide, Withdraw
from muster_server.control.errors import TRY_LATER, NotRunning, UserError
from muster_server.control.registry.places import MAIN, layer
from muster_server.control.terminal.found import Target, reading
from muster_server.control.terminal.words import say
from muster_server.plane.kinds import kind
from muster_server.plane.spec import Registration

LOOK_S: Final = 0.2
NAMED_MAX: Final = 3
"""Limit of waiting nodes that are named."""
STEPS: Final = ("prepare", "switched", "final")


@dataclass(frozen=True, slots=True)
class LayerRef:
    """The layer to grow."""

    role: Layered
    cluster: str = MAIN
    """The cluster, for brokers."""

    @property
    def layer(self) -> str:
        """The layer's name."""
        return layer(self.role, self.cluster)

    @property
    def command(self) -> str:
        """The command that grows it."""
        return command(self.layer)


def command(of: str) -> str:
    """The command that grows a layer."""
    role, _, cluster = of.partition("/")
    return f"muster cluster grow {role}" + (f" --cluster {cluster}" if cluster not in {"", MAIN} else "")


async def grow(
    where: Target,
    of: LayerRef,
    to: int | None,
    *,
    resume: bool,
    grace_s: float,
    wait_s: float,
    as_json: bool,
) -> int:
    """Double until there are `to` partitions. Raises `UserError`. Returns 75 if a signal ended it early."""
    with contextlib.suppress(asyncio.CancelledError):
        async with _coordinator(where, of, grace_s, wait_s) as (coordinator, hosts):
            with shown() as coordinator.tell:
                partitions = await coordinator.grow(to, resume=resume)
            if isinstance(hosts, Supervised):
                say(f"muster: the next muster up starts as many, whatever value up.{kind(of.role).plural} has")
            _say(of, partitions, as_json)
            return 0
    return _left(of)


async def abort(where: Target, of: LayerRef, wait_s: float, as_json: bool) -> int:
    """Undo a growth that is only prepared, and wait until its nodes have ended. Raises `UserError`."""
    with contextlib.suppress(asyncio.CancelledError):
        async with _coordinator(where, of, 0.0, wait_s) as (coordinator, hosts):
            partitions = await coordinator.abort()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    while await hosts.beyond(partitions):  # noqa: ASYNC110 - it happens in another process
                        await asyncio.sleep(LOOK_S)
            _say(of, partitions, as_json)
            return 0
    return _left(of)


def _say(of: LayerRef, partitions: int, as_json: bool) -> None:
    said = msgspec.json.encode({"layer": of.layer, "partitions": partitions}).decode()
    print(said if as_json else f"{of.layer} has {partitions} partition{'' if partitions == 1 else 's'}")


def _left(of: LayerRef) -> int:
    say(f"muster: the growth continues; muster cluster show has its step; to wait for it again: {of.command} --resume")
    return TRY_LATER


class Supervised(Hosts):
    """The supervisor of a running `muster up`."""

    def __init__(self, folder: Path, role: Layered) -> None:
        self._folder, self._role = folder, role

    async def provide(self, partitions: int) -> Mapping[int, str]:
        found = await requests.ask(self._folder, Provide(role=self._role, partitions=partitions))
        return {each.node: each.name for each in found}

    async def withdraw(self, partitions: int) -> None:
        await requests.ask(self._folder, Withdraw(role=self._role, partitions=partitions))

    async def counted(self, partitions: int) -> None:
        await requests.ask(self._folder, Counted(role=self._role, partitions=partitions))

    async def beyond(self, partitions: int) -> bool:
        """Whether nodes of partitions from this number on still run."""
        found = await requests.ask(self._folder, Look())
        return any(each.role == self._role and each.partition >= partitions for each in found)


class OperatedHosts(Hosts):
    """Hosts of `muster serve`: their operators start and end the nodes."""

    async def provide(self, partitions: int) -> Mapping[int, str]:
        return {}

    async def withdraw(self, partitions: int) -> None:
        pass

    async def counted(self, partitions: int) -> None:
        pass

    async def beyond(self, partitions: int) -> bool:
        """Returns at once: there is nothing to wait for."""
        return False


@contextlib.asynccontextmanager
async def _coordinator(
    where: Target, of: LayerRef, grace_s: float, wait_s: float
) -> AsyncIterator[tuple[Coordinator, Supervised | OperatedHosts]]:
    """Use the registry that `where` names, else that of the local instance, else the configured one."""
    found, hosts = _found(where, of)
    async with reading(found) as (opened, directory):
        made = Coordinator(opened, directory, of.role, hosts, grace_s=grace_s, patience_s=wait_s, cluster=of.cluster)
        yield made, hosts


def _found(where: Target, of: LayerRef) -> tuple[Registration, Supervised | OperatedHosts]:
    settings = where.config()
    place, registry = instance.folder(settings), settings.registry
    # The supervisor runs the first cluster; the other clusters are nodes of muster serve.
    hosts: Supervised | OperatedHosts = Supervised(place.path, of.role) if of.cluster == MAIN else OperatedHosts()
    try:
        url = instance.find(place).registry or ""
    except NotRunning:
        if not registry.url.startswith("zk://"):
            raise
        url, hosts = registry.url, OperatedHosts()
    if where.registry is not None and url != registry.url:
        url, hosts = registry.url, OperatedHosts()
    if not url:
        raise UserError("partitions cannot grow without a registry: muster up --registry embedded")
    return specs.reader(settings, url), hosts


@contextlib.contextmanager
def shown() -> Iterator[Callable[[Report], None]]:
    """Reports every step on stderr: a bar on a terminal, else a line for each change."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines()
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[waits]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=len(STEPS), waits="")

        def tell(report: Report) -> None:
            done = STEPS.index(report.step)
            bar.update(task, description=_step(report), completed=done, waits=_waits(report).removeprefix(", "))

        yield tell


class Lines:
    """Prints the change."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, report: Report) -> None:
        line = f"{report.layer}: {_step(report)}{_waits(report)}"
        if line != self._said:
            say(line)
        self._said = line


def _step(report: Report) -> str:
    return f"to {report.to} partitions: {report.step}"


def _waits(report: Report) -> str:
    named = ", ".join(report.waits[:NAMED_MAX])
    more = len(report.waits) - NAMED_MAX
    return "" if not named else f", waits for {named}" + (f" and {more} more" if more > 0 else "")
