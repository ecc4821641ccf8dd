"""Checks of the section of probes beyond one key's type."""

from collections.abc import Callable, Iterator, Sequence

from muster_server.control.config.options import Config
from muster_server.control.host.addresses import NO_ADDRESS, split_address

Path = tuple[str, ...]


def wrong(config: Config, roles: Sequence[str], stands: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Wrong keys, and their mistakes."""
    ask: str = config.section("probes").ask
    if ask:
        try:
            split_address(ask)
        except ValueError:
            yield ("probes", "ask"), f"{ask!r} {NO_ADDRESS}"
