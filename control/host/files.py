"""Files that others read while this process writes them, or that nobody else may read."""

import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from control.errors import ConfigError


def write_atomically(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace `file` as a whole: a reader sees the old content or the new, also after a crash.

    Raises `OSError` with the file's name.
    """
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(file)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # for example a full disk
            error.filename = str(file)
        raise


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
