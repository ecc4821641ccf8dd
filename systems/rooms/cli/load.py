"""`muster load rooms`."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from muster_server.control.load import word
from muster_server.control.load.word import Wanted
from muster_server.control.terminal.options import Gateways, Token, TokenFile, Url, chance

if TYPE_CHECKING:
    from muster_server.control.load.generator import Settings


async def rooms(
    wanted: Wanted,
    members: Annotated[int, typer.Option(min=1, max=1_000_000, help="Members, each in one room.")] = 1_000,
    rooms: Annotated[int, typer.Option(min=1, max=100_000, help="Rooms.")] = 10,
    publishers: Annotated[
        int, typer.Option(min=1, max=10_000, help="Clients that publish, in turn over the rooms.")
    ] = 1,
    size: Annotated[int, typer.Option(min=24, max=65_536, help="Bytes of a message.")] = 200,
    loss: Annotated[
        str | None, typer.Option(metavar="CHANCE", help="Drop datagrams of the clients' own links: 0.01 or 1%.")
    ] = None,
    url: Url = None,
    gateway: Gateways = None,
    token: Token = None,
    token_file: TokenFile = None,
) -> "Settings":
    """Publish to rooms by an open schedule, and check every delivery for loss, order, doubles and content.

    The local instance is loaded, or the servers that --url, --gateway or --registry name. Latency counts from when a
    message fell due to when a member has it.
    """
    from muster_server.control.terminal.found import End
    from muster_server.systems.rooms.load import RoomsLoad, faults, servers

    wanted.where = replace(wanted.where, end=End(url, gateway or (), token, token_file))
    gateways, proxies, credential = await servers(wanted.where, wanted.owned)
    load = RoomsLoad(
        gateways=gateways,
        proxies=proxies,
        credential=credential,
        members=members,
        rooms=rooms,
        publishers=publishers,
        rate=wanted.rate,
        size=size,
        for_s=wanted.for_s,
        ramp_s=wanted.ramp_s,
        faults=faults(chance("--loss", loss)),
    )
    load.check()
    return load


def add(app: typer.Typer) -> None:
    """Add the word to `muster load`."""
    example = "muster load rooms --members 5000 --rooms 50 --rate 5000 --for 30s --assert lost=0"
    word.add(app, "rooms", rooms, rate=1_000.0, example=example)
