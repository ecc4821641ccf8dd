"""The commands of rooms: `muster pub`, `sub`, `command`, `members`, `trace`, each also as `muster rooms WORD`.

Each has a file of its own beside this one, imported when it is used.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from muster_server.control.errors import USAGE, UserError
from muster_server.control.terminal.options import (
    ConfigFile,
    Gateways,
    Json,
    NodeAddress,
    RegistryUrl,
    Svg,
    Token,
    TokenFile,
    Url,
    alone,
    unused,
)

F = TypeVar("F", bound=Callable[..., int])

rooms_app: Final = typer.Typer(
    help="Publish, subscribe, send commands, list rooms.", epilog="Example: muster rooms ls", no_args_is_help=True
)
short_app: Final = typer.Typer()


def add(app: typer.Typer) -> None:
    """Add the subcommands to the command."""
    app.add_typer(short_app)
    app.add_typer(rooms_app, name="rooms")


def both(epilog: str) -> Callable[[F], F]:
    """Register a function as a subcommand of `muster`, and as one of `rooms`."""

    def made(word: F) -> F:
        short_app.command(epilog=epilog)(word)
        rooms_app.command(epilog=epilog.replace("muster ", "muster rooms ", 1))(word)
        return word

    return made


@both(epilog="Example: muster sub sports:final --count 10")
def sub(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many messages.")] = None,
    history: Annotated[int, typer.Option(min=0, help="First print up to this many of the last messages.")] = 0,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="NAME=VALUE[,VALUE]",
            help="Only messages whose header NAME has one of these values. Repeatable: all must match.",
        ),
    ] = None,
    one_in: Annotated[
        int, typer.Option("--one-in", min=1, max=1_000_000, metavar="N", help="Only about one in N messages.")
    ] = 1,
    per_second: Annotated[
        int | None,
        typer.Option(
            "--per-second", min=1, max=1_000, metavar="R", help="At most R messages a second: the newest each time."
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print messages byte for byte on a terminal too.")] = False,
    json: Json = False,
    url: Url = None,
    gateway: Gateways = None,
    token: Token = None,
    token_file: TokenFile = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Print a room's messages as they arrive, and its gaps on stderr. A user's messages (muster send) are printed too.

    With --json: the room, position, stream, sender, headers and data of each message, its arrival time, and its age in
    seconds if it carries one (proxy.age_every).
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import End, Target
    from muster_server.systems.rooms.cli.sub import filter_of, subscribe

    target = Target(config, registry, End(url, gateway or (), token, token_file))
    work = subscribe(target, room, count, history, filter_of(where or (), one_in, per_second), json, raw)
    return common.run(work, endless=count is None, streams=True)


@both(epilog="Example: muster pub sports:final 'goal {n} at {time}' --count 3 --rate 1")
def pub(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="The message [each line of stdin is one].", show_default=False),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Publish the content of this file as one message.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            min=1,
            help="Publish TEXT this many times. {n} is the number of the message, {time} the time, {random} 8 hex digits.",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            min=0.001,
            metavar="PER_SECOND",
            help="Limit of messages per second; TEXT without --count repeats until Ctrl-C.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", metavar="NAME=VALUE", help="A header of each message, which sub --json prints. Repeatable."
        ),
    ] = None,
    url: Url = None,
    gateway: Gateways = None,
    token: Token = None,
    token_file: TokenFile = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Publish TEXT, a file, or each line of stdin, and wait until all messages are acknowledged."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import End, Target
    from muster_server.systems.rooms.cli.pub import What, headers_of, publish

    if text is not None and file is not None:
        raise UserError("--file excludes TEXT", USAGE)
    if text is None:
        unused({"--count": count is not None}, "TEXT")
    if file is not None:
        unused({"--rate": rate is not None}, "TEXT or lines of stdin")
    what = What(text, file, count, rate, headers_of(header or ()))
    where = Target(config, registry, End(url, gateway or (), token, token_file))
    return common.run(publish(where, room, what), endless=what.is_endless)


@both(epilog="Example: muster command sports:final 'half-time' --expires 5")
def command(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The command's text, at most 800 bytes.")],
    expires: Annotated[float, typer.Option(min=0.001, max=60, help="Give up after this many seconds.")] = 5.0,
    json: Json = False,
    url: Url = None,
    gateway: Gateways = None,
    token: Token = None,
    token_file: TokenFile = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Send a command to every member of a room, and print the outcome.

    Exit code 0: all members have it; 3: the room has no member; 4: it expired before all had it. Any other code: it was
    not sent, or its outcome is unknown.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import End, Target
    from muster_server.systems.rooms.cli.tell import command as send

    where = Target(config, registry, End(url, gateway or (), token, token_file))
    return common.run(send(where, room, text, expires, json))


@both(epilog="Example: muster members sports:final --ids")
def members(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    ids: Annotated[bool, typer.Option("--ids", help="Also list up to 100 users, each once.")] = False,
    start: Annotated[int, typer.Option(min=0, help="First user of the list.")] = 0,
    wait: Annotated[float, typer.Option(min=0.001, max=60, help="Wait this many seconds for gateways.")] = 1.0,
    json: Json = False,
    url: Url = None,
    gateway: Gateways = None,
    token: Token = None,
    token_file: TokenFile = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Count a room's members over all gateways. A user with two clients counts twice.

    Exit code 0 if all gateways answered; 75 if one did not, so its members are not counted.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import End, Target
    from muster_server.systems.rooms.cli.members import show

    if not ids:
        unused({"--start": start != 0}, "--ids")
    where = Target(config, registry, End(url, gateway or (), token, token_file))
    return common.run(show(where, room, ids, start, wait, json))


@rooms_app.command("history", epilog="Example: muster rooms history sports:final --limit 20")
def rooms_history(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Number of messages to print.")] = 100,
    since: Annotated[
        str,
        typer.Option(
            metavar="POSITION|TIME",
            help="Print what follows a position as --json prints it, or a time with its zone; with --reverse what was before"
            " it.",
        ),
    ] = "",
    reverse: Annotated[bool, typer.Option("--reverse", help="Print the newest message first.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Print messages byte for byte on a terminal too.")] = False,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    token_file: TokenFile = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Print the last messages of a room, from memory and, where it is kept (archive.rooms), from the archive.

    Gaps are printed on stderr. With --json: the room, position, sender, headers and data of each message, and the time at
    which the archive got it.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import End, Target
    from muster_server.systems.rooms.cli.history import print_history

    where = Target(config, registry, End(url, (), token, token_file))
    return common.run(print_history(where, room, limit, since, reverse, json, raw))


@rooms_app.command("request", epilog="Example: muster rooms request prices EUR --timeout 2")
def rooms_request(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="The request, at most 48,000 bytes.")] = "",
    timeout: Annotated[float, typer.Option(min=0.001, max=60, help="Give up after this many seconds.")] = 5.0,
    json: Json = False,
    url: Url = None,
    gateway: Gateways = None,
    token: Token = None,
    token_file: TokenFile = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Ask a room's responders, and print the reply of the one that answers.

    Exit code 0: replied; 3: the room has no responder, which is told at once; 4: no reply came in time; 1: the responder
    failed, or the request was not sent.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import End, Target
    from muster_server.systems.rooms.cli.requests import ask

    where = Target(config, registry, End(url, gateway or (), token, token_file))
    return common.run(ask(where, room, text, timeout, json))


@rooms_app.command("respond", epilog="Example: muster rooms respond prices 1.09")
def rooms_respond(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help="The reply to each request [the request].", show_default=False),
    ] = None,
    json: Json = False,
    url: Url = None,
    gateway: Gateways = None,
    token: Token = None,
    token_file: TokenFile = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Answer requests to a room until Ctrl-C, and print each: for trying. Programs use client.respond.

    Of several responders one answers each request.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import End, Target
    from muster_server.systems.rooms.cli.requests import answer

    where = Target(config, registry, End(url, gateway or (), token, token_file))
    return common.run(answer(where, room, text, json), endless=True, streams=True)


@rooms_app.command("latest", epilog="Example: muster rooms latest prices --json")
def rooms_latest(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    raw: Annotated[bool, typer.Option("--raw", help="Print messages byte for byte on a terminal too.")] = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Print the latest message for each value of the header `key`, of a room that the archive keeps (archive.rooms).

    With --json: the room, position, sender, headers and data of each message, and the time at which the archive got it.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.rooms.cli.history import print_latest

    return common.run(print_latest(Target(config, registry), room, json, raw))


@rooms_app.command("end", epilog="Example: muster rooms end sports:final 7")
def rooms_end(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    user: Annotated[str, typer.Argument(metavar="USER", help="A number, or the text that names the user.")],
    expires: Annotated[float, typer.Option(min=0.001, max=60, help="Wait this many seconds for gateways.")] = 5.0,
    json: Json = False,
    url: Url = None,
    token: Token = None,
    token_file: TokenFile = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """End the sessions with which a user is a member of a room. The clients do not come back by themselves.

    Needs the shared token, and no presence. To keep the user out, revoke it as well. Exit code 3: the user is no member.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import End, Target
    from muster_server.systems.rooms.cli.end import end

    where = Target(config, registry, End(url, (), token, token_file))
    return common.run(end(where, room, user, expires, json))


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
        str | None, typer.Option(metavar="NAME", help="Follow the path through this cluster of brokers only.")
    ] = None,
    wait: Annotated[float, typer.Option(min=0.1, max=60, help="Wait this many seconds for each step.")] = 5.0,
    json: Json = False,
    svg: Svg = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show the nodes that carry a room's messages, the time through each proxy, and each link on the path.

    Exit code 75 if a node did not answer in time.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.rooms.cli.trace import show
    from muster_server.systems.rooms.cli.trace_picture import picture

    alone(svg, {"--json": json})
    draw = picture if svg else None
    return common.run(show(Target(config, registry), room, cluster, message, wait, json, draw))


@rooms_app.command("ls", epilog="Example: muster rooms ls --limit 20")
def rooms_ls(
    offset: Annotated[int, typer.Option(min=0, max=(1 << 32) - 1, help="Number of rooms to skip.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of rooms to show.")] = 100,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also show the servers' own figures, and rooms of probes.")
    ] = False,
    rate: Annotated[bool, typer.Option("--rate", help="Also measure the messages of each room for a second.")] = False,
    json: Json = False,
    node: NodeAddress = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """List the rooms: members, and the messages stored for them.

    --json and --verbose also show the rooms of probes, and the servers' own figures: streams, offsets, current
    settings.
    """
    from muster_server.control.terminal.found import Target
    from muster_server.systems.rooms.cli.ls import ls

    return ls(Target(config, registry, node=node), offset, limit, json, verbose, rate)


@rooms_app.command("show", epilog="Example: muster rooms show sports:final --json")
def rooms_show(
    room: Annotated[str, typer.Argument(metavar="ROOM")],
    json: Json = False,
    node: NodeAddress = None,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show one room as each role sees it."""
    from muster_server.control.terminal.found import Target
    from muster_server.systems.rooms.cli.ls import show

    return show(Target(config, registry, node=node), room, json)
