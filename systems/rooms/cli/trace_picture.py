"""`muster trace ROOM --svg`: the nodes on a room's way from left to right, each hop with its time."""

from collections.abc import Sequence
from typing import Final

from muster_server.control.terminal.svg import Drawing, Kind
from muster_server.systems.rooms.cli.trace import NodeAnswer, Trace, Way

WIDTH: Final = 920
CARD: Final = 170
HIGH: Final = 34
STEP: Final = 56
LEFTS: Final = (10.0, 250.0, 490.0, 740.0)
"""The columns: client, proxies, broker, gateways."""
NODES_MAX: Final = 40
"""Nodes of a column that are drawn."""


def picture(trace: Trace, ways: Sequence[Way]) -> str:
    """The file."""
    drawing = Drawing(WIDTH, f"The way of the room {trace.room}")
    members = "" if trace.members is None else f", {trace.members:,} member{'s' * (trace.members != 1)}"
    drawing.text(LEFTS[0], 24, f"{trace.room}{members}", width=WIDTH - 20)
    top = 44.0
    for way in ways:
        top = _way(drawing, trace, way, top, named=len(ways) > 1)
    return str(drawing)


def _way(drawing: Drawing, trace: Trace, way: Way, top: float, *, named: bool) -> float:
    """Draw the way through one cluster, and return the place below it."""
    if named:
        drawing.text(LEFTS[0], top + 12, way.cluster, "faint")
        top += 24
    asked, gateways = way.asked[:NODES_MAX], trace.gateways[:NODES_MAX]
    rows = max(1, len(asked), len(gateways))
    middle = top + (rows - 1) * STEP / 2
    owner = way.owner or "no owner yet"
    _node(drawing, LEFTS[0], middle, "client")
    _node(drawing, LEFTS[2], middle, owner if way.partition is None else f"{owner} · {way.partition}")
    delivered = {each.node: each.ms for each in way.delivered}
    for number, proxy in enumerate(asked):
        y = top + number * STEP
        _node(drawing, LEFTS[1], y, proxy.node)
        _hop(drawing, (0, middle), (1, y), proxy.ms)
        _hop(drawing, (1, y), (2, middle), _ms(proxy, None))
    for number, gateway in enumerate(gateways):
        y = top + number * STEP
        _node(drawing, LEFTS[3], y, gateway)
        times = [ms for proxy in asked if (ms := _ms(proxy, gateway)) is not None]
        ms = delivered.get(gateway)
        _hop(drawing, (2, middle), (3, y), min(times) if times else ms)
    for more, column in ((len(way.asked) - len(asked), 1), (len(trace.gateways) - len(gateways), 3)):
        if more > 0:
            drawing.text(LEFTS[column], top + rows * STEP, f"and {more:,} more", "faint")
    return top + rows * STEP + 24


def _ms(proxy: NodeAnswer, gateway: str | None) -> float | None:
    """The time of the first hop behind a proxy, or of the hop to a gateway."""
    if gateway is None:
        return proxy.hops[0].ms if proxy.hops else None
    return next((hop.ms for hop in proxy.hops[1:] if hop.node == gateway), None)


def _node(drawing: Drawing, left: float, top: float, name: str) -> None:
    drawing.box(left, top, CARD, HIGH, "card", "line")
    drawing.text(left + CARD / 2, top + 22, name, anchor="middle", width=CARD - 16)


def _hop(drawing: Drawing, start: tuple[int, float], end: tuple[int, float], ms: float | None) -> None:
    """A line from a column to the next one, with its time at its end; red: no answer."""
    kind: Kind = "bad" if ms is None else "accent"
    left, right = LEFTS[start[0]] + CARD, LEFTS[end[0]]
    drawing.arrow((left + 2, start[1] + HIGH / 2), (right - 2, end[1] + HIGH / 2), kind)
    words, faint = ("no answer", kind) if ms is None else (f"{ms:.1f} ms", "faint")
    drawing.text((left + right) / 2, (start[1] + end[1]) / 2 + HIGH / 2 - 5, words, faint, anchor="middle")
