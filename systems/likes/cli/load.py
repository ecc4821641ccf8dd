"""`muster load likes`."""

from typing import TYPE_CHECKING, Annotated

import typer

from muster_server.control.load import word
from muster_server.control.load.word import Wanted

if TYPE_CHECKING:
    from muster_server.control.load.generator import Settings


async def likes(
    wanted: Wanted,
    items: Annotated[int, typer.Option(min=1, max=1_000_000, help="Items that get likes, in turn.")] = 1_000,
) -> "Settings":
    """Like items, and take one like in ten back, by an open schedule; at the end count every item again.

    Latency counts from when a change fell due to its answer, at which it is on disk. The items stay, under the name of
    the run, load-….
    """
    from muster_server.control.terminal.found import found
    from muster_server.systems.likes.cli.commands import reach
    from muster_server.systems.likes.load import LikesLoad

    async with found(wanted.where) as nodes:
        reached = reach(await nodes.record(), wanted.where.config())
    wanted.check("likes", [host for host, _ in reached.doors])
    return LikesLoad(
        doors=reached.doors,
        user=reached.user,
        password=reached.password,
        ca_file=reached.ca_file,
        items=items,
        rate=wanted.rate,
        for_s=wanted.for_s,
        ramp_s=wanted.ramp_s,
    )


def add(app: typer.Typer) -> None:
    """Add the word to `muster load`."""
    example = "muster load likes --rate 5000 --for 30s --assert missing=0"
    word.add(app, "likes", likes, rate=1_000.0, example=example)
