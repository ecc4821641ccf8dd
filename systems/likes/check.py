"""Checks of the section of likes beyond one key's type."""

from collections.abc import Callable, Iterator, Sequence

from muster_server.control.config.options import Config
from muster_server.systems.likes.options import SQLITE, LikesOptions

Path = tuple[str, ...]


def wrong(config: Config, roles: Sequence[str], stands: Callable[[Path], bool]) -> Iterator[tuple[Path, str]]:
    """Wrong keys, and their mistakes. `stands` returns whether a key was given."""
    likes: LikesOptions = config.section("likes")
    if text := _database(likes.database):
        yield ("likes", "database"), text
    if likes.tls_key_file and not likes.tls_cert_file:
        yield ("likes", "tls_key_file"), "a key needs its certificate; set likes.tls_cert_file"
    if likes.redis and not likes.redis.startswith(("redis://", "rediss://")):
        yield ("likes", "redis"), f"invalid URL {likes.redis!r} (expected redis://HOST:PORT/DB)"


def _database(url: str) -> str | None:
    """Return the mistake in the database's URL, or None."""
    if url in {"", SQLITE}:
        return None
    from muster_server.plane.database.url import mistake  # imports SQLAlchemy, only here

    return mistake(url, "likes.database_password_file")
