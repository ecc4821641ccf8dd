"""Checks of the section of the edge beyond one key's type."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from muster_server.control.config.options import Config
from muster_server.systems.edge.options import EdgeOptions

ORIGIN: Final = re.compile(r"\*|https?://[^/\s*]*\*?[^/\s*]+")

Path = tuple[str, ...]


def wrong(config: Config, roles: Sequence[str], stands: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Wrong keys, with the mistake."""
    options: EdgeOptions = config.section("edge")
    for origin in options.origins:
        if not ORIGIN.fullmatch(origin):
            yield ("edge", "origins"), f"{origin!r} is no origin; write it as https://example.com, without a path"
    if bool(options.tls_cert_file) != bool(options.tls_key_file):
        name = "tls_key_file" if options.tls_cert_file else "tls_cert_file"
        yield ("edge", name), "missing; TLS needs both a certificate and its key"
    if options.pong_ms >= options.ping_ms:
        name = "pong_ms" if stands(("edge", "pong_ms")) else "ping_ms"
        yield ("edge", name), f"a pong is awaited for {options.pong_ms} ms, and pings come each {options.ping_ms} ms"
