"""Options shared by many words of the command, and common mistakes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from control.errors import USAGE, UserError

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The TOML file [$MUSTER_CONFIG, ./muster.toml, …].")
]
RegistryUrl = Annotated[
    str | None,
    typer.Option("--registry", metavar="URL", help="Use this registry instead of the local instance."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def unused(given: Mapping[str, bool], without: str) -> None:
    """Raise `UserError` for a given flag that needs another one."""
    if flag := next((flag for flag, is_given in given.items() if is_given), None):
        raise UserError(f"{flag} needs {without}", USAGE)
