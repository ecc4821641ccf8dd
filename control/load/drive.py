"""A run from its start to its report: opens the generators, takes a point each second, and judges.

Owns the loop, Ctrl-C, and the live table. Other hosts of the run come by `hosts.py`.
"""

import asyncio
import contextlib
import secrets
import shlex
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

import msgspec

from muster_server.control.errors import UNAVAILABLE, UserError
from muster_server.control.load.claims import Claim
from muster_server.control.load.generator import Generator, Settings, Share
from muster_server.control.load.page import page
from muster_server.control.load.report import Judged, Report, figures, summary
from muster_server.control.load.series import PERCENTILES, Names, Point, Second, Series, percentiles, second
from muster_server.control.terminal import common
from muster_server.control.terminal.found import Target, found
from muster_server.control.terminal.readings import CPU, Readings, processes_of, read_all
from muster_server.control.terminal.words import say

EVERY_S: Final = 1.0
SETTLE_S: Final = 10.0
"""Time for what is still on its way when the schedule is over."""
COLUMNS: Final = ("seconds", "sent/s", "done/s", "wrong", *(f"{name} ms" for name in PERCENTILES), "late p99")
HEADER_EVERY: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a system's load."""

    system: str
    settings: Settings
    where: Target = field(default_factory=Target)
    claims: Sequence[Claim] = ()
    as_json: bool = False
    html: Path | None = None
    name: str = field(default_factory=lambda: secrets.token_hex(4))
    """Tells the rooms, items and users of this run from those of others."""


class Others(Protocol):
    """The other hosts of a run."""

    count: int

    async def start(self) -> None:
        """Wait until all are connected, then have them begin."""

    def take(self) -> Mapping[int, list[Second]]:
        """The seconds of each host since the last call, by its index."""

    def stop(self) -> None:
        """Have them end now."""


async def drive(run: Run, others: Others | None = None) -> int:
    """Run, print, and return the exit code. Raises `UserError` where a run cannot begin."""
    hosts = 1 + (others.count if others else 0)
    share = Share(run=run.name, index=0, of=hosts)
    generator = run.settings.generator(share)
    names = Names(sent=generator.sent, done=generator.done, wrong=generator.wrong)
    for claim in run.claims:
        claim.holds(figures(Series(names), 1.0) | dict.fromkeys((names.sent, names.done, *names.wrong), 0.0))
    began = datetime.now().astimezone()
    async with opened(generator) as connected:
        say(f"muster load {run.system}: {connected}; Ctrl-C ends it with its summary")
        if others is not None:
            await others.start()
        loop = _Loop(run, generator, Series(names), others, hosts)
        ended = await loop.until_the_end()
    took = loop.took
    found_figures = figures(loop.series, took)
    claims = [
        Judged(text=claim.text, holds=claim.holds(found_figures), value=found_figures.get(claim.name))
        for claim in run.claims
    ]
    report = Report(
        system=run.system,
        command=shlex.join(["muster", *sys.argv[1:]]),
        began=began.isoformat(timespec="seconds"),
        took_s=round(took, 3),
        hosts=hosts,
        connected=connected,
        ended=ended,
        names=names,
        counts=loop.series.counts,
        latency_ms=percentiles(loop.series.latency),
        late_p99_ms=percentiles(loop.series.late)["p99"],
        cpu_s=loop.cpu_s,
        claims=claims,
        points=loop.series.points,
    )
    if run.html is not None:
        try:
            run.html.write_text(page(report), encoding="utf-8")
        except OSError as error:
            raise UserError(f"--html {run.html}: {error.strerror or error}") from None
    if run.as_json:
        print(msgspec.json.encode(report).decode())
    else:
        print("\n".join(summary(report)))
    return report.exit_code


@contextlib.asynccontextmanager
async def opened(generator: Generator) -> AsyncIterator[str]:
    """A connected generator, which leaves at the end of the block."""
    try:
        yield await generator.open()
    finally:
        await generator.close()


