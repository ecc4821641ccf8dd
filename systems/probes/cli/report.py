"""Paths in `muster links`: every path through a proxy, a broker and a gateway, worst first (ROOM-13, ROOM-21)."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from rich.table import Table

from muster import Address
from muster_server.control.cluster import instance, specs
from muster_server.control.cluster.instance import Process, Record
from muster_server.control.cluster.specs import absolute
from muster_server.control.config.options import Config
from muster_server.control.errors import TRY_LATER, ConfigError, UserError
from muster_server.control.host.addresses import address_text, split_address
from muster_server.control.terminal import common
from muster_server.control.terminal.found import Target, client_of, mapped
from muster_server.control.terminal.lines import AVAILABILITY, DOWN, LATENCY, LOSS
from muster_server.control.terminal.words import say
from muster_server.plane.spec import SpecError, secret
from muster_server.plane.trust import probe_token
from muster_server.systems.probes.paths import Figures, Measured
from muster_server.systems.probes.prober import Prober, Source
from muster_server.systems.probes.system import NAME, Probes

EVERY_S: Final = 0.2
"""Interval of probes in seconds, or a shorter configured one: a user waits."""
LEAST: Final = ("age s", "last ms", "failures", "probes", "broker ms", "gateway ms", "availability")
"""Columns of the table that a narrow terminal drops, the first of them first."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The results of probes."""

    figures: Sequence[Figures]
    paths: int
    """The probed paths."""
    left_out: int
    """Number of paths that are not probed, because there are too many."""
    error: str = ""
    """The reason why the prober gave no answer."""


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """A node on the path of a request, and the time until its answer, by the clock of the previous node."""

    asked_by: str
    node: str
    seen: int
    last_ms: float
    p50_ms: float
    max_ms: float


class Line(Measured, frozen=True, kw_only=True):
    """One path by names. `beyond`: the limits of `[links]` that it breaks."""

    proxy: str
    broker: str
    gateway: str
    up: bool
    beyond: list[str]
    hops: list[Hop]

    def badness(self) -> tuple[bool, int, float, float, float]:
        """Sort key: higher is worse."""
        return (not self.up, len(self.beyond), self.loss, -self.availability, self.p99_ms or 0.0)


async def probed(where: Target, seconds: float) -> Probed:
    """Probe for this many seconds. Raises `UserError`."""
    settings = where.config()
    async with mapped(where) as (nodes, snapshot):
        record = await nodes.record()
        client = Address((), (), probe_token(client_of(record).token))
        source = Source(snapshot, client, _name_key(settings, here=record.pid != 0))
        probes: Probes = settings.section("probes")
        every_s = min(probes.every_ms / 1000 or EVERY_S, EVERY_S)
        prober = Prober(probes, source, common.errors_alone(), every_s=every_s)
        work = asyncio.create_task(prober.run())
        await asyncio.wait([work], timeout=seconds)
        now = time.monotonic()
        work.cancel()
        await asyncio.wait([work])
        if not work.cancelled():
            work.result()
    return Probed(list(prober.figures(now)), prober.paths, prober.left_out)


def _name_key(settings: Config, *, here: bool) -> bytes:
    named = settings.cluster.names_file
    if not named and not here:
        raise ConfigError("cluster.names_file: missing; probes need it to find each room's broker")
    file = absolute(named) if named else str(instance.folder(settings).name_key)
    try:
        return secret(file, 16)
    except SpecError as error:
        raise ConfigError(str(error)) from None


def asked(record: Record, settings: Config) -> Probed | None:
    """The results of the prober of this instance, or of the configuration; None if there is none."""
    probes: Probes = settings.section("probes")
    found = record.of(NAME)
    if probes.ask and not (record.pid and found):
        process = instance.at(split_address(probes.ask), specs.admin_access(settings), NAME, NAME)
    elif found:
        process = found[0]
    else:
        return None
    try:
        _, said = common.get(process, "/api/v1/status")
        return Probed(msgspec.convert(said["paths"], list[Figures]), said["probed"], said["left_out"])
    except UserError as error:
        return Probed((), 0, 0, str(error))
    except (LookupError, TypeError, msgspec.ValidationError):
        where = address_text(*process.admin)
        return Probed((), 0, 0, f"{where} is not a prober of this version; see probes.ask")


