"""Files that others read while we write them, or that nobody else may read."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from control.errors import ConfigError


def write_atomically(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace `file` as a whole: a reader sees the old content or the new, also after a crash.

    Raises `OSError` with the name of a file.
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
        if isinstance(error, OSError) and error.filename is None:  # as where the disk is full
            error.filename = str(file)
        raise


def create_once(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Write `file` unless it is there already."""
    if not file.exists():
        write_atomically(file, content, mode)


def absolute(file: str) -> Path:
    """As it was written, `~` being somebody's home. Raises `ConfigError`."""
    try:
        return Path(file).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(f"{file!r}: no user has this home; write the whole path") from None


def open_to_all(files: Iterable[str]) -> list[str]:
    """Those that everybody on this machine may read or write."""

    def is_open(file: str) -> bool:
        try:
            return bool(Path(file).stat().st_mode & 0o006)
        except OSError:  # whoever needs it says what is wrong
            return False

    return [file for file in files if is_open(file)]
