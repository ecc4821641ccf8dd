"""The settings of a process of the portal: addresses, keys and secrets, in one file that only its owner can read."""

import os
from pathlib import Path
from typing import Final

import msgspec

VARIABLE: Final = "PORTAL_SETTINGS"
"""Name of the environment variable that holds the path of the file."""

DRIVERS: Final = {
    "sqlite": "sqlite+aiosqlite",
    "mysql": "mysql+asyncmy",
    "mariadb": "mysql+asyncmy",
    "postgresql": "postgresql+asyncpg",
}


class Settings(msgspec.Struct, frozen=True):
    """The content of the file, which `python -m portal` writes."""

    folder: str
    """Where the database and the mails are."""
    instance: str
    """Folder of the running instance of Muster."""
    origins: tuple[str, ...]
    """Addresses of the portal as browsers see them; a form must come from one of them."""
    servers: tuple[str, ...]
    """Addresses of the web servers; without a front they are the same."""
    http_url: str
    edge_url: str
    redis_url: str
    key: str
    """API key for the HTTP face."""
    check_secret: str
    """Signs check-backs of transactional messages of the portal's database."""
    form_secret: str
    """Signs the tokens of forms."""
    database_url: str
    """The database of accounts and shares, with its driver."""
    ledger_url: str
    """The database of credits and payments."""
    replica_urls: tuple[str, ...] = ()
    """Copies of the first one, for reads."""
    fronts: tuple[str, ...] = ()
    """Addresses of proxies in front of the web servers: only they may say for whom they ask."""

    def token_secret(self) -> str:
        """Signs the tokens of pages; read each time, as an operator may replace it."""
        return Path(self.instance, "jwt.secret").read_text().split()[0]

    @property
    def mail_folder(self) -> Path:
        """The sink of mails and texts."""
        return Path(self.folder) / "mail"


def driven(url: str) -> str:
    """The URL of a database with the driver that the portal uses. Raises `ValueError`."""
    scheme, colon, rest = url.partition("://")
    if scheme.partition("+")[0] not in DRIVERS or not rest:
        raise ValueError("not a URL of a database (expected sqlite:///PATH, mysql://… or postgresql://…)")
    return f"{DRIVERS[scheme.partition('+')[0]]}{colon}{rest}"


def load() -> Settings:
    """Read the file. Raises `KeyError`, `OSError`, `msgspec.MsgspecError`."""
    return msgspec.json.decode(Path(os.environ[VARIABLE]).read_bytes(), type=Settings)


def save(settings: Settings, path: Path) -> None:
    """Write the file for its owner alone."""
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(settings)))
