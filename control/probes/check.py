"""What one key's type cannot say of the section of probes."""

from collections.abc import Callable, Iterator, Sequence

from control.config.options import Config
from control.host.addresses import NO_ADDRESS, split_address

Path = tuple[str, ...]


def wrong(config: Config, roles: Sequence[str], stands: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Keys that are wrong, and what is."""
    ask: str = config.section("probes").ask
    if ask:
        try:
            split_address(ask)
        except ValueError:
            yield ("probes", "ask"), f"{ask!r} {NO_ADDRESS}"
