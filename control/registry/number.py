"""The number and the last epoch of a `muster serve` node, in its folder: for a registry that lost everything.

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
        """Read the last number and epoch; None if there is none. Raises `SpecError`."""
        try:
            return read_identity(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SpecError(f"{self._file}: cannot be read: {error.strerror}") from None
        except Wrong as wrong:
            raise SpecError(
                f"{self._file}: no number and epoch: {wrong}; delete it if the registry knows this node"
            ) from None

    async def write(self, identity: Identity) -> None:
        """Replace it. If that fails the node serves on, and logs it."""
        try:
            await asyncio.to_thread(write_atomically, self._file, encode(identity))
        except OSError as error:
            self._log.warning("the node's number cannot be kept", file=str(self._file), error=error.strerror)
