"""The ports of servers whose configured port is 0, from one start of an instance to the next: clients are told them once.

Owns the file. A port that another process has by now is not insisted on.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from muster_server.control.errors import UserError
from muster_server.plane.files import write_atomically

Bind = Callable[[str, str, int], tuple[str, int]]


class KeptPorts:
    """`bound` for each address, then `keep`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, int] = {}
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # none yet, or damaged: others are chosen
            self._known = msgspec.json.decode(file.read_bytes(), type=dict[str, int])

    def bound(self, name: str, bind: Bind, key: str, host: str, port: int) -> tuple[str, int]:
        """The address, port 0 replaced: by the former port of this name, if it is free. Raises `UserError`."""
        former = self._known.get(name, 0) if not port else 0
        if former:
            with contextlib.suppress(UserError):
                return bind(key, host, former)
        found = bind(key, host, port)
        if not port:
            self._known[name] = found[1]
        return found

    def keep(self) -> None:
        """Write them down. Raises `OSError`."""
        write_atomically(self._file, msgspec.json.encode(self._known) + b"\n")
