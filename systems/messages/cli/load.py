"""`muster load messages`."""

from typing import TYPE_CHECKING, Annotated

import typer

from muster_server.control.load import word
from muster_server.control.load.options import seconds
from muster_server.control.load.word import Wanted

if TYPE_CHECKING:
    from muster_server.control.load.generator import Settings


async def messages(
    wanted: Wanted,
    size: Annotated[int, typer.Option(min=16, max=262_144, help="Bytes of a message.")] = 200,
    delay: Annotated[
        str,
        typer.Option(
            "--delay", metavar="TIME", help="Messages are due this long to twice as long after they are sent."
        ),
    ] = "2s",
    callback: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where each generating host takes callbacks; workers must reach it."),
    ] = "127.0.0.1:0",
) -> "Settings":
    """Send delayed messages by an open schedule, and take their callbacks: none early, none twice, none missing.

    Latency is how late a callback came after its message was due. The topic of the run, load-…, is removed at the end.
    """
    from muster_server.control.terminal.found import client_of, found
    from muster_server.systems.messages.cli.commands import addresses
    from muster_server.systems.messages.load import MessagesLoad
    from muster_server.systems.messages.system import ADMIN, RECEIVE

    delay_s = seconds("--delay", delay)
    async with found(wanted.where) as nodes:
        record = await nodes.record()
    receivers, admins = addresses(record, RECEIVE), addresses(record, ADMIN)
    wanted.check("messages", [host for host, _ in (*receivers, *admins)])
    return MessagesLoad(
        receivers=receivers,
        admins=admins,
        token=client_of(record).token,
        callback=callback,
        rate=wanted.rate,
        size=size,
        delay_s=delay_s,
        for_s=wanted.for_s,
        ramp_s=wanted.ramp_s,
    )


def add(app: typer.Typer) -> None:
    """Add the word to `muster load`."""
    example = "muster load messages --rate 500 --for 30s --assert missing=0 --assert 'p99<200ms'"
    word.add(app, "messages", messages, rate=200.0, example=example)
