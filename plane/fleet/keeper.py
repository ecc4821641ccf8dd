"""redis-server's files: what keeps sessions of an installation that has no Redis. `muster up` runs it beside its nodes.

Owns what it is told. It must not know what is kept there.
"""

import secrets
from typing import Any, Final

from plane.fleet.broker import write
from plane.kind import Berth, Program

NAME: Final = "redis"
SECRET: Final = "password"
"""The file with its password."""
BYTES_MAX: Final = "512mb"  # a session has about 0.4 kB, an event 0.2 kB


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
        "appendonly yes",
        "appendfsync everysec",
        f"maxmemory {BYTES_MAX}",
        "maxmemory-policy volatile-ttl",
        "loglevel warning",
    ]
    file = berth.folder / "redis.conf"
    write(file, "\n".join(lines) + "\n")
    return [str(file)]


def _wanted(section: Any) -> bool:
    return not section("fleet").redis


def _bind(_: Any) -> str:
    return "127.0.0.1:0"


PROGRAM: Final = Program(
    name=NAME,
    about="sessions of the fleet are kept there",
    binary="redis-server",
    mend="to mend: apt-get install redis-server, name a Redis: fleet.redis = redis://HOST:PORT/0, or do without: none",
    wanted=_wanted,
    bind=_bind,
    prepare="plane.fleet.keeper:prepare",
)
