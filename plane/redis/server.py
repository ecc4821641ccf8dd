"""A redis-server beside the nodes of `muster up`: its files.

Owns what every one of them is told. It must not know what is kept there.
"""

import secrets
from typing import Final

from muster_server.plane.files import write_atomically
from muster_server.plane.kind import Berth

SECRET: Final = "password"
"""The file with its password, in its folder."""
BINARY: Final = "redis-server"
INSTALL: Final = "apt-get install redis-server"


def prepare(berth: Berth, *lines: str) -> list[str]:
    """Write its file, with these lines of a system, and give its arguments."""
    secret = berth.folder / SECRET
    if not secret.exists():
        write_atomically(secret, f"{secrets.token_urlsafe(32)}\n".encode())
    told = [
        f"bind {berth.host}",
        f"port {berth.port}",
        "protected-mode yes",
        f"requirepass {secret.read_text(encoding='ascii').strip()}",
        f"dir {berth.folder}",
        "daemonize no",
        'save ""',
        "loglevel warning",
        *lines,
    ]
    file = berth.folder / "redis.conf"
    write_atomically(file, ("\n".join(told) + "\n").encode())
    return [str(file)]
