"""`muster cluster show`: every node by layer and partition, its load, and the growth that is due (ROOM-22).

Asks the nodes twice to compute rates. A node that does not answer is shown as such, named on stderr, and makes the exit
code 75.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec
from rich.table import Table

from muster_server.control.cli import grow
from muster_server.control.cluster.instance import Process
from muster_server.control.config.layout import PARTITIONS_MAX
from muster_server.control.registry.places import MAIN, Count, Growth, layer
from muster_server.control.registry.steps import STANDS_S
from muster_server.control.terminal import common, tables
from muster_server.control.terminal.found import Target, everybody
from muster_server.control.terminal.readings import (
    CPU,
    Reading,
    Readings,
    follow,
    name_silent,
    registry,
    releases,
    uncovered,
)
from muster_server.plane.kinds import clustered, kind, kinds, partitioned

LEAST: Final = ("epoch", "weight", "memberships", "registered", "layer", "rooms")
"""Columns of the table that a narrow terminal drops, the first of them first."""
DUE: Final = 0.7
"""Growth is due from this share of a limit, or of a core: a doubling, or another node, takes its time."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `per_s`: the rate of its main work (`RoleKind.carried`); `cpu`: its share of a core."""

    name: str
    node: int
    partition: int
    state: str
    epoch: int
    restarts: int
    version: str = ""
    """Release of the node; empty if it does not answer."""
    protocol: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
    """The lowest and the highest version of the protocol that the node speaks."""
    rooms: int | None = None
    memberships: int | None = None
    memberships_max: int | None = None
    members: int | None = None
    per_s: float | None = None
    cpu: float | None = None
    weight: int | msgspec.UnsetType = msgspec.UNSET
    """With a registry: the share of new clients of a gateway or proxy."""
    registered: str | msgspec.UnsetType = msgspec.UNSET
    """With a registry: the node's state in the map: init, running, draining or absent."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a role; for brokers and proxies, those of one cluster. `due`: due growth, one line each."""

    layer: str
    partitions: int
    """The number of partitions over which rooms are spread."""
    uncovered: list[int]
    """The partitions without a running replica."""
    nodes: list[Load]
    due: list[str]
    growth: Growth | msgspec.UnsetType = msgspec.UNSET
    """The growth in progress, if there is one."""
    step_s: float | msgspec.UnsetType = msgspec.UNSET
    """Seconds that the growth has spent in its step, by the node that has known it longest."""


Draw = Callable[[Sequence[Layer]], str]
"""Makes a picture of the layers."""


async def show(where: Target, as_json: bool, watch: bool, draw: Draw | None = None) -> int:
    """Print the cluster once, or every second until a signal; or draw it."""
    async with everybody(where, kept=True) as nodes:
        async for record, before, now in follow(nodes):
            missing = uncovered(record, (reading.status for reading in now.values()))
            with contextlib.nullcontext() if watch else common.verdict_after():
                layers = arranged(record.processes, before, now, missing)
                if draw is not None:
                    sys.stdout.write(draw(layers))
                else:
                    _print(layers, as_json, watch)
            code = name_silent(now)
            if not watch:
                return code
    return 0


def arranged(
    processes: Sequence[Process], before: Readings, now: Readings, missing: Mapping[str, list[int]] = {}
) -> list[Layer]:
    """Return the layers, each with its nodes by partition. `missing`: per layer, the partitions without a running
    replica."""
    layers: list[Layer] = []
    known = registry(reading.status for reading in now.values())
    counts = {} if known is None else msgspec.convert(known.get("partitions", {}), dict[str, Count])
    named = filter(None, (of.partition("/")[2] for of in missing))
    clusters = [MAIN, *sorted({*(each.cluster for each in processes), *named} - {MAIN})]
    roles = [of.name for of in sorted(kinds().values(), key=lambda of: of.row)]
    for role, cluster in ((of, each) for of in roles for each in (clusters if of in clustered() else [MAIN])):
        mine = [each for each in processes if (each.role, each.cluster) == (role, cluster)]
        name = layer(role, cluster) if role in partitioned() else role if cluster == MAIN else f"{role}/{cluster}"
        lacks = missing.get(name, [])
        if not mine and not lacks and (cluster != MAIN or not kind(role).always):
            continue
        mine.sort(key=lambda each: (each.partition, each.node))
        nodes = [_load(process, before.get(process.node), now[process.node], known) for process in mine]
        count = counts.get(name) or Count(1 + max((*(node.partition for node in nodes), *lacks), default=0))
        lines = due(name, count.partitions, nodes, lacks)
        made = Layer(layer=name, partitions=count.partitions, uncovered=lacks, nodes=nodes, due=lines)
        if count.growth:
            made = msgspec.structs.replace(made, growth=count.growth, step_s=_at_step(now, name))
        layers.append(made)
    return layers


def _at_step(now: Readings, name: str) -> float:
    registries = (reading.status.get("registry", {}) for reading in now.values())
    return max(float(registry.get("growth_step_s", {}).get(name, 0.0)) for registry in registries)


