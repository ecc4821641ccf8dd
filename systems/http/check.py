"""Checks of the section of the HTTP face beyond one key's type."""

from collections.abc import Callable, Iterator, Sequence

from muster_server.control.config.options import Config
from muster_server.systems.http.system import lacks

Path = tuple[str, ...]


def wrong(config: Config, roles: Sequence[str], stands: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Wrong keys, with their mistakes."""
    if config.runs("http") and (text := lacks(config.section)):
        yield ("systems", "enabled"), text
