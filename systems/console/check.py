"""Checks of the section of the console beyond one key's type."""

import re
from collections.abc import Callable, Iterator, Sequence
from ipaddress import ip_address
from typing import Final

from muster_server.control.config.options import Config
from muster_server.systems.console.options import ConsoleOptions
from muster_server.systems.console.system import lacks

HEADER: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
Path = tuple[str, ...]


def wrong(config: Config, roles: Sequence[str], stands: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Wrong keys, with their mistakes."""
    options: ConsoleOptions = config.section("console")
    named = {each.strip() for each in config.systems.enabled.split(",")}
    if "console" in named and (text := lacks(config.section)):
        yield ("systems", "enabled"), text
    if options.users:
        from muster_server.systems.console.users import users  # imports a library for hashes

        try:
            users(options.users)
        except ValueError as error:
            yield ("console", "users"), str(error)
    if options.proxy_role not in {"", "viewer", "operator"}:
        yield (
            ("console", "proxy_role"),
            f"invalid role {options.proxy_role!r:.40} (expected viewer, operator, or empty)",
        )
    if options.proxy_header and not HEADER.fullmatch(options.proxy_header):
        yield (
            ("console", "proxy_header"),
            f"invalid header {options.proxy_header!r:.80} (expected for example X-Forwarded-User)",
        )
    for address in options.proxy_addresses:
        try:
            ip_address(address)
        except ValueError:
            yield ("console", "proxy_addresses"), f"{address!r:.80} is not an IP address"
