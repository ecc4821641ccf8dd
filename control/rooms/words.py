"""The words of rooms: `muster pub`, `sub`, `command`, `members`, `trace`, each also as `muster rooms WORD`.

The work of a word is in a file of its own beside this one, imported when the word is used.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from control.console.options import ConfigFile, Json, RegistryUrl, unused

F = TypeVar("F", bound=Callable[..., int])

rooms_app: Final = typer.Typer(
    help="Rooms: publish, subscribe, command, list.", epilog="Example: muster rooms ls", no_args_is_help=True
)
short_app: Final = typer.Typer()


def add(app: typer.Typer) -> None:
    """Add the words to the command."""
    app.add_typer(short_app)
    app.add_typer(rooms_app, name="rooms")


def both(epilog: str) -> Callable[[F], F]:
    """Register a function as a word by itself, and as one of `rooms`."""

    def made(word: F) -> F:
        short_app.command(epilog=epilog)(word)
        rooms_app.command(epilog=epilog.replace("muster ", "muster rooms ", 1))(word)
        return word

    return made


@both(epilog="Example: muster sub sports:final --count 10")
def sub(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after this many messages.")] = None,
    history: Annotated[int, typer.Option(min=0, help="First print up to this many of the last messages.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Print messages byte for byte on a terminal too.")] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Be the user of this token; messages to that user are printed too."),
    ] = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Print a room's messages as they arrive, and its gaps on stderr."""
    from control.console import common
    from control.console.found import Target
    from control.rooms.sub import subscribe

    work = subscribe(Target(config, registry), room, count, history, json, raw, token_file)
    return common.run(work, endless=count is None, streams=True)


@both(epilog="Example: echo hello | muster pub sports:final")
def pub(
    room: Annotated[str, typer.Argument(metavar="ROOM")], registry: RegistryUrl = None, config: ConfigFile = None
) -> int:
    """Publish each line of stdin as a message, and wait until all are acknowledged."""
    from control.console import common
    from control.console.found import Target
    from control.rooms.pub import publish

    return common.run(publish(Target(config, registry), room))


@both(epilog="Example: muster command sports:final 'half-time' --expires 5")
def command(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="At most 800 bytes.")],
    expires: Annotated[float, typer.Option(min=0.001, max=60, help="Give up after this many seconds.")] = 5.0,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Send a command to every member of a room, and print the outcome.

    Exit code 0: all members have it; 3: nobody is in the room; 4: it expired before all had it. Any other code: it was
    not sent, or its outcome is unknown.
    """
    from control.console import common
    from control.console.found import Target
    from control.rooms.command import command as send

    return common.run(send(Target(config, registry), room, text, expires, json))


@both(epilog="Example: muster members sports:final --ids")
def members(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    ids: Annotated[bool, typer.Option("--ids", help="Also list up to 100 users, each once.")] = False,
    start: Annotated[int, typer.Option(min=0, help="First user of the list.")] = 0,
    wait: Annotated[float, typer.Option(min=0.001, max=60, help="Wait this many seconds for gateways.")] = 1.0,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Count a room's members over all gateways. A user with two clients counts twice.

    Exit code 0 if all gateways answered; 75 if one did not, so its members are missing.
    """
    from control.console import common
    from control.console.found import Target
    from control.rooms.members import show

    if not ids:
        unused({"--start": start != 0}, "--ids")
    return common.run(show(Target(config, registry), room, ids, start, wait, json))


@both(epilog="Example: muster trace sports:final")
def trace(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    message: Annotated[
        str | None,
        typer.Option(
            "--message",
            metavar="TEXT",
            help="Publish this text through each proxy, and time it. Every member sees it.",
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="Follow the way through this cluster of brokers only.")
    ] = None,
    wait: Annotated[float, typer.Option(min=0.1, max=60, help="Wait this many seconds for each step.")] = 5.0,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show the nodes that carry a room's messages, the time through each proxy, and each link on the way.

    Exit code 75 if a node did not answer in time.
    """
    from control.console import common
    from control.console.found import Target
    from control.rooms.trace import show

    return common.run(show(Target(config, registry), room, cluster, message, wait, json))


@rooms_app.command("ls", epilog="Example: muster rooms ls --limit 20")
def rooms_ls(
    offset: Annotated[int, typer.Option(min=0, max=(1 << 32) - 1, help="Rooms to skip.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Rooms to show.")] = 100,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """List the rooms."""
    from control.console.found import Target
    from control.rooms.ls import ls

    return ls(Target(config, registry), offset, limit, json)


@rooms_app.command("show", epilog="Example: muster rooms show sports:final --json")
def rooms_show(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show one room as each role knows it."""
    from control.console.found import Target
    from control.rooms.ls import show

    return show(Target(config, registry), room, json)
