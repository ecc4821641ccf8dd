"""The subcommands of likes: `like`, `unlike`, `rank`, and those of `muster likes`. Their work is in `commands.py`."""

from pathlib import Path
from typing import Annotated, Final

import typer

from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl
from muster_server.systems.likes.cli.leaderboard import leaderboard_app

short_app: Final = typer.Typer()
likes_app: Final = typer.Typer(
    help="Show an item's count and likers, pages of feeds, users who like several items, a user's items, and leaderboards.",
    epilog="Example: muster likes show share:1000",
    no_args_is_help=True,
)
Item = Annotated[str, typer.Argument(metavar="ITEM", help="KIND:ID, for example share:1000.")]
User = Annotated[str, typer.Argument(metavar="USER", help="A number from 0 to 2^64-1.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Number of entries to show.")]


def add(app: typer.Typer) -> None:
    """Add the subcommands to the command."""
    app.add_typer(short_app)
    likes_app.add_typer(leaderboard_app, name="leaderboard")
    app.add_typer(likes_app, name="likes")


@short_app.command("like", epilog="Example: muster like share:1000 2017")
def like(item: Item, user: User, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Add a user's like of an item. It is durable when the command exits with 0; a second like changes nothing."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.commands import toggle

    return common.run(toggle(Target(config, registry), item, user, True, json))


@short_app.command("unlike", epilog="Example: muster unlike share:1000 2017")
def unlike(item: Item, user: User, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Remove a user's like of an item."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.commands import toggle

    return common.run(toggle(Target(config, registry), item, user, False, json))


@short_app.command("rank", epilog="Example: muster rank agriculture --top 100 --window 24h")
def rank(
    field: Annotated[
        str, typer.Argument(metavar="[FIELD]", help="A field, such as an item's kind [all items].", show_default=False)
    ] = "",
    top: Annotated[int, typer.Option("--top", min=1, max=10_000, help="Number of items to show.")] = 10,
    window: Annotated[
        str, typer.Option("--window", metavar="TIME", help="1h, 24h or 7d: newer likes count more [by count].")
    ] = "",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show the top of a ranking."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.commands import ranking

    return common.run(ranking(Target(config, registry), field, top, window, json))


@likes_app.command("show", epilog="Example: muster likes show share:1000 --json")
def show(item: Item, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Show an item's count, its newest likers, and its rank in each ranking."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.commands import show as run

    return common.run(run(Target(config, registry), item, json))


@likes_app.command("feed", epilog="Example: muster likes feed share:1000 share:1001 --viewer 2017 --newest 3")
def feed(
    items: Annotated[list[str], typer.Argument(metavar="ITEM…", help="Up to 1,000 items.")],
    viewer: Annotated[
        str | None, typer.Option("--viewer", metavar="USER", help="Show whether this user likes each item.")
    ] = None,
    newest: Annotated[int, typer.Option("--newest", min=0, max=10, help="Number of newest likers to show.")] = 3,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show a page of a feed in one call: count, the viewer's like and newest likers of each item."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.commands import feed as run

    return common.run(run(Target(config, registry), items, viewer, newest, json))


@likes_app.command("both", epilog="Example: muster likes both share:1000 share:1001 --user 2017")
def both(
    items: Annotated[list[str], typer.Argument(metavar="ITEM ITEM…", help="Two items or more.")],
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Check only this user.")] = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """List the users who like all of these items, at most 10,000.

    With --user, exit code 0 if that user does, 1 if not.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.commands import both as run

    return common.run(run(Target(config, registry), items, user, json))


@likes_app.command("of", epilog="Example: muster likes of 2017 --limit 20 --times")
def of(
    user: User,
    limit: Limit = 100,
    times: Annotated[bool, typer.Option("--times", help="Show the time of each like, in UTC.")] = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """List the items that a user likes, newest first."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.commands import of as run

    return common.run(run(Target(config, registry), user, limit, times, json))


@likes_app.command("erase", epilog="Example: muster likes erase 2017 --yes")
def erase(
    user: User,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Erase a user: all likes, reactions and leaderboard entries, and every file that names the user.

    It runs in the nodes, also after Ctrl-C, and survives their restarts. The user's changes are refused until it is done.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.erasure import erase as run

    return common.run(run(Target(config, registry), user, yes, json))


@likes_app.command("export", epilog="Example: muster likes export 2017 > 2017.jsonl")
def export(user: User, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Print all likes, reactions and leaderboard entries of a user, one JSON object a line."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.erasure import export as run

    return common.run(run(Target(config, registry), user))


@likes_app.command("partitions", epilog="Example: muster likes partitions")
def partitions(json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Show each partition: its slots, its node, and its position in the log.

    Exit code 1 if no node that answers serves one of them. Partitions move when a node is added or drained.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.partitions import show

    return common.run(show(Target(config, registry), json))


@likes_app.command("import", epilog="Example: muster likes import redis://10.0.0.5:6379/0 'share:*'")
def import_(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL of the source: redis://[USER:PASSWORD@]HOST:PORT/DB.")],
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="Pattern of the keys to move, as for SCAN: 'share:*'.")
    ],
    done: Annotated[
        Path, typer.Option("--done", metavar="FILE", help="File of the keys moved so far; another run continues there.")
    ] = Path("likes-import.done"),
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Move bitmaps of a Redis: each bit of 1 becomes a like of the item with the key's name.

    The Redis is only read. An interrupted import continues with the remaining keys.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.likes.cli.commands import bring

    return common.run(bring(Target(config, registry), url, pattern, done, json))