def _load(process: Process, before: Reading | None, now: Reading, known: Mapping[str, Any] | None) -> Load:
    states = None if known is None else known["nodes"]
    weights = None if known is None else known.get("weights")
    return Load(
        name=process.name,
        node=process.node,
        partition=process.partition,
        state=now.state,
        epoch=process.epoch,
        restarts=process.restarts,
        version=now.status.get("version", ""),
        protocol=tuple(now.status.get("protocol", (1, 1))) if now.status else msgspec.UNSET,
        rooms=now.count("muster_rooms"),
        memberships=now.count("muster_interest"),
        memberships_max=now.count("muster_interest_max"),
        members=now.count("muster_members"),
        per_s=now.rate(before, kind(process.role).carried),
        cpu=now.rate(before, CPU),
        weight=msgspec.UNSET if weights is None else weights.get(str(process.node), msgspec.UNSET),
        registered=process.registered or (msgspec.UNSET if states is None else states.get(str(process.node), "absent")),
    )


def is_partitioned(name: str) -> bool:
    return name.partition("/")[0] in partitioned()


def due(name: str, partitions: int, nodes: Sequence[Load], missing: Sequence[int] = ()) -> list[str]:
    """List the due growth: partitions for memberships, replicas for messages; more gateways or proxies for clients."""
    lines = [f"{name}: partition {partition} has no running replica: add one" for partition in missing]
    if not nodes:
        return lines or [f"{name}: no node runs: add one"]
    fullest = max(nodes, key=_fullness)
    if _fullness(fullest) >= DUE:
        what = f"{fullest.name} has {fullest.memberships:,} of {fullest.memberships_max:,} memberships"
        grow = (
            f"double to {2 * partitions} partitions"
            if partitions < PARTITIONS_MAX
            else "no more partitions are possible"
        )
        lines.append(f"{name}: {what}: {grow}")
    partitioned = is_partitioned(name)
    for partition, group in groupby(nodes, lambda node: node.partition):
        busiest = max(group, key=lambda node: node.cpu or 0.0)
        if busiest.cpu is not None and busiest.cpu >= DUE:
            grow = f"another replica of partition {partition}" if partitioned else f"another {name}"
            lines.append(f"{name}: {busiest.name} takes {busiest.cpu:.0%} of a core: {grow}")
    return lines


def _fullness(node: Load) -> float:
    """The share of a node's memberships limit that is in use."""
    return (node.memberships or 0) / (node.memberships_max or float("inf"))


def _print(layers: Sequence[Layer], as_json: bool, watch: bool) -> None:
    if as_json:
        document = {"layers": layers}
        common.print_json(document, line=watch)
        return
    console = common.out()
    if watch:
        console.clear()
    table = Table(box=None, pad_edge=False)
    enrolled = any(node.registered for each in layers for node in each.nodes)
    weighed = any(node.weight not in {msgspec.UNSET, 1} for each in layers for node in each.nodes)
    said = [*(["registered"] if enrolled else []), *(["weight"] if weighed else [])]
    for column in ("layer", "partition", "node", "state", *said, "epoch"):
        table.add_column(column)
    for column in ("rooms", "memberships", "members", "per second", "CPU"):
        table.add_column(column, justify="right")
    for each in layers:
        for node in each.nodes:
            wide = each.growth.to if each.growth else each.partitions
            partition = f"{node.partition}/{wide}" if is_partitioned(each.layer) else ""
            counts = ("" if count is None else f"{count:,}" for count in (node.rooms, node.memberships, node.members))
            per_s = "" if node.per_s is None else f"{node.per_s:,.0f}"
            cpu = "" if node.cpu is None else f"{node.cpu:.0%}"
            states = (node.state, str(node.registered)) if enrolled else (node.state,)
            weights = ("" if node.weight is msgspec.UNSET else str(node.weight),) if weighed else ()
            table.add_row(
                *(each.layer, partition, node.name, *states, *weights, str(node.epoch), *counts, per_s, cpu),
                style=None if node.state == "ready" else "red",
            )
        for missing in each.uncovered:
            if all(node.partition != missing for node in each.nodes):
                table.add_row(each.layer, f"{missing}/{each.partitions}", "none", style="red")
    tables.show(console, table, LEAST)
    shown = (node for each in layers for node in each.nodes if node.version)
    for line in releases({node.name: {"version": node.version, "protocol": node.protocol} for node in shown}):
        console.print(f"release {line}", soft_wrap=True)
    for each in layers:
        if each.growth:
            console.print(growing(each.layer, each.partitions, each.growth, each.step_s or 0.0))
    for line in (line for each in layers for line in each.due):
        console.print(f"due: {line}")
    if not any(each.due for each in layers):
        console.print("no growth is due")


def growing(name: str, partitions: int, growth: Growth, step_s: float) -> str:
    """A growth in progress, and the command that continues or undoes it."""
    goal = f" on the way to {growth.goal}" if growth.goal > growth.to else ""
    of = f"{partitions} to {growth.to}" if partitions < growth.to else f"{growth.to}"
    begun = max(0, round(time.time() - growth.started))
    command = grow.command(name)
    undo = f", or {command} --abort" if growth.step == "prepare" else ""
    stands = step_s >= STANDS_S
    way = (
        f"no command continues it: {command} --resume{undo}"
        if stands
        else f"if it makes no progress: {command} --resume"
    )
    word, at = ("stands", f" for {step_s:,.0f} s") if stands else ("grows", f" for {step_s:.0f} s")
    return f"{word}: {name}, {of} partitions{goal}: {growth.step}{at}, begun {begun:,} s ago; {way}"
