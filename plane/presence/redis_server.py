"""The redis-servers of `muster up`: one for each site, with nothing on disk.

Owns what they are told. Must not know what is kept there. A store that comes back empty is written anew from its writers,
so a copy on disk would only be an older one.
"""

import os
import secrets
from pathlib import Path
from typing import Any, Final

from plane.kind import Berth, Program
from plane.presence.options import PROGRAM, SECRET, SITES_MAX

BYTES_MAX: Final = "2gb"  # a million users with one device take 36 MB


def prepare(berth: Berth) -> list[str]:
    """Write its file, and give its arguments."""
    secret = berth.folder / SECRET
    if not secret.exists():
        write(secret, secrets.token_urlsafe(32) + "\n")
    lines = [
        f"bind {berth.host}",
        f"port {berth.port}",
        "protected-mode yes",
        f"requirepass {secret.read_text(encoding='ascii').strip()}",
        f"dir {berth.folder}",
        "daemonize no",
        'save ""',
        "appendonly no",
        f"maxmemory {BYTES_MAX}",
        "maxmemory-policy noeviction",
        "hash-max-listpack-entries 512",
        "hash-max-listpack-value 256",
        "loglevel warning",
    ]
    file = berth.folder / "redis.conf"
    write(file, "\n".join(lines) + "\n")
    return [str(file)]


def write(file: Path, text: str) -> None:
    """Write a file that nobody else may read."""
    part = file.with_suffix(".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as opened:
        opened.write(text)
    part.replace(file)


def _program(site: int) -> Program:
    def wanted(section: Any) -> bool:
        presence = section("presence")
        return not presence.redis and site <= presence.sites

    return Program(
        name=PROGRAM.format(site),
        about=f"the store of presence of site {site}",
        binary="redis-server",
        mend="to mend: apt-get install redis-server, or name stores: presence.redis = redis://HOST:PORT/0,…",
        wanted=wanted,
        bind=lambda section: "127.0.0.1:0",
        prepare="plane.presence.redis_server:prepare",
    )


PROGRAMS: Final = tuple(_program(site) for site in range(1, SITES_MAX + 1))
