"""`muster load fleet`."""

from typing import TYPE_CHECKING, Annotated

import typer

from muster_server.control.load import word
from muster_server.control.load.word import Wanted

if TYPE_CHECKING:
    from muster_server.control.load.generator import Settings


async def fleet(
    wanted: Wanted,
    kind: Annotated[str, typer.Option(help="Kind of the task that clients carry out.")] = "ping",
    target: Annotated[str, typer.Option(help="Target of the task.")] = "load",
    where_: Annotated[str, typer.Option("--where", metavar="SELECTOR", help="Pick only clients that match.")] = "",
    pick: Annotated[int, typer.Option(min=1, max=100_000, help="Clients that each run asks.")] = 100,
) -> "Settings":
    """Ask clients by an open schedule of instant runs; each run must bring as many results as it asked for.

    The clients are those that are connected; muster fleet agents simulates some. Latency counts from when a run fell due
    to its end.
    """
    from muster_server.systems.fleet.cli.reach import nodes_and_key
    from muster_server.systems.fleet.load import FleetLoad

    nodes, key = await nodes_and_key(wanted.where)
    wanted.check("fleet", [each.bind[0] for each in nodes if each.bind])
    return FleetLoad(
        nodes=list(nodes),
        key=key,
        kind=kind,
        target=target,
        selector=where_,
        pick=pick,
        rate=wanted.rate,
        for_s=wanted.for_s,
        ramp_s=wanted.ramp_s,
    )


def add(app: typer.Typer) -> None:
    """Add the word to `muster load`."""
    example = "muster load fleet --pick 50 --rate 20 --for 30s --assert missed=0"
    word.add(app, "fleet", fleet, rate=10.0, example=example)
