"""The layers of a reading for pages: partitions, replicas, the growth in progress, and the growth that is due."""

from typing import Final

import msgspec

from muster_server.control.registry.places import MAIN, Growth
from muster_server.plane.kinds import partitioned
from muster_server.systems.console.sampler import Seen

DUE_MAX: Final = 5
"""Limit of lines about due growth of a layer."""


class LayerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A layer. `grows`: whether the console can double it; `step_s`: seconds that the growth has spent in its step."""

    layer: str
    partitions: int
    nodes: int
    grows: bool
    growth: Growth | None
    step_s: float | None
    due: list[str]


def layers_of(seen: Seen) -> list[LayerRow]:
    """The layers that have partitions. They grow from here if the supervisor of `muster up` starts their nodes."""
    # The terminal's parts are loaded with the first page of it, and by no console without one.
    from muster_server.control.cli.cluster import arranged

    up = seen.record.pid != 0 and bool(seen.record.registry)
    return [
        LayerRow(
            layer=_named(each.layer),
            partitions=each.partitions,
            nodes=len(each.nodes),
            grows=up and _named(each.layer) in partitioned() and not each.growth,
            growth=each.growth or None,
            step_s=each.step_s or 0.0 if each.growth else None,
            due=[line[:400] for line in each.due[:DUE_MAX]],
        )
        for each in arranged(seen.record.processes, {}, seen.readings)
        if each.layer.partition("/")[0] in partitioned()
    ]


def _named(layer: str) -> str:
    """The layer's name without that of the first cluster, as commands take it."""
    return layer.removesuffix(f"/{MAIN}")
