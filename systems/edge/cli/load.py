"""`muster load edge`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster_server.control.load import word
from muster_server.control.load.word import Wanted
from muster_server.control.terminal.options import Token, TokenFile
from muster_server.systems.edge.wire import Encodings

if TYPE_CHECKING:
    from muster_server.control.load.generator import Settings

MEMBERS_MAX = 100_000


async def edge(
    wanted: Wanted,
    url: Annotated[
        list[str] | None,
        typer.Option("--url", metavar="URL", help="Load this edge, ws://… or wss://…; repeat it for more."),
    ] = None,
    members: Annotated[
        int, typer.Option(min=1, max=MEMBERS_MAX, help="Members, each with a connection and in one room.")
    ] = 1_000,
    rooms: Annotated[int, typer.Option(min=1, max=MEMBERS_MAX, help="Rooms.")] = 10,
    publishers: Annotated[
        int, typer.Option(min=0, max=10_000, help="Clients that publish; 0: one for every 50 messages a second.")
    ] = 0,
    size: Annotated[int, typer.Option(min=42, max=65_536, help="Bytes of a message.")] = 200,
    encoding: Annotated[Encodings, typer.Option(help="Encoding of the sessions; both: in turn.")] = Encodings.both,
    token: Token = None,
    token_file: TokenFile = None,
    ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="Trust these certificates, PEM, for wss."),
    ] = None,
) -> "Settings":
    """Publish to rooms over WebSocket by an open schedule, and check every delivery for loss, order, doubles and content.

    The edges of the local instance are loaded, or those that --url or --registry name. A session whose edge is gone
    comes back by another one and asks for what it missed. Latency counts from when a message fell due to when a member
    has it.
    """
    from muster_server.control.terminal.found import End
    from muster_server.systems.edge.load import EdgeLoad
    from muster_server.systems.edge.reach import edges

    wanted.where = replace(wanted.where, end=End(edges=url or (), token=token, token_file=token_file))
    found = await edges(wanted.where)
    wanted.check("edge", [server.host for server in found.servers])
    load = EdgeLoad(
        urls=found.urls,
        token=found.token,
        ca="" if ca is None else ca.read_text(),
        encodings=encoding,
        members=members,
        rooms=rooms,
        publishers=publishers,
        rate=wanted.rate,
        size=size,
        for_s=wanted.for_s,
        ramp_s=wanted.ramp_s,
    )
    load.check()
    return load


def add(app: typer.Typer) -> None:
    """Add the word to `muster load`."""
    example = "muster load edge --members 2000 --rooms 20 --rate 500 --for 30s --assert lost=0"
    word.add(app, "edge", edge, rate=500.0, example=example)
