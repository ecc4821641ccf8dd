"""The options that many words of the command share, and the mistakes that many can make."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from control.errors import USAGE, UserError

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The TOML file [$MUSTER_CONFIG, ./muster.toml, …].")
]
Elsewhere = Annotated[
    str | None,
    typer.Option(
        "--registry", metavar="URL", help="Of the nodes of muster serve that register there, wherever they are."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


def unused(given: Mapping[str, bool], without: str) -> None:
    """Raise `UserError` for a flag that is given and means nothing without another one."""
    if flag := next((flag for flag, is_given in given.items() if is_given), None):
        raise UserError(f"{flag}: means nothing without {without}", USAGE)
