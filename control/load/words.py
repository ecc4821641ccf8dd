"""How a word of `muster load` becomes a run: alone, or leading other hosts."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from muster_server.control.errors import USAGE, UserError
from muster_server.control.load.claims import parse
from muster_server.control.load.drive import Run, drive
from muster_server.control.load.generator import Settings
from muster_server.control.load.hosts import Lead, join
from muster_server.control.terminal.found import Target
from muster_server.plane import systems

NO_LISTEN: Final = "--hosts needs --listen HOST:PORT, where the other hosts join"


async def run(
    system: str,
    settings: Settings,
    where: Target,
    claims: Sequence[str] | None,
    as_json: bool,
    html: Path | None,
    hosts: int,
    listen: str,
) -> int:
    """Run a load, and return its exit code. Raises `UserError`."""
    if (hosts > 1) != bool(listen):
        raise UserError(NO_LISTEN if hosts > 1 else "--listen needs --hosts", USAGE)
    wanted = Run(
        system=system,
        settings=settings,
        where=where,
        claims=[parse(text) for text in claims or ()],
        as_json=as_json,
        html=html,
    )
    if hosts == 1:
        return await drive(wanted)
    lead = Lead(hosts - 1, wanted.name, system, settings)
    await lead.listen(listen)
    try:
        return await drive(wanted, lead)
    finally:
        await lead.close()


async def join_run(where: str) -> int:
    """Join a run that another host leads, and return the exit code. Raises `UserError`."""
    return await join(where, known())


def known() -> Mapping[str, type[Settings]]:
    """The type of the settings of each system that has a load."""
    return {name: import_module(system.load).SETTINGS for name, system in systems.named().items() if system.load}
