"""Checks of the section of presence beyond one key's type."""

from collections.abc import Callable, Iterator, Sequence

from muster_server.control.config.options import Config
from muster_server.plane.log.place import parse
from muster_server.systems.presence.options import Presence, shards, stores

Path = tuple[str, ...]


def wrong(config: Config, roles: Sequence[str], stands: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Wrong keys, and their mistakes. `stands` returns whether a key was given."""
    presence: Presence = config.section("presence")
    for name, read in (("writers", shards), ("redis", stores)):
        try:
            read(presence)
        except ValueError as error:
            yield ("presence", name), str(error).partition(": ")[2]
    if presence.log:
        try:
            parse(presence.log)
        except ValueError as error:
            yield ("presence", "log"), str(error)
    if presence.site > presence.sites:
        yield ("presence", "site"), f"site {presence.site} exceeds the number of sites, {presence.sites}"
