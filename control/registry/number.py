"""The number and the last epoch of a `muster serve` node, in its folder, in case the registry loses everything.

Owns the file. `control/registry/identities.py` decides which number and epoch a node takes.
"""

import asyncio
from pathlib import Path

import structlog

from muster_server.control.registry.places import Identity, Wrong, encode, read_identity
from muster_server.plane.files import write_atomically
from muster_server.plane.spec import SpecError


class NumberFile:
    """The file of one node."""

    def __init__(self, file: Path, log: structlog.typing.FilteringBoundLogger) -> None:
        self._file, self._log = file, log

    def read(self) -> Identity | None:
        """Read the last number and epoch; None if the file is missing. Raises `SpecError`."""
        try:
            return read_identity(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SpecError(f"{self._file}: cannot be read: {error.strerror}") from None
        except Wrong as wrong:
            raise SpecError(
                f"{self._file}: invalid number and epoch: {wrong}; delete the file if the registry knows this node"
            ) from None

    async def write(self, identity: Identity) -> None:
        """Replace the file. On failure the node continues to serve, and logs it."""
        try:
            await asyncio.to_thread(write_atomically, self._file, encode(identity))
        except OSError as error:
            self._log.warning("cannot store the node's number", file=str(self._file), error=error.strerror)
