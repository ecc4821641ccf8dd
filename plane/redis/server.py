"""A redis-server beside the nodes of `muster up`: its files.

Owns the settings that every one of them has. It must not know what is stored there.
"""

import secrets
from typing import Final

from muster_server.plane.files import write_atomically
from muster_server.plane.kind import Launch

SECRET: Final = "password"
"""Name of the file with its password, in its folder."""
BINARY: Final = "redis-server"
INSTALL: Final = "apt-get install redis-server"


def prepare(launch: Launch, *lines: str) -> list[str]:
    """Write its configuration, including these lines of a system, and return its arguments."""
    secret = launch.folder / SECRET
    if not secret.exists():
        write_atomically(secret, f"{secrets.token_urlsafe(32)}\n".encode())
    told = [
        f"bind {launch.host}",
        f"port {launch.port}",
        "protected-mode yes",
        f"requirepass {secret.read_text(encoding='ascii').strip()}",
        f"dir {launch.folder}",
        "daemonize no",
        'save ""',
        "loglevel warning",
        *lines,
    ]
    file = launch.folder / "redis.conf"
    write_atomically(file, ("\n".join(told) + "\n").encode())
    return [str(file)]
