"""The ports of servers whose configured port is 0, kept from one start of an instance to the next: clients are told
them once.

Owns the file. A port that another process uses by now is replaced.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from muster_server.control.errors import UserError
from muster_server.plane.files import write_atomically

Bind = Callable[[str, str, int], tuple[str, int]]


class KeptPorts:
    """Call `bound` for each address, then `keep`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, int] = {}
        with contextlib.suppress(OSError, msgspec.MsgspecError):  # missing or damaged: new ports are chosen
            self._known = msgspec.json.decode(file.read_bytes(), type=dict[str, int])

    def bound(self, name: str, bind: Bind, key: str, host: str, port: int) -> tuple[str, int]:
        """Replace port 0 by the former port of this name, if it is free. Returns the address. Raises `UserError`."""
        former = self._known.get(name, 0) if not port else 0
        if former:
            with contextlib.suppress(UserError):
                return bind(key, host, former)
        found = bind(key, host, port)
        if not port:
            self._known[name] = found[1]
        return found

    def keep(self) -> None:
        """Write the ports to the file. Raises `OSError`."""
        write_atomically(self._file, msgspec.json.encode(self._known) + b"\n")
