"""`muster load inbox`."""

from typing import Annotated

import typer

from muster_server.control.load.options import Assert, For, Hosts, Html, Listen, Owned, Ramp, Rate, schedule
from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl

FIRST_USER = 2_000_000_000
"""The users of a load are numbers from here on, unless --first says otherwise."""


def inbox(
    users: Annotated[int, typer.Option(min=1, max=1_000_000, help="Users that get entries, in turn.")] = 1_000,
    first: Annotated[int, typer.Option(min=0, help="The first of these users; the others follow it.")] = FIRST_USER,
    rate: Rate = 1_000.0,
    size: Annotated[int, typer.Option(min=0, max=4_000, help="Bytes of an entry's text.")] = 100,
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
    """Put entries into inboxes by an open schedule, one in ten twice; at the end read every inbox again.

    Latency counts from when an entry fell due to its answer, at which it is on disk. The entries stay, under the kind of
    the run, load-….
    """
    from muster_server.control.errors import USAGE, UserError
    from muster_server.control.load.drive import check_target
    from muster_server.control.load.words import run
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.inbox.cli.commands import nodes_and_key
    from muster_server.systems.inbox.load import InboxLoad

    where = Target(config, registry)
    for_s, ramp_s = schedule(for_, ramp)

    async def work() -> int:
        most = where.config().section("inbox").entries_max
        if rate * for_s > users * most:
            raise UserError(
                f"more than {most:,} entries for each user (see inbox.entries_max): raise --users, or lower --rate",
                USAGE,
            )
        nodes, key = await nodes_and_key(where)
        check_target("inbox", [host for host, _ in nodes], owned)
        load = InboxLoad(
            nodes=nodes,
            key=key,
            first=first,
            users=users,
            rate=rate,
            size=size,
            for_s=for_s,
            ramp_s=ramp_s,
        )
        return await run("inbox", load, where, assert_, json, html, hosts, listen)

    return common.run(work())


def add(app: typer.Typer) -> None:
    """Add the word to `muster load`."""
    app.command(epilog="Example: muster load inbox --rate 2000 --for 30s --assert lost=0 --assert 'p99<100ms'")(inbox)
