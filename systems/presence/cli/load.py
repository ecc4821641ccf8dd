"""`muster load presence`."""

from typing import Annotated

import typer

from muster_server.control.load.options import Assert, For, Hosts, Html, Listen, Owned, Ramp, Rate, schedule
from muster_server.control.terminal.options import ConfigFile, Json

FIRST_USER = 1_000_000_000
"""The users of a load are numbers from here on, unless --first says otherwise."""


def presence(
    users: Annotated[int, typer.Option(min=1, max=20_000, help="Users that are online, each with one device.")] = 200,
    first: Annotated[int, typer.Option(min=2, help="The first of these users; the others follow it.")] = FIRST_USER,
    rate: Rate = 200.0,
    size: Annotated[int, typer.Option(min=16, max=960, help="Bytes of a message.")] = 100,
    for_: For = "60s",
    ramp: Ramp = "0s",
    assert_: Assert = None,
    html: Html = None,
    hosts: Hosts = 1,
    listen: Listen = "",
    owned: Owned = False,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Bring users online, and send them messages by an open schedule: each delivered, once.

    Latency counts from when a message fell due to the report that the user's device has it.
    """
    from muster_server.control.errors import UNAVAILABLE, UserError
    from muster_server.control.load.drive import check_target
    from muster_server.control.load.words import run
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target, client_of, found
    from muster_server.systems.presence.asking import ROLE
    from muster_server.systems.presence.cli.reach import NONE_RUNS
    from muster_server.systems.presence.load import PresenceLoad, tokens

    where = Target(config)
    for_s, ramp_s = schedule(for_, ramp)

    async def work() -> int:
        async with found(where) as nodes:
            record = await nodes.record()
        if not record.of(ROLE):
            raise UserError(NONE_RUNS, UNAVAILABLE)
        gateways, proxies = (
            [(end.host, end.port, end.public_key) for end in ends] for ends in (record.gateways, record.proxies)
        )
        check_target("presence", [host for host, _, _ in (*gateways, *proxies)], owned)
        all_users = range(first, first + users)
        load = PresenceLoad(
            gateways=gateways,
            proxies=proxies,
            credential=client_of(record).token,
            tokens=tokens(where.config(), all_users, for_s),
            users=all_users,
            rate=rate,
            size=size,
            for_s=for_s,
            ramp_s=ramp_s,
        )
        return await run("presence", load, where, assert_, json, html, hosts, listen)

    return common.run(work())


def add(app: typer.Typer) -> None:
    """Add the word to `muster load`."""
    app.command(epilog="Example: muster load presence --users 500 --rate 500 --for 30s --assert missing=0")(presence)
