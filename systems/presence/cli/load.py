"""`muster load presence`."""

from typing import TYPE_CHECKING, Annotated

import typer

from muster_server.control.load import word
from muster_server.control.load.word import Wanted

if TYPE_CHECKING:
    from muster_server.control.load.generator import Settings

FIRST_USER = 1_000_000_000
"""The users of a load are numbers from here on, unless --first says otherwise."""


async def presence(
    wanted: Wanted,
    users: Annotated[int, typer.Option(min=1, max=20_000, help="Users that are online, each with one device.")] = 200,
    first: Annotated[int, typer.Option(min=2, help="The first of these users; the others follow it.")] = FIRST_USER,
    size: Annotated[int, typer.Option(min=16, max=960, help="Bytes of a message.")] = 100,
) -> "Settings":
    """Bring users online, and send them messages by an open schedule: each delivered, once.

    Latency counts from when a message fell due to the report that the user's device has it.
    """
    from muster_server.control.errors import UNAVAILABLE, UserError
    from muster_server.control.terminal.found import client_of, found
    from muster_server.systems.presence.asking import ROLE
    from muster_server.systems.presence.cli.reach import NONE_RUNS
    from muster_server.systems.presence.load import PresenceLoad, tokens

    async with found(wanted.where) as nodes:
        record = await nodes.record()
    if not record.of(ROLE):
        raise UserError(NONE_RUNS, UNAVAILABLE)
    gateways, proxies = (
        [(end.host, end.port, end.public_key) for end in ends] for ends in (record.gateways, record.proxies)
    )
    wanted.check("presence", [host for host, _, _ in (*gateways, *proxies)])
    all_users = range(first, first + users)
    return PresenceLoad(
        gateways=gateways,
        proxies=proxies,
        credential=client_of(record).token,
        tokens=tokens(wanted.where.config(), all_users, wanted.for_s),
        users=all_users,
        rate=wanted.rate,
        size=size,
        for_s=wanted.for_s,
        ramp_s=wanted.ramp_s,
    )


def add(app: typer.Typer) -> None:
    """Add the word to `muster load`."""
    example = "muster load presence --users 500 --rate 500 --for 30s --assert missing=0"
    word.add(app, "presence", presence, rate=200.0, example=example)
