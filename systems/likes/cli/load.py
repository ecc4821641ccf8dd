"""`muster load likes`."""

from typing import Annotated

import typer

from muster_server.control.load.options import Assert, For, Hosts, Html, Listen, Owned, Ramp, Rate, schedule
from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl


def likes(
    items: Annotated[int, typer.Option(min=1, max=1_000_000, help="Items that get likes, in turn.")] = 1_000,
    rate: Rate = 1_000.0,
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
    """Like items, and take one like in ten back, by an open schedule; at the end count every item again.

    Latency counts from when a change fell due to its answer, at which it is on disk. The items stay, under the name of
    the run, load-….
    """
    from muster_server.control.load.drive import check_target
    from muster_server.control.load.words import run
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target, found
    from muster_server.systems.likes.cli.commands import reach
    from muster_server.systems.likes.load import LikesLoad

    where = Target(config, registry)
    for_s, ramp_s = schedule(for_, ramp)

    async def work() -> int:
        async with found(where) as nodes:
            reached = reach(await nodes.record(), where.config())
        check_target("likes", [host for host, _ in reached.doors], owned)
        load = LikesLoad(
            doors=reached.doors,
            user=reached.user,
            password=reached.password,
            ca_file=reached.ca_file,
            items=items,
            rate=rate,
            for_s=for_s,
            ramp_s=ramp_s,
        )
        return await run("likes", load, where, assert_, json, html, hosts, listen)

    return common.run(work())


def add(app: typer.Typer) -> None:
    """Add the word to `muster load`."""
    app.command(epilog="Example: muster load likes --rate 5000 --for 30s --assert missing=0")(likes)