def hint(record: Record) -> str:
    """How to probe paths, if nothing probes them."""
    here = (
        "set probes.every_ms and send SIGHUP to muster up"
        if record.pid
        else "run muster serve prober and set probes.ask to it"
    )
    return f"paths are not probed: {here}, or add --probe SECONDS"


def judged(processes: Sequence[Process], probed: Probed, settings: Config) -> list[Line]:
    """The paths between these nodes, judged by the limits, worst first; includes those that fail with a lost broker."""
    names = {process.node: process.name for process in processes}
    lines: list[Line] = []
    for figures in probed.figures:
        gone = {figures.path.broker: f"node {figures.path.broker}"} if figures.failing else {}
        known = gone | names
        if all(node in known for node in figures.path):
            lines.append(_line([known[node] for node in figures.path], figures, settings))
    return sorted(lines, key=lambda line: line.badness(), reverse=True)


def _line(names: Sequence[str], figures: Figures, settings: Config) -> Line:
    limits, often = settings.links, figures.sent - figures.seen >= settings.section("probes").failures
    broken = {
        DOWN: figures.failing,
        LATENCY: (figures.p50_ms or 0.0) > limits.latency_ms,
        LOSS: often and figures.loss > limits.loss,
        AVAILABILITY: often and figures.availability < limits.availability,
    }
    told: dict[str, Any] = {name: getattr(figures, name) for name in Measured.__struct_fields__}
    beyond = [what for what, is_beyond in broken.items() if is_beyond]
    proxy, broker, gateway = names
    hops = [
        Hop(asked_by=asker, node=node, seen=hop.seen, last_ms=hop.last_ms, p50_ms=hop.p50_ms, max_ms=hop.max_ms)
        for asker, node, hop in zip((proxy, broker), (broker, gateway), figures.hops, strict=False)
    ]
    up = not figures.failing
    return Line(proxy=proxy, broker=broker, gateway=gateway, up=up, beyond=beyond, hops=hops, **told)


def name_unknown(probed: Probed | None, *, check: bool) -> int:
    """Print on stderr how many paths have no result yet. Returns the exit code: a path that just started to fail only
    fails a `check`."""
    if probed is None:
        return 0
    if probed.error:
        say(f"muster: {probed.error}")
        return TRY_LATER
    without = probed.paths - sum(figures.sent > 0 for figures in probed.figures)
    if without > 0:
        of = common.counted(without, "path")
        say(f"muster: no results yet for {of}; probe for longer, or raise probes.per_s_max")
    if probed.left_out:
        say(f"muster: {common.counted(probed.left_out, 'path')} not probed, because there are too many")
    return TRY_LATER if (check and without > 0) or probed.left_out else 0


def table(lines: Sequence[Line]) -> Table:
    """Print for a terminal."""
    shown = Table(box=None, pad_edge=False)
    for column in ("proxy", "broker", "gateway", "state"):
        shown.add_column(column)
    hops = ("broker ms", "gateway ms")
    for column in ("probes", "loss", "availability", "last ms", "p50 ms", "p99 ms", *hops, "age s", "failures"):
        shown.add_column(column, justify="right")
    shown.add_column("beyond")
    for line in lines:
        shown.add_row(
            line.proxy,
            line.broker,
            line.gateway,
            "up" if line.up else "down",
            str(line.sent),
            f"{line.loss:.2%}",
            f"{line.availability:.2%}",
            *("" if ms is None else f"{ms:.1f}" for ms in (line.last_ms, line.p50_ms, line.p99_ms)),
            *(f"{hop.p50_ms:.1f}" for hop in line.hops),
            *("" for _ in hops[len(line.hops) :]),
            "" if line.age_s is None else f"{line.age_s:.1f}",
            str(line.failures),
            ", ".join(line.beyond),
            style="red" if line.beyond else None,
        )
    return shown
