"""Links between nodes for commands: their senders' reports, and the limits of `[links]` that they break."""

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.table import Table

from muster_server.control.cluster.instance import Process
from muster_server.control.config import options
from muster_server.control.node.links import Link, links
from muster_server.control.terminal.readings import Readings

LATENCY, LOSS, AVAILABILITY, DOWN = "latency", "loss", "availability", "down"
"""The limits that a link can break."""
LEAST: Final = ("observed s", "failures", "for s", "availability")
"""Columns of the table that a narrow terminal drops, the first of them first."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of a link. `loss`: of datagrams from `sender`; `beyond`: the limits that it breaks."""

    sender: str
    receiver: str
    role: str
    """The receiver's cluster, for roles that have one."""
    up: bool
    lasts_s: float | None
    """Seconds up or down; None if there was never a link."""
    rtt_ms: float | None
    loss: float | None
    availability: float
    failures: int
    ejected: str | None
    """The reason why `sender` skips the receiver in its choices, if it does."""
    observed_s: float
    beyond: list[str]

    def badness(self) -> tuple[bool, int, float, float, float]:
        """Sort key: higher is worse."""
        return (not self.up, len(self.beyond), self.loss or 0.0, -self.availability, self.rtt_ms or 0.0)


def seen(processes: Sequence[Process], now: Readings, limits: options.Links) -> list[Line]:
    """Collect all nodes' links, worst first. Links to nodes that left the instance are skipped."""
    names = {process.node: process.name for process in processes}
    lines = [
        _line(process.name, names[link.node], link, limits)
        for process in processes
        if (reading := now[process.node]).status
        for link in links(reading.status)
        if link.node in names
    ]
    return sorted(lines, key=lambda line: line.badness(), reverse=True)


def table(lines: Sequence[Line]) -> Table:
    """Print for a terminal."""
    shown = Table(box=None, pad_edge=False)
    for column in ("from", "to", "state"):
        shown.add_column(column)
    for column in ("for s", "round trip ms", "loss", "availability", "observed s", "failures"):
        shown.add_column(column, justify="right")
    shown.add_column("beyond")
    for line in lines:
        shown.add_row(
            line.sender,
            line.receiver,
            f"up, left out: {line.ejected}" if line.ejected else "up" if line.up else "down",
            "" if line.lasts_s is None else f"{line.lasts_s:.0f}",
            "" if line.rtt_ms is None else f"{line.rtt_ms:.1f}",
            "" if line.loss is None else f"{line.loss:.2%}",
            f"{line.availability:.2%}",
            f"{line.observed_s:.0f}",
            str(line.failures),
            ", ".join(line.beyond),
            style="red" if line.beyond else None,
        )
    return shown


def _line(sender: str, receiver: str, link: Link, limits: options.Links) -> Line:
    rtt_ms = None if link.rtt_us is None else link.rtt_us / 1000
    broken = {
        DOWN: not link.up,
        LATENCY: (rtt_ms or 0.0) > limits.latency_ms,
        LOSS: (link.loss or 0.0) > limits.loss,
        AVAILABILITY: link.availability < limits.availability,
    }
    return Line(
        sender=sender,
        receiver=receiver,
        role=link.role,
        up=link.up,
        lasts_s=link.lasts_s,
        rtt_ms=rtt_ms,
        loss=link.loss,
        availability=link.availability,
        failures=link.failures,
        ejected=link.ejected,
        observed_s=link.observed_s,
        beyond=[what for what, is_beyond in broken.items() if is_beyond],
    )
