"""The subcommands of `muster likes leaderboard`. Their work is in `scores.py`."""

from typing import Annotated, Final

import typer

from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl

leaderboard_app: Final = typer.Typer(
    help="Set, raise and show the scores of a leaderboard's members.",
    epilog="Example: muster likes leaderboard top game:7",
    no_args_is_help=True,
)
NUMBERS: Final = {"ignore_unknown_options": True}
"""A number below 0 is no option."""
Name = Annotated[str, typer.Argument(metavar="NAME", help="The leaderboard, for example game:7; no item has this key.")]
Member = Annotated[str, typer.Argument(metavar="MEMBER", help="A member, for example a player: up to 512 bytes.")]
Window = Annotated[
    str,
    typer.Option("--window", metavar="TIME", help="1h, 24h or 7d: points gained lately count more [by score]."),
]
Lowest = Annotated[bool, typer.Option("--lowest", help="The lowest score is at the top.")]


@leaderboard_app.command(
    "put", epilog="Example: muster likes leaderboard put game:7 alice 120 --only greater", context_settings=NUMBERS
)
def put(
    name: Name,
    member: Member,
    score: Annotated[float, typer.Argument(metavar="SCORE", help="A number, also below 0.")],
    only: Annotated[
        str,
        typer.Option("--only", metavar="WHEN", help="new, existing, greater or less: when the score is set [always]."),
    ] = "",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Set a member's score. It is durable when the command exits with 0."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.scores import put as run

    return common.run(run(Target(config, registry), name, member, score, only, json))


@leaderboard_app.command("add", epilog="Example: muster likes leaderboard add game:7 alice 5", context_settings=NUMBERS)
def add(
    name: Name,
    member: Member,
    by: Annotated[float, typer.Argument(metavar="BY", help="A number, also below 0.")],
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Raise a member's score; a new member begins at 0."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.scores import add as run

    return common.run(run(Target(config, registry), name, member, by, json))


@leaderboard_app.command("show", epilog="Example: muster likes leaderboard show game:7 alice")
def show(
    name: Name,
    member: Member,
    window: Window = "",
    lowest: Lowest = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show a member's score and rank; 0 is the top. Exit code 1 if it is not there."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.scores import show as run

    return common.run(run(Target(config, registry), name, member, window, lowest, json))


@leaderboard_app.command("top", epilog="Example: muster likes leaderboard top game:7 --top 100 --window 24h")
def top(
    name: Name,
    top: Annotated[int, typer.Option("--top", min=1, max=10_000, help="Number of members to show.")] = 10,
    window: Window = "",
    lowest: Lowest = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show the members at the top with their scores."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.scores import top as run

    return common.run(run(Target(config, registry), name, top, window, lowest, json))


@leaderboard_app.command("rm", epilog="Example: muster likes leaderboard rm game:7 alice")
def rm(
    name: Name,
    members: Annotated[list[str], typer.Argument(metavar="MEMBER…", help="Members to remove.")],
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Remove members."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.scores import remove

    return common.run(remove(Target(config, registry), name, members, json))


@leaderboard_app.command("ties", epilog="Example: muster likes leaderboard ties game:7 time")
def ties(
    name: Name,
    by: Annotated[str, typer.Argument(metavar="time|name", help="What decides between equal scores.")],
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Set what decides between equal scores: the time of a score, the first one above, or the greater name.

    A new leaderboard decides by name.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.scores import ties as run

    return common.run(run(Target(config, registry), name, by, json))


@leaderboard_app.command("delete", epilog="Example: muster likes leaderboard delete game:7")
def delete(
    name: Name,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Remove all members and the settings of a leaderboard."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.scores import delete as run

    return common.run(run(Target(config, registry), name, json))
