"""Files that other processes read while this one writes them."""

import os
import tempfile
from pathlib import Path


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
