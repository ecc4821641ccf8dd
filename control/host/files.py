"""Files of this user: files that are created once, and checks whether other users could read or write a file."""

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
    """The reason why another user may have written this file; empty if only this user and root could write it.

    Members of its group are trusted. Raises `OSError`.
    """
    if not {file.lstat().st_uid, file.stat().st_uid} <= _trusted():
        return "belongs to another user"
    return "any user can write it" if file.stat().st_mode & stat.S_IWOTH else ""


def _trusted() -> frozenset[int]:
    return frozenset({0, os.getuid()})


def absolute(file: str) -> Path:
    """Resolve `~`. Raises `ConfigError`."""
    try:
        return Path(file).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(f"{file!r}: unknown user's home; write the full path") from None


def open_to_all(files: Iterable[str]) -> list[str]:
    """Return the files that all users of this machine can read or write."""

    def is_open(file: str) -> bool:
        try:
            return bool(Path(file).stat().st_mode & 0o006)
        except OSError:  # the program that uses a missing file reports it
            return False

    return [file for file in files if is_open(file)]
