"""The figures of nodes for the pages: a reading of all nodes every few seconds, and an hour of sums.

One reading serves all open pages. Knows no page and no request.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import msgspec
import structlog

from muster import __version__
from muster_server.control.cluster.instance import Process, Record
from muster_server.control.config.options import Links
from muster_server.control.doctor import running
from muster_server.control.doctor.finding import Finding
from muster_server.control.errors import UserError
from muster_server.control.terminal.activity import Sample, taken
from muster_server.control.terminal.limits import Limit
from muster_server.control.terminal.lines import Line, seen
from muster_server.control.terminal.readings import BEGAN, Readings, read_all
from muster_server.plane import systems
from muster_server.plane.kinds import kinds, system_of

HISTORY_S: Final = 3_600
POINTS_MAX: Final = 1_440
"""Limit of stored points, about 100 bytes each in an answer: one in 2.5 s."""
SHARE: Final = 10
"""Readings take at most one tenth of the time: a large cluster is read more rarely."""
ALARMS_MAX: Final = 100
LINKS_MAX: Final = 300
"""The worst links that a page gets, of all."""
ONLINE: Final = "muster_presence_online"
NAMED_MAX: Final = 3


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """The sums of one reading. `probe_*`: the median p50 and the worst p99 of all probed paths."""

    at: float
    published: float
    delivered: float
    dropped: float
    members: int
    online: int
    """Devices of users that are online, over all gateways and edges."""
    cpu: float
    rss_bytes: int
    lag_ms: float
    probe_p50_ms: float | None
    probe_p99_ms: float | None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """One running system. `silent`: some nodes that do not serve, with their states."""

    name: str
    title: str
    nodes: int
    ready: int
    silent: list[str]


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node in the table."""

    name: str
    role: str
    system: str
    partition: int
    state: str
    version: str
    age_s: float | None
    cpu: float | None
    rss_bytes: int | None
    members: int | None
    in_per_s: float | None
    out_per_s: float | None
    lag_ms: float | None
    dropped_per_s: float | None
    dropped_most: str | None
    limit: Limit | None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The summary that every open page gets with each reading."""

    at: float
    instance: str
    version: str
    every_s: float
    total: Any
    systems: list[Health]
    alarms: list[Finding]
    point: Point
    error: str = ""
    """Why the last reading failed; then the rest is older."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One reading."""

    record: Record
    readings: Readings
    sample: Sample
    rows: list[NodeRow]
    links: list[Line]
    overview: Overview


class Sampler:
    """Reads the nodes that `look` returns, until it is cancelled."""

    def __init__(
        self,
        look: Callable[[], Awaitable[Record]],
        every_s: float,
        limits: Links,
        log: structlog.typing.FilteringBoundLogger,
    ) -> None:
        self._look, self._every_s, self._limits, self._log = look, every_s, limits, log
        self.seen: Seen | None = None
        self.error = ""
        self.serial = 0
        """Number of readings, also of failed ones."""
        self.history: deque[Point] = deque(maxlen=min(POINTS_MAX, max(2, int(HISTORY_S / every_s))))
        self.on_sample: set[Callable[[], None]] = set()
        """Called after each reading."""

    async def run(self) -> None:
        """Read until the end."""
        before: Readings = {}
        while True:
            began = time.monotonic()
            try:
                record = await self._look()
                now = await asyncio.to_thread(read_all, record.processes)
            except UserError as error:
                self._failed(str(error))
            else:
                self.error = ""
                await asyncio.to_thread(self._take, record, before, now)
                before = now
            self.serial += 1
            for call in tuple(self.on_sample):
                call()
            pause_s = 1.0 if before and len(self.history) <= 1 else self._every_s
            await asyncio.sleep(max(pause_s, SHARE * (time.monotonic() - began) - (time.monotonic() - began)))

    def _failed(self, why: str) -> None:
        if why != self.error:
            self._log.warning("cannot read the nodes", why=why)
        self.error = why

    def _take(self, record: Record, before: Readings, now: Readings) -> None:
        sample = taken(record.name, record.processes, before, now)
        p50_ms, p99_ms = probed(now)
        total = sample.total
        point = Point(
            at=sample.at,
            published=total.published_per_s,
            delivered=total.delivered_per_s,
            dropped=total.dropped_per_s,
            members=total.members,
            online=online(record.processes, now),
            cpu=total.cpu,
            rss_bytes=total.rss_bytes,
            lag_ms=round(1_000 * total.lag_s, 1),
            probe_p50_ms=p50_ms,
            probe_p99_ms=p99_ms,
        )
        last = self.history[-1].at if self.history else 0.0
        if before and point.at - last >= HISTORY_S / POINTS_MAX:  # rates need two readings
            self.history.append(point)
        alarms = [each for each in running.judged(record, __version__, now) if each.level != "ok"]
        overview = Overview(
            at=sample.at,
            instance=record.name,
            version=record.version,
            every_s=self._every_s,
            total=total,
            systems=health(record.processes, now),
            alarms=sorted(alarms, key=lambda each: each.level)[:ALARMS_MAX],
            point=point,
        )
        rows = _rows(record.processes, sample, now)
        links = seen(record.processes, now, self._limits)
        self.seen = Seen(record, now, sample, rows, links, overview)

    def overview(self) -> Overview | None:
        """The last summary, with the error of a later reading."""
        if self.seen is None:
            return None
        return msgspec.structs.replace(self.seen.overview, error=self.error)


