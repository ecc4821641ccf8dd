"""What one of each costs, by system: the shipped set, or one that `muster size --measure` wrote.

Owns the file. The costs of a system, with their defaults, are the `Costs` of its `size.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from muster_server.control.errors import UserError

SHIPPED = "AMD EPYC, 2 cores, Linux 6.18"
"""The machine of the default costs."""


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of costs. Systems that it leaves out have their shipped costs."""

    machine: str = SHIPPED
    measured: str = ""
    """Local time with the zone, ISO 8601; empty for the shipped set."""
    systems: Mapping[str, Mapping[str, float]] = {}
    """By the name of a system, each of its costs by name."""

    def of(self, system: str, kind: type[Any]) -> Any:
        """The costs of a system as its own type. Raises `UserError` for a name or value that it does not take."""
        try:
            return msgspec.convert(self.systems.get(system, {}), kind)
        except msgspec.ValidationError as error:
            raise UserError(f"costs of {system}: {error}") from None


def read(file: Path) -> Costs:
    """Read a file of costs. Raises `UserError`."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Costs)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise UserError(f"{file}: not a file of `muster size --measure`: {error}") from None


def write(file: Path, costs: Costs) -> None:
    """Write a file of costs. Raises `UserError`."""
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(costs), indent=2) + b"\n")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror or error}") from None
