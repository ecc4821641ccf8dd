"""`muster load fleet`."""

from typing import Annotated

import typer

from muster_server.control.load.options import Assert, For, Hosts, Html, Listen, Owned, Ramp, Rate, schedule
from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl


def fleet(
    kind: Annotated[str, typer.Option(help="Kind of the task that clients carry out.")] = "ping",
    target: Annotated[str, typer.Option(help="Target of the task.")] = "load",
    where_: Annotated[str, typer.Option("--where", metavar="SELECTOR", help="Pick only clients that match.")] = "",
    pick: Annotated[int, typer.Option(min=1, max=100_000, help="Clients that each run asks.")] = 100,
    rate: Rate = 10.0,
    for_: For = "60s",
    ramp: Ramp = "0s",
    assert_: Assert = None,
    html: Html = None,
    hosts: Hosts = 1,
    listen: Listen = "",
    owned: Owned = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Ask clients by an open schedule of instant runs; each run must bring as many results as it asked for.

    The clients are those that are connected; muster fleet agents simulates some. Latency counts from when a run fell due
    to its end.
    """
    from muster_server.control.load.drive import check_target
    from muster_server.control.load.words import run
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.fleet.cli.reach import nodes_and_key
    from muster_server.systems.fleet.load import FleetLoad

    where = Target(config, registry)
    for_s, ramp_s = schedule(for_, ramp)

    async def work() -> int:
        nodes, key = await nodes_and_key(where)
        check_target("fleet", [each.bind[0] for each in nodes if each.bind], owned)
        load = FleetLoad(
            nodes=list(nodes),
            key=key,
            kind=kind,
            target=target,
            selector=where_,
            pick=pick,
            rate=rate,
            for_s=for_s,
            ramp_s=ramp_s,
        )
        return await run("fleet", load, where, assert_, json, html, hosts, listen)

    return common.run(work())


def add(app: typer.Typer) -> None:
    """Add the word to `muster load`."""
    app.command(epilog="Example: muster load fleet --pick 50 --rate 20 --for 30s --assert missed=0")(fleet)
