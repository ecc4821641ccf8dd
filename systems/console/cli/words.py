"""The subcommands of the console: `muster console login | user | audit`."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl

console_app: Final = typer.Typer(
    help="Log in to the web console, and show its audit log.",
    epilog="Example: muster console login",
    no_args_is_help=True,
)


class RoleName(StrEnum):
    """The roles of users."""

    viewer = "viewer"
    operator = "operator"


Role = Annotated[RoleName, typer.Option("--role", help="viewer: sees all; operator: also acts.")]


def add(app: typer.Typer) -> None:
    """Add the subcommands to the command."""
    app.add_typer(console_app, name="console")


@console_app.command("login", epilog="Example: muster console login --role viewer")
def login(
    role: Role = RoleName.operator,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the node of muster serve [HOST-console].")
    ] = None,
    json: Json = False,
    registry: RegistryUrl = None,
    config: ConfigFile = None,
) -> int:
    """Print a URL of this machine's console that logs in once, within `console.login_s`.

    For a node of muster serve, give the node's configuration; the user must be able to write the node's folder.
    """
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target
    from muster_server.systems.console.cli.commands import login as run

    return common.run(run(Target(config, registry), name, role.value, json))


@console_app.command("user", epilog="Example: muster console user ann --role operator")
def user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user: letters, digits and ._@-")],
    role: Role = RoleName.viewer,
) -> int:
    """Ask for a password, and print the user's line for `console.users`. The password is read from stdin."""
    from muster_server.systems.console.cli.commands import user as run

    return run(name, role.value)


@console_app.command("audit", epilog="Example: muster console audit --search 'DELETE'")
def audit(
    search: Annotated[str, typer.Option("--search", metavar="TEXT", help="Show actions that contain this text.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Number of actions to show.")] = 100,
    json: Json = False,
    config: ConfigFile = None,
) -> int:
    """Show who did what in the console, the newest action first."""
    from muster_server.systems.console.cli.commands import audit as run

    return run(config, search, limit, json)
