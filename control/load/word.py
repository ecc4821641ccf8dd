"""The words of `muster load`: a system gives its own options and its load, this file all options that every word has.

Owns these options, and the way from a word to a run.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from muster_server.control.load.options import Assert, For, Hosts, Html, Listen, Owned, Ramp, Rate, schedule
from muster_server.control.terminal.options import ConfigFile, Json, RegistryUrl

if TYPE_CHECKING:
    from muster_server.control.load.generator import Settings
    from muster_server.control.terminal.found import Target

USUAL: Final[Mapping[str, tuple[Any, Any]]] = {
    "for_": (For, "60s"),
    "ramp": (Ramp, "0s"),
    "assert_": (Assert, None),
    "html": (Html, None),
    "hosts": (Hosts, 1),
    "listen": (Listen, ""),
    "owned": (Owned, False),
    "json": (Json, False),
    "registry": (RegistryUrl, None),
    "config": (ConfigFile, None),
}
"""The options of every word beside `--rate`, with their defaults."""


@dataclass(slots=True, kw_only=True)
class Wanted:
    """The values of the options of every word. A word whose own options name the servers sets `where`."""

    rate: float
    for_s: float
    ramp_s: float
    owned: bool
    where: "Target"

    def check(self, system: str, hosts: Sequence[str]) -> None:
        """Refuse servers on other machines unless their owner says so. Raises `UserError`."""
        from muster_server.control.load.drive import check_target

        check_target(system, hosts, self.owned)


Make = Callable[..., Awaitable["Settings"]]
"""`async (wanted, **own options) -> the load`. Its docstring is the help of the word. Raises `UserError`."""


def add(app: typer.Typer, system: str, make: Make, *, rate: float, example: str) -> None:
    """Add the word `system` to `muster load`. `rate`: the default of `--rate`."""
    options = [each for each in inspect.signature(make).parameters.values() if each.name != "wanted"]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for name, (annotation, default) in {"rate": (Rate, rate), **USUAL}.items():
        options.append(inspect.Parameter(name, kind, default=default, annotation=annotation))

    def word(**given: Any) -> int:
        usual = {name: given.pop(name) for name in ("rate", *USUAL)}
        return _run(system, make, given, usual)

    word.__doc__ = make.__doc__
    word.__annotations__ = {each.name: each.annotation for each in options} | {"return": int}
    word.__signature__ = inspect.Signature(options, return_annotation=int)  # type: ignore[attr-defined]
    app.command(system, epilog=f"Example: {example}")(word)


def _run(system: str, make: Make, own: Mapping[str, Any], usual: Mapping[str, Any]) -> int:
    from muster_server.control.load.words import run
    from muster_server.control.terminal import common
    from muster_server.control.terminal.found import Target

    html: Path | None = usual["html"]
    for_s, ramp_s = schedule(usual["for_"], usual["ramp"])
    target = Target(usual["config"], usual["registry"])
    wanted = Wanted(rate=usual["rate"], for_s=for_s, ramp_s=ramp_s, owned=usual["owned"], where=target)

    async def work() -> int:
        load = await make(wanted, **own)
        return await run(
            system, load, wanted.where, usual["assert_"], usual["json"], html, usual["hosts"], usual["listen"]
        )

    return common.run(work())
