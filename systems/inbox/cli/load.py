"""`muster load inbox`."""

from typing import TYPE_CHECKING, Annotated

import typer

from muster_server.control.load import word
from muster_server.control.load.word import Wanted

if TYPE_CHECKING:
    from muster_server.control.load.generator import Settings

FIRST_USER = 2_000_000_000
"""The users of a load are numbers from here on, unless --first says otherwise."""


async def inbox(
    wanted: Wanted,
    users: Annotated[int, typer.Option(min=1, max=1_000_000, help="Users that get entries, in turn.")] = 1_000,
    first: Annotated[int, typer.Option(min=0, help="The first of these users; the others follow it.")] = FIRST_USER,
    size: Annotated[int, typer.Option(min=0, max=4_000, help="Bytes of an entry's text.")] = 100,
) -> "Settings":
    """Put entries into inboxes by an open schedule, one in ten twice; at the end read every inbox again.

    Latency counts from when an entry fell due to its answer, at which it is on disk. The entries stay, under the kind of
    the run, load-….
    """
    from muster_server.control.errors import USAGE, UserError
    from muster_server.systems.inbox.cli.commands import nodes_and_key
    from muster_server.systems.inbox.load import InboxLoad

    most = wanted.where.config().section("inbox").entries_max
    if wanted.rate * wanted.for_s > users * most:
        raise UserError(
            f"more than {most:,} entries for each user (see inbox.entries_max): raise --users, or lower --rate", USAGE
        )
    nodes, key = await nodes_and_key(wanted.where)
    wanted.check("inbox", [host for host, _ in nodes])
    return InboxLoad(
        nodes=nodes,
        key=key,
        first=first,
        users=users,
        rate=wanted.rate,
        size=size,
        for_s=wanted.for_s,
        ramp_s=wanted.ramp_s,
    )


def add(app: typer.Typer) -> None:
    """Add the word to `muster load`."""
    example = "muster load inbox --rate 2000 --for 30s --assert lost=0 --assert 'p99<100ms'"
    word.add(app, "inbox", inbox, rate=1_000.0, example=example)
