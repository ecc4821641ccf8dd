"""What one key's type cannot say of the section of the HTTP face."""

from collections.abc import Callable, Iterator, Sequence

from control.config.options import Config
from control.http.system import lacks

Path = tuple[str, ...]


def wrong(config: Config, roles: Sequence[str], stands: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Keys that are wrong, and what is."""
    if config.runs("http") and (text := lacks(config.section)):
        yield ("systems", "enabled"), text