class _Loop:
    """Takes points until everything arrived, the time to wait is over, or Ctrl-C."""

    def __init__(self, run: Run, generator: Generator, series: Series, others: Others | None, hosts: int) -> None:
        self._run, self._generator, self.series, self._others, self._hosts = run, generator, series, others, hosts
        self._newest: dict[int, Second] = {}
        self.cpu_s: dict[str, float] = {}
        self._before: Readings = {}
        self.took = 0.0

    async def until_the_end(self) -> str:
        """The end: `complete`, `interrupted` or `late`."""
        began, over_at = time.monotonic(), None
        reading = asyncio.create_task(self._read())
        try:
            while True:
                asked = time.monotonic()
                mine = second(await self._generator.advance(EVERY_S))
                self.took = time.monotonic() - began
                cpu = reading.result() if reading.done() else {}
                if reading.done():
                    reading = asyncio.create_task(self._read())
                point = self._add({0: [mine], **(self._others.take() if self._others else {})}, cpu)
                if not self._run.as_json:
                    show(point, len(self.series.points))
                newest = self._newest.values()
                if len(newest) == self._hosts and all(each.complete for each in newest):
                    return "complete"
                if over_at is None and len(newest) == self._hosts and all(each.over for each in newest):
                    over_at = self.took
                if (
                    over_at is not None and self.took - over_at >= SETTLE_S
                ) or self.took > self._run.settings.for_s + 3 * SETTLE_S:
                    return "late"
                if mine.complete:  # it has nothing to wait for; other hosts have
                    await asyncio.sleep(max(0.0, asked + EVERY_S - time.monotonic()))
        except asyncio.CancelledError:
            if self._others is not None:
                self._others.stop()
            return "interrupted"
        finally:
            reading.cancel()

    def _add(self, seconds: Mapping[int, list[Second]], cpu: Mapping[str, float]) -> Point:
        for index, each in seconds.items():
            if each:
                self._newest[index] = each[-1]
        counts: dict[str, int] = {}
        for newest in self._newest.values():
            for name, count in newest.counts.items():
                counts[name] = counts.get(name, 0) + count
        return self.series.add(self.took, counts, [each for listed in seconds.values() for each in listed], cpu)

    async def _read(self) -> dict[str, float]:
        """Cores that the servers used since the last reading, by role, or by all roles of a shared process. None where their
        metrics can't be read."""
        if self._run.where.end.edges or self._run.where.end.gateway() is not None:
            return {}
        try:
            async with found(self._run.where) as nodes:
                record = await nodes.record()
            now = await asyncio.to_thread(read_all, record.processes)
        except UserError:
            return {}
        before, self._before = self._before, now
        cores: dict[str, float] = {}
        for group in processes_of(record.processes, now):
            role = "+".join(sorted({node.role for node in group}))
            for node in group:
                earlier, reading = before.get(node.node), now[node.node]
                rate = reading.rate(earlier, CPU)
                if earlier is not None and rate is not None:
                    cores[role] = cores.get(role, 0.0) + rate
                    self.cpu_s[role] = round(self.cpu_s.get(role, 0.0) + rate * (reading.at - earlier.at), 3)
                    break
        return cores


def show(point: Point, number: int) -> None:
    """One line of the live table."""
    if number % HEADER_EVERY == 1:
        print("  ".join(f"{column:>10}" for column in COLUMNS))
    times = (point.latency_ms[name] for name in PERCENTILES)
    cells = [
        f"{point.at_s:>10.1f}",
        f"{point.sent_per_s:>10,.0f}",
        f"{point.done_per_s:>10,.0f}",
        f"{point.wrong:>10,}",
    ]
    cells += ["         -" if value is None else f"{value:>10,.2f}" for value in (*times, point.late_p99_ms)]
    print("  ".join(cells), flush=True)


def check_target(where: str, addresses: Sequence[str], owned: bool) -> None:
    """Refuse addresses beyond this machine unless their owner says so. Raises `UserError`."""
    remote = next((each for each in addresses if not common.is_of_this_machine(each)), None)
    if remote is not None and not owned:
        raise UserError(
            f"{where}: {remote} is another machine; a load can stop it, so name it by --i-own-this-target", UNAVAILABLE
        )