def probed(now: Readings) -> tuple[float | None, float | None]:
    """The median p50 and the worst p99 of the paths of all probers, in ms."""
    paths = [path for reading in now.values() for path in reading.status.get("paths", ()) if isinstance(path, dict)]
    middle = [path["p50_ms"] for path in paths if path.get("p50_ms") is not None]
    worst = [path["p99_ms"] for path in paths if path.get("p99_ms") is not None]
    return (round(median(middle), 3) if middle else None), (max(worst) if worst else None)


def online(processes: Sequence[Process], now: Readings) -> int:
    """The devices that are online at all doors. Shards of presence have the same figure, of the same devices."""
    doors = (each.node for each in processes if each.role in kinds() and system_of(each.role) != "presence")
    return int(sum(now[node].values.get(ONLINE, 0.0) for node in doors))


def health(processes: Sequence[Process], now: Readings) -> list[Health]:
    """Each system that has nodes."""
    found: list[Health] = []
    by_system: dict[str, list[Process]] = {}
    for process in processes:
        if process.role in kinds():
            by_system.setdefault(system_of(process.role), []).append(process)
    for name, system in systems.named().items():
        if name in by_system:
            nodes = by_system[name]
            away = [f"{each.name} {now[each.node].state}" for each in nodes if now[each.node].state != "ready"]
            ready = len(nodes) - len(away)
            said = Health(name=name, title=system.title, nodes=len(nodes), ready=ready, silent=away[:NAMED_MAX])
            found.append(said)
    return found


def _rows(processes: Sequence[Process], sample: Sample, now: Readings) -> list[NodeRow]:
    found: list[NodeRow] = []
    for process, row in zip(processes, sample.nodes, strict=True):
        reading = now[process.node]
        began = reading.values.get(BEGAN)
        found.append(
            NodeRow(
                name=row.name,
                role=row.role,
                system=system_of(row.role) if row.role in kinds() else "",
                partition=row.partition,
                state=row.state,
                version=str(reading.status.get("version", "")),
                age_s=None if began is None else max(0.0, round(sample.at - began, 1)),
                cpu=row.cpu,
                rss_bytes=row.rss_bytes,
                members=row.members,
                in_per_s=row.in_per_s,
                out_per_s=row.out_per_s,
                lag_ms=None if row.lag_s is None else round(1_000 * row.lag_s, 1),
                dropped_per_s=row.dropped_per_s,
                dropped_most=row.dropped_most,
                limit=row.limit,
            )
        )
    return found


SORTS: Final[Mapping[str, Callable[[NodeRow], Any]]] = {
    "name": lambda row: row.name,
    "role": lambda row: (row.role, row.name),
    "state": lambda row: (row.state == "ready", row.state, row.name),
    "cpu": lambda row: -(row.cpu or 0.0),
    "rss_bytes": lambda row: -(row.rss_bytes or 0),
    "lag_ms": lambda row: -(row.lag_ms or 0.0),
    "dropped_per_s": lambda row: -(row.dropped_per_s or 0.0),
    "in_per_s": lambda row: -(row.in_per_s or 0.0),
    "out_per_s": lambda row: -(row.out_per_s or 0.0),
    "members": lambda row: -(row.members or 0),
    "age_s": lambda row: -(row.age_s or 0.0),
}
"""The orders of the table of nodes; figures begin with the largest."""
