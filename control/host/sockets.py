"""Unix sockets in the instance's folder, for this user only, with paths of any length."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def address(folder: Path, name: str) -> Iterator[str]:
    """The socket's path through a descriptor of its folder: the kernel allows at most 107 bytes."""
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{name}"
    finally:
        os.close(directory)


@contextlib.contextmanager
def listen(folder: Path, name: str) -> Iterator[socket.socket]:
    """Bind the socket; the socket of a dead process is replaced."""
    (folder / name).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening, address(folder, name) as path:
        before = os.umask(0o177)
        try:
            listening.bind(path)
        finally:
            os.umask(before)
        try:
            yield listening
        finally:
            (folder / name).unlink(missing_ok=True)
