"""The subcommands of the HTTP face: `muster key create | ls | revoke`."""

from pathlib import Path
from typing import Annotated, Final

import typer

from muster_server.control.terminal.options import ConfigFile, Json

key_app: Final = typer.Typer(
    help="Create, list and revoke API keys of the HTTP face.",
    epilog="Example: muster key create web --scope 'publish:sports:*'",
    no_args_is_help=True,
)
KeysFile = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="File of the keys [http.keys_file, or the local instance's]."),
]


def add(app: typer.Typer) -> None:
    """Add the subcommands to the command."""
    app.add_typer(key_app, name="key")


@key_app.command("create", epilog="Example: muster key create web --scope 'publish:sports:*' --scope 'read:*'")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Unique name of the key.")],
    scope: Annotated[
        list[str],
        typer.Option("--scope", metavar="ACTION:ROOMS", help="An action and a pattern of rooms; repeat it for more."),
    ],
    json: Json = False,
    file: KeysFile = None,
    config: ConfigFile = None,
) -> int:
    """Create a key and print it once. Running faces accept it within two seconds."""
    from muster_server.systems.http.cli.commands import create as run
    from muster_server.systems.http.cli.commands import file_of

    return run(file_of(config, file), name, scope, json)


@key_app.command("ls", epilog="Example: muster key ls --json")
def ls(json: Json = False, file: KeysFile = None, config: ConfigFile = None) -> int:
    """List the keys, without their secrets."""
    from muster_server.systems.http.cli.commands import file_of
    from muster_server.systems.http.cli.commands import ls as run

    return run(file_of(config, file), json)


@key_app.command("revoke", epilog="Example: muster key revoke web")
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Name or id of the key.")],
    file: KeysFile = None,
    config: ConfigFile = None,
) -> int:
    """Revoke a key. Running faces refuse it within two seconds."""
    from muster_server.systems.http.cli.commands import file_of
    from muster_server.systems.http.cli.commands import revoke as run

    return run(file_of(config, file), key)
