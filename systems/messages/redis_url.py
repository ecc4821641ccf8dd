"""The forms of the URL of a Redis. It must not know the library, which only a center with a Redis imports."""

from typing import Final
from urllib.parse import urlsplit

from muster.redis.where import PORT, places

FORM: Final = (
    "redis://[USER@]HOST:PORT[/DB], rediss://…, redis+sentinel://HOST:PORT[,HOST:PORT…]/MASTER[/DB] or "
    "redis+cluster://HOST:PORT[,HOST:PORT…]"
)
WORDS: Final = {"redis": 1, "rediss": 1, "redis+sentinel": 2, "redis+cluster": 0}
"""Limit of parts of a path, by scheme."""


def mistake(url: str) -> str | None:
    """The mistake in a URL; None: it is valid."""
    wrong = f"{url!r} is not {FORM}"
    try:
        parts = urlsplit(url)
        servers = places(parts.netloc.rpartition("@")[2].split(","), PORT)
    except ValueError:
        return wrong
    words = [word for word in parts.path.split("/") if word]
    named = all(host for host, _ in servers) and ("+" in parts.scheme or len(servers) == 1)
    if not named or parts.scheme not in WORDS or len(words) > WORDS[parts.scheme] or parts.query:
        return wrong
    if parts.scheme == "redis+sentinel" and not words:
        return f"{url!r} names no master (expected {FORM})"
    database = words[-1] if len(words) == WORDS[parts.scheme] and words else "0"
    if not database.isdecimal():
        return wrong
    if parts.password:
        return "the URL must not contain a password; put it into center.schedule_password_file"
    return None
