"""The activity of every node per second, computed from two readings: a row for each node, and their sum.

`readings.py` takes the readings. Knows no terminal and no page.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from muster_server.control.cluster.instance import Process
from muster_server.control.terminal.limits import FILES, FILES_MAX, LAG, Limit, limiting
from muster_server.control.terminal.readings import BEGAN, CPU, RSS, Reading, Readings, processes_of
from muster_server.plane.kinds import kind, kinds

MEMBERS: Final = "muster_members"
"""The gauge of members. Members of rooms add up over nodes; but each index node knows all clients of a fleet."""
REPAIRED: Final = "muster_messages_repaired_total"
BYTES_IN: Final = "muster_udp_received_bytes_total"
BYTES_OUT: Final = "muster_udp_sent_bytes_total"
TRAFFIC: Final = frozenset(
    each for of in kinds().values() for each in (of.received, of.sent, of.published, of.delivered)
)
METRICS: Final = (TRAFFIC - {""}) | {REPAIRED, BYTES_IN, BYTES_OUT, LAG, CPU, RSS, BEGAN, FILES, FILES_MAX}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `cpu`: its share of a core; `lag_s`: the longest delay of its loop since any client's last reading."""

    name: str
    role: str
    node: int
    partition: int
    state: str
    cpu: float | None = None
    rss_bytes: int | None = None
    rooms: int | None = None
    memberships: int | None = None
    members: int | None = None
    in_per_s: float | None = None
    out_per_s: float | None = None
    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    repaired_per_s: float | None = None
    dropped_per_s: float | None = None
    dropped_most: str | None = None
    lag_s: float | None = None
    limit: Limit | None = None
    """What limits it now; None: no figures."""


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """All nodes: sums over those that answered; `published` by brokers, `delivered` by gateways."""

    nodes: int
    ready: int
    cpu: float
    rss_bytes: int
    members: int
    published_per_s: float
    delivered_per_s: float
    bytes_in_per_s: float
    bytes_out_per_s: float
    repaired_per_s: float
    dropped_per_s: float
    lag_s: float


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One second of an instance. `at`: seconds since 1970."""

    at: float
    instance: str
    total: Total
    nodes: list[Row]


def taken(name: str, processes: Sequence[Process], before: Readings, now: Readings) -> Sample:
    """Compute the sample between two readings."""
    rows = [_row(process, before.get(process.node), now[process.node]) for process in processes]
    alone = _one_each(processes, rows, now)
    rates = [(kind(process.role), before.get(process.node), now[process.node]) for process in processes]
    published = [reading.rate(earlier, of.published) for of, earlier, reading in rates]
    delivered = [reading.rate(earlier, of.delivered) for of, earlier, reading in rates]
    total = Total(
        nodes=len(rows),
        ready=sum(row.state == "ready" for row in rows),
        cpu=_sum(row.cpu for row in alone),
        rss_bytes=sum(row.rss_bytes or 0 for row in alone),
        members=sum(reading.count(MEMBERS) or 0 for reading in now.values()),
        published_per_s=_sum(published),
        delivered_per_s=_sum(delivered),
        bytes_in_per_s=_sum(row.bytes_in_per_s for row in rows),
        bytes_out_per_s=_sum(row.bytes_out_per_s for row in rows),
        repaired_per_s=_sum(row.repaired_per_s for row in rows),
        dropped_per_s=_sum(row.dropped_per_s for row in rows),
        lag_s=max((row.lag_s or 0.0 for row in rows), default=0.0),
    )
    return Sample(at=time.time(), instance=name, total=total, nodes=rows)


def _one_each(processes: Sequence[Process], rows: Sequence[Row], now: Readings) -> Sequence[Row]:
    """One row for each process of the system: every node of a shared process reports the figures of the whole process."""
    by_node = {process.node: row for process, row in zip(processes, rows, strict=True)}
    shared = ([by_node[process.node] for process in group] for group in processes_of(processes, now))
    return [next((row for row in group if row.cpu is not None), group[-1]) for group in shared]


def _sum(rates: Iterable[float | None]) -> float:
    return round(sum(rate or 0.0 for rate in rates), 3)


def _row(process: Process, before: Reading | None, now: Reading) -> Row:
    drops = now.drops(before)
    most = max(drops, key=lambda name: drops[name], default=None)
    return Row(
        name=process.name,
        role=process.role,
        node=process.node,
        partition=process.partition,
        state=now.state,
        cpu=now.rate(before, CPU),
        rss_bytes=now.count(RSS),
        rooms=now.count("muster_rooms"),
        memberships=now.count("muster_interest"),
        members=now.count(kind(process.role).members),
        in_per_s=now.rate(before, kind(process.role).received),
        out_per_s=now.rate(before, kind(process.role).sent),
        bytes_in_per_s=now.rate(before, BYTES_IN),
        bytes_out_per_s=now.rate(before, BYTES_OUT),
        repaired_per_s=now.rate(before, REPAIRED),
        dropped_per_s=_sum(drops.values()) if drops else None,
        dropped_most=most if most is not None and drops[most] else None,
        lag_s=now.values.get(LAG),
        limit=limiting(before, now),
    )
