"""The subcommands of presence: `muster presence who | watch | status | end | stats`. Their work is in `commands.py`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl

presence_app: Final = typer.Typer(
    help="Show the devices on which users are online, and the state of each site; end sessions.",
    epilog="Example: muster presence who 7 8 9",
    no_args_is_help=True,
)
Users = Annotated[
    list[str] | None, typer.Argument(metavar="USER…", help="Numbers from 0 to 2^64-1, or text.", show_default=False)
]
File = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="File of users, one per line; looked up 1,000 at a time.")
]
Site = Annotated[int | None, typer.Option("--site", metavar="SITE", min=1, help="Ask only this site [any].")]


def add(app: typer.Typer) -> None:
    """Add the subcommands to the command."""
    app.add_typer(presence_app, name="presence")
    app.command("send", epilog="Example: echo hello | muster send 7")(send)


def send(
    user: Annotated[str, typer.Argument(metavar="USER", help="A number from 0 to 2^64-1, or text.")],
    device: Annotated[str | None, typer.Option(metavar="NAME", help="Send only to this device [all].")] = None,
    expires: Annotated[float, typer.Option(min=0.001, max=600, help="Give up after this many seconds.")] = 5.0,
    base64: Annotated[bool, typer.Option("--base64", help="Read stdin as base64, and send the decoded bytes.")] = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Send stdin, at most 960 bytes, to all devices of a user that are online, and print the outcomes.

    Exit code 0: each of them has it; 1: none is online; 75: one did not confirm in time, or its gateway was lost.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.presence.cli.send import send as run

    return common.run(run(Target(config, registry), user, device, expires, json, is_base64=base64))


@presence_app.command("who", epilog="Example: muster presence who 7 8 9 --json")
def who(
    users: Users = None,
    file: File = None,
    site: Site = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show where users are online: gateways, devices, and since when; and when offline users were last seen."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.presence.cli.commands import who as run

    return common.run(run(Target(config, registry), users or [], file, site, json))


@presence_app.command("watch", epilog="Example: muster presence watch 7 8")
def watch(
    users: Users = None,
    file: File = None,
    site: Site = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show changes of users as they arrive, until Ctrl-C."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.presence.cli.commands import watch as run

    return common.run(run(Target(config, registry), users or [], file, site, json), endless=True, streams=True)


class Mode(StrEnum):
    """A user's status."""

    available = "available"
    away = "away"
    dnd = "dnd"
    invisible = "invisible"


@presence_app.command(
    "status", epilog="Example: muster presence status 7 --mode dnd --text 'in a meeting' --expires 3600"
)
def status(
    user: Annotated[str, typer.Argument(metavar="USER", help="A number from 0 to 2^64-1, or text.")],
    mode: Annotated[Mode | None, typer.Option(help="What the user says; dnd: do not disturb [available].")] = None,
    text: Annotated[str, typer.Option(help="At most 256 bytes, in one line.")] = "",
    away_after: Annotated[
        float, typer.Option(min=0, max=86_400, help="Away if nothing sets the status for this many seconds [never].")
    ] = 0.0,
    expires: Annotated[
        float, typer.Option(min=0, max=366 * 86_400, help="End the status after this many seconds [366 days].")
    ] = 0.0,
    clear: Annotated[bool, typer.Option("--clear", help="Take the status back.")] = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Set the status of a user, which its watchers see. Others see an invisible user as offline; it still gets messages."""
    from muster_server.control.errors import USAGE, UserError
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.presence.cli.commands import status as run
    from muster_server.systems.presence.status import NewStatus

    if clear == bool(mode or text or away_after):
        raise UserError("give --mode, --text or --away-after, or --clear alone", USAGE)
    new = NewStatus(
        mode=(mode or Mode.available).value,
        text=text,
        away_ms=round(away_after * 1_000),
        end_ms=round(expires * 1_000),
    )
    return common.run(run(Target(config, registry), user, new, json))


@presence_app.command("end", epilog="Example: muster presence end 7 --device phone")
def end(
    user: Annotated[str, typer.Argument(metavar="USER", help="A number from 0 to 2^64-1, or text.")],
    device: Annotated[
        str | None, typer.Option(metavar="NAME", help="End only the session of this device [all].")
    ] = None,
    expires: Annotated[float, typer.Option(min=0.001, max=600, help="Give up after this many seconds.")] = 5.0,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """End the sessions of a user's devices, and print the outcomes. The clients do not come back by themselves.

    A program may open a new session; cluster.revoked_file keeps a user out. Exit code 0: the sessions have ended; 1: no
    device is online; 75: a gateway did not answer in time, or was lost.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.presence.cli.ends import end as run

    return common.run(run(Target(config, registry), user, device, expires, json))


@presence_app.command("stats", epilog="Example: muster presence stats --watch")
def stats(
    again: Annotated[bool, typer.Option("--watch", help="Refresh every second, until Ctrl-C.")] = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show each site and shard: devices, gateways with versions and lag, open requests, state.

    With --watch, a terminal also shows the devices of the last half minute as a line of blocks. Exit code 1 if a shard is
    refused.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.presence.cli.commands import stats as run

    return common.run(run(Target(config, registry), again, json), endless=again, streams=again)
