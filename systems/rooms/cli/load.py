"""`muster load rooms`."""

from typing import Annotated

import typer

from muster_server.control.load.options import (
    Assert,
    For,
    Hosts,
    Html,
    Listen,
    Owned,
    Ramp,
    Rate,
    schedule,
)
from muster_server.control.terminal.options import (
    ConfigFile,
    Gateways,
    Json,
    RegistryUrl,
    Token,
    TokenFile,
    Url,
    chance,
)


def rooms(
    members: Annotated[int, typer.Option(min=1, max=1_000_000, help="Members, each in one room.")] = 1_000,
    rooms: Annotated[int, typer.Option(min=1, max=100_000, help="Rooms.")] = 10,
    publishers: Annotated[
        int, typer.Option(min=1, max=10_000, help="Clients that publish, in turn over the rooms.")
    ] = 1,
    rate: Rate = 1_000.0,
    size: Annotated[int, typer.Option(min=24, max=65_536, help="Bytes of a message.")] = 200,
    for_: For = "60s",
    ramp: Ramp = "0s",
    loss: Annotated[
        str | None, typer.Option(metavar="CHANCE", help="Drop datagrams of the clients' own links: 0.01 or 1%.")
    ] = None,
    assert_: Assert = None,
    html: Html = None,
    hosts: Hosts = 1,
    listen: Listen = "",
    owned: Owned = False,
    json: Json = False,
    url: Url = None,
    gateway: Gateways = None,
    token: Token = None,
    token_file: TokenFile = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Publish to rooms by an open schedule, and check every delivery for loss, order, doubles and content.

    The local instance is loaded, or the servers that --url, --gateway or --registry name. Latency counts from when a
    message fell due to when a member has it.
    """
    from muster_server.control.load.words import run
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import End, Target
    from muster_server.systems.rooms.load import RoomsLoad, faults, servers

    where = Target(config, registry, End(url, gateway or (), token, token_file))
    for_s, ramp_s = schedule(for_, ramp)

    async def work() -> int:
        gateways, proxies, credential = await servers(where, owned)
        load = RoomsLoad(
            gateways=gateways,
            proxies=proxies,
            credential=credential,
            members=members,
            rooms=rooms,
            publishers=publishers,
            rate=rate,
            size=size,
            for_s=for_s,
            ramp_s=ramp_s,
            faults=faults(chance("--loss", loss)),
        )
        load.check()
        return await run("rooms", load, where, assert_, json, html, hosts, listen)

    return common.run(work())


def add(app: typer.Typer) -> None:
    """Add the word to `muster load`."""
    app.command(epilog="Example: muster load rooms --members 5000 --rooms 50 --rate 5000 --for 30s --assert lost=0")(
        rooms
    )
