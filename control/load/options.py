"""Options shared by the words of `muster load`, and the run that they describe."""

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from muster_server.control.errors import USAGE, UserError

For = Annotated[str, typer.Option("--for", metavar="TIME", help="Length of the schedule: 60s, 5m, 1h.")]
Ramp = Annotated[str, typer.Option("--ramp", metavar="TIME", help="First part of it, in which the rate rises from 0.")]
Rate = Annotated[
    float, typer.Option("--rate", min=0.1, max=10_000_000.0, help="Messages or requests a second, of all hosts.")
]
Assert = Annotated[
    list[str] | None,
    typer.Option(
        "--assert", metavar="CLAIM", help="Exit with 1 unless it holds: p99<50ms, lost=0; repeat it for more."
    ),
]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the report as one page with curves.")]
Hosts = Annotated[int, typer.Option("--hosts", min=1, max=65, help="Machines that drive the load, this one included.")]
Listen = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="With --hosts: where the others join this one.")
]
Owned = Annotated[
    bool,
    typer.Option(
        "--i-own-this-target", help="Load servers on other machines. A load can stop a server for all its users."
    ),
]
TIME: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
SECONDS: Final = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3_600.0}
FOR_MAX_S: Final = 24 * 3_600.0


def seconds(flag: str, text: str) -> float:
    """A time in seconds. Raises `UserError`."""
    found = TIME.fullmatch(text.strip())
    value = float(found[1]) * SECONDS[found[2] or ""] if found else -1.0
    if not 0.0 <= value <= FOR_MAX_S:
        raise UserError(f"{flag}: invalid time {text!r} (expected for example 90s, 5m or 1h, at most 24h)", USAGE)
    return value


def schedule(for_: str, ramp: str) -> tuple[float, float]:
    """The length and the ramp of a schedule in seconds. Raises `UserError`."""
    length, rise = seconds("--for", for_), seconds("--ramp", ramp)
    if length < 1.0:
        raise UserError("--for: a run takes at least 1s", USAGE)
    if rise > length:
        raise UserError(f"--ramp {ramp} is longer than --for {for_}", USAGE)
    return length, rise
