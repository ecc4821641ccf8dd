"""`muster size`: the nodes that a demand needs, what limits them, and their configuration."""

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster_server.control.errors import USAGE, UserError
from muster_server.control.size.costs import SHIPPED, Costs, read, write
from muster_server.control.size.plan import FULL, Machine, Part, Planned
from muster_server.control.terminal import common, tables
from muster_server.control.terminal.words import say
from muster_server.plane import systems

UP_MAX: Final = 64
"""Limit of the nodes of one role in `muster up`."""
LEAST: Final = ("network a node", "layout", "memory a node")


class Sized(msgspec.Struct, frozen=True, kw_only=True):
    """The whole plan, as JSON."""

    machine: str
    """The machine whose costs were used."""
    filled_to: float
    parts: list[Part]
    nodes: int
    cores: int
    """One for each process of a node."""
    memory_bytes: float
    next: str
    """The role that needs another node first when the demand grows."""
    notes: list[str]
    config: Mapping[str, Mapping[str, object]]


def size(demand: Mapping[str, float], machine: Machine, costs: Path | None, as_json: bool, as_toml: bool) -> int:
    """Print the plan for a demand. Raises `UserError`."""
    used = Costs() if costs is None else read(costs)
    planned = [
        module.plan(_demand(module, demand), used.of(name, module.Costs), machine) for name, module in modules().items()
    ]
    made = _whole(planned, used)
    if not made.parts:
        raise UserError("no demand; try muster size --members 1e6 --rate 1e4", USAGE)
    if as_json:
        common.print_json(msgspec.to_builtins(made))
    elif as_toml:
        sys.stdout.write(toml(made))
    else:
        _print(made)
    return 0


def measure(file: Path, config: Path | None) -> int:
    """Measure the costs of this machine into a file. Raises `UserError`."""
    from muster_server.control.size.measure import costs

    found = costs({name: module for name, module in modules().items() if hasattr(module, "RUNS")}, config, say)
    write(file, found)
    print(f"wrote {file}: the costs of {found.machine}")
    return 0


def modules() -> dict[str, Any]:
    """The `size.py` of each system that has one, by the system's name."""
    return {name: import_module(system.size) for name, system in systems.named().items() if system.size}


def toml(made: Sized) -> str:
    """The configuration for this plan: `[up]`, or what nodes of `muster serve` share if it is beyond one machine."""
    whole = {section: dict(keys) for section, keys in made.config.items()}
    up = whole.get("up", {})
    above = [name for name, value in up.items() if isinstance(value, int) and value > UP_MAX]
    lines = [f"# {part.role}: {part.nodes}{f' ({part.layout})' if part.layout else ''}" for part in made.parts]
    if above:
        whole["serve"] = {
            key: int(str(up[plural]).partition("x")[0])
            for key, plural in (("broker_partitions", "brokers"), ("router_partitions", "routers"))
            if plural in up
        }
        del whole["up"]
        lines.append("# too many nodes for muster up: start them with muster serve")
    for section, keys in whole.items():
        lines += [
            "",
            f"[{section}]",
            *(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in keys.items()),
        ]
    return "\n".join(lines) + "\n"


def _demand(module: Any, given: Mapping[str, float]) -> Any:
    try:
        return msgspec.convert(given, module.Demand, strict=False)
    except msgspec.ValidationError as error:
        raise UserError(f"demand: {error}", USAGE) from None


def _whole(planned: list[Planned], costs: Costs) -> Sized:
    parts = [part for each in planned for part in each.parts]
    config: dict[str, dict[str, object]] = {}
    for each in planned:
        for section, keys in each.config.items():
            config.setdefault(section, {}).update(keys)
    limited = [part for part in parts if part.more]
    return Sized(
        machine=costs.machine,
        filled_to=FULL,
        parts=parts,
        nodes=sum(part.nodes for part in parts),
        cores=sum(part.nodes for part in parts),
        memory_bytes=sum(part.nodes * part.memory_bytes for part in parts),
        next=max(limited, key=lambda part: part.limits[part.first]).role if limited else "",
        notes=[note for each in planned for note in each.notes],
        config=config,
    )


def _print(made: Sized) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("role", "nodes", "layout", "busy cores", "memory a node", "network a node", "limit", "one more adds"):
        table.add_column(title, justify="left" if title in {"role", "layout", "limit", "one more adds"} else "right")
    for part in made.parts:
        limit = part.limits[part.first]
        table.add_row(
            part.role,
            f"{part.nodes:,}",
            part.layout,
            f"{part.cores:,.2f}",
            f"{part.memory_bytes / 2**20:,.0f} MiB",
            f"{part.network_bps / 1e6:,.0f} Mbit/s" if part.network_bps else "-",
            f"{part.first} {limit:.0%}",
            f"{part.more:,.0f} {part.carries}" if part.more else "-",
        )
    console = Console(width=common.WIDTH)
    tables.show(console, table, LEAST)
    tables.say(
        console,
        Text(
            f"{made.nodes:,} nodes, a core each, {made.memory_bytes / 2**30:,.1f} GiB; filled to {FULL:.0%}. "
            f"Next to grow: {made.next}. Costs: {made.machine}"
            + ("; measure yours: muster size --measure FILE" if made.machine == SHIPPED else "")
        ),
    )
    for note in made.notes:
        tables.say(console, Text(note))
