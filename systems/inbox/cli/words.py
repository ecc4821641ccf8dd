"""The subcommands of inboxes: `muster inbox ls | notify | broadcast | …`. Their work is in `commands.py`."""

from typing import Annotated, Final

import typer

from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl

inbox_app: Final = typer.Typer(
    help="Put entries into users' inboxes, show and mark them.",
    epilog="Example: muster inbox notify 7 'Bo likes your song' --kind like",
    no_args_is_help=True,
)
UserName = Annotated[str, typer.Argument(metavar="USER", help="A number from 0 to 2^64-1, or text.")]
UserNames = Annotated[list[str], typer.Argument(metavar="USER…", help="Numbers from 0 to 2^64-1, or text.")]
AudienceName = Annotated[str, typer.Argument(metavar="AUDIENCE", help="Its name; all: every user.")]
KindName = Annotated[
    str, typer.Option("--kind", metavar="KIND", help="The kind of the entry, for counts and settings.")
]
OneKind = Annotated[str, typer.Option("--kind", metavar="KIND", help="Only entries of this kind [all].")]
Id = Annotated[
    str, typer.Option("--id", metavar="ID", help="The same id is the same entry, so a repeated command does nothing.")
]
Actor = Annotated[str, typer.Option("--actor", metavar="NAME", help="User whose action the entry is about.")]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="The data: text, or JSON with --data-json.")]
IsJson = Annotated[bool, typer.Option("--data-json", help="The data is JSON.")]


def add(app: typer.Typer) -> None:
    """Add the subcommands to the command."""
    app.add_typer(inbox_app, name="inbox")


@inbox_app.command("ls", epilog="Example: muster inbox ls 7 --kind like")
def ls(
    user: UserName,
    kind: OneKind = "",
    before: Annotated[
        str, typer.Option(metavar="CURSOR", help="Only entries before a page, as given at its end.")
    ] = "",
    after: Annotated[
        str, typer.Option(metavar="CURSOR", help="Only entries after this cursor, the oldest first.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=200, help="Number of entries.")] = 50,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show a user's newest entries, own ones and broadcasts."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.inbox.cli.commands import ls as run

    return common.run(run(Target(config, registry), user, kind, before, after, limit, json))


@inbox_app.command("notify", epilog="Example: muster inbox notify 7 'Bo likes your song' --kind like --group song:3")
def notify(
    user: UserName,
    text: Text,
    kind: KindName = "message",
    group: Annotated[
        str,
        typer.Option("--group", metavar="GROUP", help="Entries of a kind with the same group are one, which grows."),
    ] = "",
    actor: Actor = "",
    id: Id = "",
    is_json: IsJson = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Put an entry into a user's inbox; it is durable when this returns."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.inbox.cli.commands import notify as run

    where = Target(config, registry)
    return common.run(run(where, user, text, kind, group, actor, id, json, is_json=is_json))


@inbox_app.command("broadcast", epilog="Example: muster inbox broadcast all 'a new release' --kind news --until 7d")
def broadcast(
    audience: AudienceName,
    text: Text,
    kind: KindName = "message",
    until: Annotated[
        str,
        typer.Option(
            "--until", metavar="DURATION", help="How long to show it, for example 12h or 7d [inbox.broadcast_days]."
        ),
    ] = "",
    actor: Actor = "",
    id: Id = "",
    is_json: IsJson = False,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Put an entry into the inboxes of an audience: one row, however many users read it."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.inbox.cli.commands import broadcast as run

    where = Target(config, registry)
    return common.run(run(where, audience, text, kind, until, actor, id, json, is_json=is_json))


@inbox_app.command("unread", epilog="Example: muster inbox unread 7")
def unread(user: UserName, json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Show how many entries a user has not read, and not seen, by kind."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.inbox.cli.commands import unread as run

    return common.run(run(Target(config, registry), user, json))


@inbox_app.command("read", epilog="Example: muster inbox read 7 --to 58-12")
def read(
    user: UserName,
    to: Annotated[str, typer.Option("--to", metavar="CURSOR", help="All entries up to this cursor [all].")] = "",
    kind: OneKind = "",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Mark a user's entries as read."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.inbox.cli.commands import read as run

    return common.run(run(Target(config, registry), user, to, kind, json))


@inbox_app.command("follow", epilog="Example: muster inbox follow field:corn 7 8 9")
def follow(
    audience: AudienceName,
    users: UserNames,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Add users to an audience: they get its broadcasts from now on."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.inbox.cli.commands import follow as run

    return common.run(run(Target(config, registry), audience, users, json, leave=False))


@inbox_app.command("unfollow", epilog="Example: muster inbox unfollow field:corn 7")
def unfollow(
    audience: AudienceName,
    users: UserNames,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Remove users from an audience."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.inbox.cli.commands import follow as run

    return common.run(run(Target(config, registry), audience, users, json, leave=True))


@inbox_app.command("settings", epilog="Example: muster inbox settings 7 like --push no --mail daily")
def settings(
    user: UserName,
    kind: Annotated[str, typer.Argument(metavar="[KIND]", help="The kind to change [none].", show_default=False)] = "",
    keeps: Annotated[str, typer.Option("--inbox", metavar="yes|no|default", help="Whether entries are kept.")] = "",
    pushes: Annotated[str, typer.Option("--push", metavar="yes|no|default", help="Whether devices are notified.")] = "",
    mail: Annotated[
        str, typer.Option("--mail", metavar="WHEN", help="never, at_once, unless_read, daily, or default.")
    ] = "",
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Show a user's settings, or change those of a kind."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.inbox.cli.commands import settings as run

    return common.run(run(Target(config, registry), user, kind, keeps, pushes, mail, json))


@inbox_app.command("stats", epilog="Example: muster inbox stats")
def stats(json: Json = False, registry: RegistryUrl = None, config: ConfigFile = None) -> int:
    """Show how many users, entries, broadcasts and waiting mails there are."""
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.inbox.cli.commands import stats as run

    return common.run(run(Target(config, registry), json))
