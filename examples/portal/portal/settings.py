"""The settings of a process of the portal: addresses, keys and secrets, in one file that only its owner can read."""

import os
from pathlib import Path
from typing import Final

import msgspec

VARIABLE: Final = "PORTAL_SETTINGS"
"""Name of the environment variable that holds the path of the file."""


class Settings(msgspec.Struct, frozen=True):
    """The content of the file, which `python -m portal` writes."""

    folder: str
    """Where the database and the mails are."""
    instance: str
    """Folder of the running instance of Muster."""
    origins: tuple[str, ...]
    """Addresses of the web servers, as browsers see them."""
    http_url: str
    edge_url: str
    redis_url: str
    key: str
    """API key for the HTTP face."""
    check_secret: str
    """Signs check-backs of transactional messages of the portal's database."""
    form_secret: str
    """Signs the tokens of forms."""

    def token_secret(self) -> str:
        """Signs the tokens of pages; read each time, as an operator may replace it."""
        return Path(self.instance, "jwt.secret").read_text().split()[0]

    @property
    def database_url(self) -> str:
        """The database of accounts and shares."""
        return f"sqlite+aiosqlite:///{self.folder}/portal.db"

    @property
    def ledger_url(self) -> str:
        """The database of credits and payments."""
        return f"sqlite+aiosqlite:///{self.folder}/ledger.db"

    @property
    def mail_folder(self) -> Path:
        """The sink of mails and texts."""
        return Path(self.folder) / "mail"


def load() -> Settings:
    """Read the file. Raises `KeyError`, `OSError`, `msgspec.MsgspecError`."""
    return msgspec.json.decode(Path(os.environ[VARIABLE]).read_bytes(), type=Settings)


def save(settings: Settings, path: Path) -> None:
    """Write the file for its owner alone."""
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(settings)))
