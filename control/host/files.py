"""Files of this user: those made once, and those that others could read or write."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from muster_server.control.errors import ConfigError
from muster_server.plane.files import write_atomically


def create_once(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Write `file` unless it exists already."""
    if not file.exists():
        write_atomically(file, content, mode)


def foreign(file: Path) -> str:
    """The reason why this file may say what another user wants; empty if only this user and root could write it.

    Members of its group are trusted. Raises `OSError`.
    """
    if not {file.lstat().st_uid, file.stat().st_uid} <= _trusted():
        return "belongs to another user"
    return "any user may write it" if file.stat().st_mode & stat.S_IWOTH else ""


def _trusted() -> frozenset[int]:
    return frozenset({0, os.getuid()})


def absolute(file: str) -> Path:
    """Resolve `~`. Raises `ConfigError`."""
    try:
        return Path(file).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(f"{file!r}: no user has this home; write the whole path") from None


def open_to_all(files: Iterable[str]) -> list[str]:
    """Return the files that everybody on this machine may read or write."""

    def is_open(file: str) -> bool:
        try:
            return bool(Path(file).stat().st_mode & 0o006)
        except OSError:  # the user of a missing file reports it
            return False

    return [file for file in files if is_open(file)]
