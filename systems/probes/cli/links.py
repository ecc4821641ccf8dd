"""`muster links`: every link between nodes as its sender sees it, worst first, and the limits that it breaks (ROOM-21).

Asks each node for its status. A node that does not answer is named on stderr and makes the exit code 75. The other
nodes' reports of their links to it are shown.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

import msgspec
from rich.table import Table

from muster_server.control.cluster.instance import Process
from muster_server.control.errors import FAILURE, USAGE, UserError
from muster_server.control.node.ages import Ages, ages
from muster_server.control.terminal import common, tables
from muster_server.control.terminal.found import Target, everybody
from muster_server.control.terminal.lines import LEAST, Line, seen, table
from muster_server.control.terminal.readings import Readings, name_silent, read_all
from muster_server.control.terminal.words import say
from muster_server.systems.probes.cli import report as paths

EVERY_S: Final = 1.0


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """The age of clients' messages when they came from `sender` to `receiver`, by the messages that carry their age.

    Counted from the proxy; the percentiles cover recent messages.
    """

    sender: str
    receiver: str
    seen: int
    p50_ms: float | None
    p99_ms: float | None


class Wanted(msgspec.Struct, frozen=True):
    """Selects links: from or to nodes of a role, from or to one node by name or number, and the N worst."""

    role: str | None = None
    node: str | None = None
    worst: int | None = None

    def of(self, lines: Sequence[Line], processes: Sequence[Process]) -> list[Line]:
        """The selected links, in the same order. Raises `UserError` for an unknown node."""
        role = {process.name for process in processes if self.role in {None, process.role}}
        node = {process.name for process in processes if self.node in {None, process.name, str(process.node)}}
        if not node:
            raise UserError(f"--of: there is no node {self.node}; muster status lists all", USAGE)
        chosen = [line for line in lines if {line.sender, line.receiver} & role and {line.sender, line.receiver} & node]
        return chosen[: self.worst]


async def show(
    where: Target, wanted: Wanted, *, as_json: bool, watch: bool, check: bool, probe_s: float | None = None
) -> int:
    """Print the links once, or every second until a signal. With `check`, return 1 if a link breaks a limit repeatedly.

    Includes the paths if a prober runs; with `probe_s` it first probes them for that long.
    """
    settings, readings, hinted = where.config(), 0, False
    limits = settings.links
    always: set[tuple[str, str]] = set()
    probed = None if probe_s is None else await paths.probed(where, probe_s)
    async with everybody(where, kept=True) as nodes:
        while True:
            record = await nodes.record()
            now = await asyncio.to_thread(read_all, record.processes)
            lines, readings = wanted.of(seen(record.processes, now, limits), record.processes), readings + 1
            beyond = {(line.sender, line.receiver) for line in lines if line.beyond}
            always = beyond if readings == 1 else always & beyond
            if watch or not (check and always and readings < limits.failures):
                probes = probed or await asyncio.to_thread(paths.asked, record, settings)
                if probes is None and not hinted:
                    hinted = True
                    say(f"muster: {paths.hint(record)}")
                ways = None if probes is None else paths.judged(record.processes, probes, settings)
                with contextlib.nullcontext() if watch else common.verdict_after():
                    _print(lines, ways, aged(record.processes, now), as_json, watch)
                code = name_silent(now) or paths.name_unknown(probes, check=check or probe_s is not None)
                if not watch:
                    failed = always or any(way.beyond for way in ways or ())
                    return FAILURE if check and failed else code
            await asyncio.sleep(EVERY_S)


def aged(processes: Sequence[Process], now: Readings) -> list[Messages]:
    """Collect all nodes' ages of real messages, the oldest first."""
    names = {process.node: process.name for process in processes}

    def messages(receiver: str, known: Ages) -> Messages:
        p50_ms, p99_ms = (None if us is None else us / 1000 for us in (known.p50_us, known.p99_us))
        sender = names[known.node]
        return Messages(sender=sender, receiver=receiver, seen=known.count, p50_ms=p50_ms, p99_ms=p99_ms)

    lines = [
        messages(process.name, known)
        for process in processes
        if (reading := now[process.node]).status
        for known in ages(reading.status)
        if known.node in names
    ]
    return sorted(lines, key=lambda line: line.p99_ms or 0.0, reverse=True)


def _print(
    lines: Sequence[Line], ways: Sequence[paths.Line] | None, real: Sequence[Messages], as_json: bool, watch: bool
) -> None:
    if as_json:
        document = {"links": lines, "messages": real} | ({} if ways is None else {"paths": ways})
        common.print_json(document, line=watch)
        return
    console = common.out()
    if watch:
        console.clear()
    tables.show(console, table(lines), LEAST)
    marked = sum(bool(line.beyond) for line in lines)
    console.print(f"{common.counted(len(lines), 'link')}, {marked} beyond a limit")
    if real:
        console.print(_messages(real))
    if ways is not None:
        tables.show(console, paths.table(ways), paths.LEAST)
        marked = sum(bool(way.beyond) for way in ways)
        console.print(f"{common.counted(len(ways), 'path')}, {marked} beyond a limit")


def _messages(lines: Sequence[Messages]) -> Table:
    shown = Table(
        box=None, pad_edge=False, title="age of real messages since a proxy accepted them", title_justify="left"
    )
    for column in ("from", "to"):
        shown.add_column(column)
    for column in ("seen", "p50 ms", "p99 ms"):
        shown.add_column(column, justify="right")
    for line in lines:
        ms = ("" if value is None else f"{value:.1f}" for value in (line.p50_ms, line.p99_ms))
        shown.add_row(line.sender, line.receiver, str(line.seen), *ms)
    return shown
