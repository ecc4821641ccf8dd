"""`muster load messages`."""

from typing import Annotated

import typer

from muster_server.control.load.options import Assert, For, Hosts, Html, Listen, Owned, Ramp, Rate, schedule, seconds
from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl


def messages(
    rate: Rate = 200.0,
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
    """Send delayed messages by an open schedule, and take their callbacks: none early, none twice, none missing.

    Latency is how late a callback came after its message was due. The topic of the run, load-…, is removed at the end.
    """
    from muster_server.control.load.drive import check_target
    from muster_server.control.load.words import run
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target, client_of, found
    from muster_server.systems.messages.cli.commands import addresses
    from muster_server.systems.messages.load import MessagesLoad
    from muster_server.systems.messages.system import ADMIN, RECEIVE

    where = Target(config, registry)
    for_s, ramp_s = schedule(for_, ramp)
    delay_s = seconds("--delay", delay)

    async def work() -> int:
        async with found(where) as nodes:
            record = await nodes.record()
        receivers, admins = addresses(record, RECEIVE), addresses(record, ADMIN)
        check_target("messages", [host for host, _ in (*receivers, *admins)], owned)
        load = MessagesLoad(
            receivers=receivers,
            admins=admins,
            token=client_of(record).token,
            callback=callback,
            rate=rate,
            size=size,
            delay_s=delay_s,
            for_s=for_s,
            ramp_s=ramp_s,
        )
        return await run("messages", load, where, assert_, json, html, hosts, listen)

    return common.run(work())


def add(app: typer.Typer) -> None:
    """Add the word to `muster load`."""
    app.command(epilog="Example: muster load messages --rate 500 --for 30s --assert missing=0 --assert 'p99<200ms'")(
        messages
    )
