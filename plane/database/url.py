"""The database's URL, as users write it. No output contains its password."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Final, Literal

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

Kind = Literal["sqlite", "mysql", "postgresql"]

FORMS: Final = "sqlite:///PATH, mysql://USER:PASSWORD@HOST:PORT/NAME or postgresql://USER:PASSWORD@HOST:PORT/NAME"
_KINDS: Final[Mapping[str, Kind]] = {
    "sqlite": "sqlite",
    "mysql": "mysql",
    "mariadb": "mysql",
    "postgresql": "postgresql",
    "postgres": "postgresql",
}
_DRIVERS: Final[Mapping[Kind, str]] = {
    "sqlite": "sqlite+aiosqlite",
    "mysql": "mysql+asyncmy",
    "postgresql": "postgresql+asyncpg",
}


@dataclass(frozen=True, slots=True)
class Location:
    """The URL of a database."""

    kind: Kind
    url: URL = field(repr=False)

    def __str__(self) -> str:
        """The URL without its password."""
        url = self.url.set(drivername=self.kind)
        return url.render_as_string(hide_password=True)

    @property
    def shown(self) -> str:
        """The name in replies, logs and errors: a server by its kind, a file by its path."""
        return str(self) if self.kind == "sqlite" else self.kind

    @property
    def words(self) -> tuple[str | None, ...]:
        """The parts of the URL that no error shows."""
        return self.url.username, self.url.host, self.url.database if self.kind != "sqlite" else None

    def identified(self, password: str) -> "Location":
        """The same URL with this password."""
        return Location(self.kind, self.url.set(password=password))

    @property
    def password(self) -> str | None:
        """A password that no output shows."""
        return self.url.password


def driver(where: Location) -> str:
    """The module of the URL's driver."""
    return _DRIVERS[where.kind].partition("+")[2]


def location(text: str) -> Location:
    """Parse a URL. Raises `ValueError` with the mistake, in one line, without the password."""
    shown = re.sub(r"(?<=://)([^/@:]*):[^@]*@", r"\1:***@", text)
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ValueError(f"{shown!r} is not {FORMS}") from None
    kind = _KINDS.get(url.drivername)
    if kind is None:
        raise ValueError(f"{shown!r} is not {FORMS}")
    if url.query:
        raise ValueError(f"{shown!r}: unsupported options ({', '.join(sorted(url.query))}); remove them")
    if not url.database or url.database == ":memory:":
        raise ValueError(f"{shown!r} names no {'file' if kind == 'sqlite' else 'database'}")
    if kind == "sqlite" and (url.host or url.username):
        raise ValueError(f"{shown!r}: a SQLite URL has no host; write an absolute path as sqlite:////PATH")
    if kind != "sqlite" and not url.host:
        raise ValueError(f"{shown!r}: missing host")
    return Location(kind, url.set(drivername=_DRIVERS[kind]))


def mistake(text: str, password_key: str) -> str | None:
    """Return the mistake in a URL of the configuration, or None. `password_key` names the key of the password's file."""
    try:
        where = location(text)
    except ValueError as error:
        return str(error)
    if find_spec(driver(where)) is None:
        return f"{driver(where)} is not installed; to mend: pip install 'muster-server[database]'"
    return None if where.password is None else f"the URL must not contain a password; put it into {password_key}"
