"""`muster cluster show --svg`: the layers below each other, a card for each node with its state and its load."""

from collections.abc import Sequence
from typing import Final

from muster_server.control.cli.cluster import Layer, Load, growing, is_partitioned
from muster_server.control.terminal.svg import Drawing

WIDTH: Final = 920
LEFT: Final = 150
"""Width of the column with the layers' names."""
CARD: Final = 180
HIGH: Final = 52
GAP: Final = 10
ABREAST: Final = (WIDTH - LEFT) // (CARD + GAP)
NODES_MAX: Final = 120
"""Nodes of a layer that are drawn: those that are not ready first, then the busiest."""


def picture(layers: Sequence[Layer]) -> str:
    """The file."""
    drawing = Drawing(WIDTH, "The nodes of the cluster by layer")
    top = float(GAP)
    for each in layers:
        top = _layer(drawing, each, top) + GAP
    for line in (line for each in layers for line in each.due):
        drawing.text(GAP, top + 14, f"due: {line}", "bad", width=WIDTH - 2 * GAP)
        top += 20
    return str(drawing)


def _layer(drawing: Drawing, layer: Layer, top: float) -> float:
    """Draw a layer, and return the place below it."""
    drawing.text(GAP, top + 20, layer.layer, width=LEFT - GAP)
    if is_partitioned(layer.layer):
        drawing.text(GAP, top + 38, f"{layer.partitions} partition{'s' * (layer.partitions > 1)}", "faint")
    nodes = sorted(layer.nodes, key=lambda node: (node.state == "ready", -(node.cpu or 0.0)))[:NODES_MAX]
    nodes.sort(key=lambda node: (node.partition, node.node))
    for number, node in enumerate(nodes):
        row, column = divmod(number, ABREAST)
        _card(drawing, layer, node, LEFT + column * (CARD + GAP), top + row * (HIGH + GAP))
    bottom = top + max(1, -(-len(nodes) // ABREAST)) * (HIGH + GAP)
    notes = [f"partition {missing} has no running node" for missing in layer.uncovered]
    if len(layer.nodes) > len(nodes):
        notes.append(f"and {len(layer.nodes) - len(nodes):,} more nodes")
    if layer.growth:
        notes.append(growing(layer.layer, layer.partitions, layer.growth, layer.step_s or 0.0))
    for note in notes:
        drawing.text(LEFT, bottom + 8, note, "bad", width=WIDTH - LEFT - GAP)
        bottom += 20
    return bottom


def _card(drawing: Drawing, layer: Layer, node: Load, left: float, top: float) -> None:
    ready = node.state == "ready"
    drawing.box(left, top, CARD, HIGH, "card", "line" if ready else "bad")
    place = f" · {node.partition}" if is_partitioned(layer.layer) else ""
    drawing.text(left + 10, top + 19, node.name + place, width=CARD - 20)
    if not ready:
        drawing.text(left + 10, top + 38, node.state, "bad", width=CARD - 20)
        return
    figures = [
        f"{node.per_s:,.0f}/s" if node.per_s is not None else "",
        f"{node.cpu:.0%} CPU" if node.cpu is not None else "",
    ]
    drawing.text(left + 10, top + 38, ", ".join(filter(None, figures)) or node.state, "faint", width=CARD - 20)
    drawing.box(left + 10, top + 44, CARD - 20, 3, "line")
    drawing.box(left + 10, top + 44, max(1.0, (CARD - 20) * min(1.0, node.cpu or 0.0)), 3, "accent")
