"""Unix sockets in a private folder, for this user only, with paths of any length."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def address(file: Path) -> Iterator[str]:
    """The socket's path through a descriptor of its folder: the kernel allows at most 107 bytes."""
    directory = os.open(file.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{file.name}"
    finally:
        os.close(directory)


@contextlib.contextmanager
def listen(file: Path) -> Iterator[socket.socket]:
    """Bind the socket; the socket of a dead process is replaced."""
    file.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening, address(file) as path:
        before = os.umask(0o177)
        try:
            listening.bind(path)
        finally:
            os.umask(before)
        try:
            yield listening
        finally:
            file.unlink(missing_ok=True)
