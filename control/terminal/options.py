"""Options that many subcommands share, and common mistakes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from muster_server.control.errors import USAGE, UserError

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file of the configuration [$MUSTER_CONFIG, ./muster.toml, …]."),
]
RegistryUrl = Annotated[
    str | None,
    typer.Option("--registry", metavar="URL", help="Use this registry instead of the local instance."),
]
NodeAddress = Annotated[
    str | None,
    typer.Option(
        "--node", metavar="HOST:PORT", help="Use the map of the node at this admin address, without a registry."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Svg = Annotated[bool, typer.Option("--svg", help="Print a picture on stdout, as SVG for light and dark pages.")]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Connect as an end client by muster://HOST:PORT/KEY?token=…; muster url prints it."
    ),
]
Gateways = Annotated[
    list[str] | None,
    typer.Option(
        "--gateway", metavar="HOST:PORT:KEY", help="Connect as an end client to this gateway; repeat it for more."
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token", metavar="TOKEN", help="Connect with this user's token. Other users of this machine can see it."
    ),
]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="Connect with the user's token in this file.")
]


def unused(given: Mapping[str, bool], without: str) -> None:
    """Raise `UserError` for a given flag that needs another one."""
    if flag := next((flag for flag, is_given in given.items() if is_given), None):
        raise UserError(f"{flag} needs {without}", USAGE)


def alone(svg: bool, others: Mapping[str, bool]) -> None:
    """Raise `UserError` for `--svg` beside another form of the output."""
    if svg and (flag := next((flag for flag, is_given in others.items() if is_given), None)):
        raise UserError(f"--svg excludes {flag}", USAGE)


def chance(flag: str, text: str | None) -> float | None:
    """Parse a probability: `0.02` or `2%`. Raises `UserError`."""
    if text is None:
        return None
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise UserError(f"{flag}: invalid probability {text!r} (use 0.02 or 2%)", USAGE) from None
