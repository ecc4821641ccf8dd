"""The systems of this process, by name. `systems/listed.py` registers them before anything else reads them."""

import sys
from collections.abc import Iterable, Mapping
from typing import Final

from muster_server.plane import kinds
from muster_server.plane.kind import Action, System

MORE: Final = "MUSTER_SYSTEMS"
"""The environment variable with packages of further systems, separated by commas: each has a module `system` with a
`SYSTEM`."""
_KNOWN: Final[dict[str, System]] = {}
_PROGRAMS: Final[dict[str, str]] = {}


def register(found: Iterable[System], node: str) -> None:
    """Add systems and their roles. `node` is the module that runs a node of them, for `python -m`.

    Raises `ValueError` if two roles share a name, a section or a node number.
    """
    for system in found:
        kinds.know(system)
        _KNOWN[system.name] = system
    _PROGRAMS["node"] = node


def named() -> Mapping[str, System]:
    """All systems by name, in the order of the list. Raises `RuntimeError` before they are registered."""
    if not _KNOWN:
        raise RuntimeError("the list of systems was read before all systems were registered")
    return _KNOWN


def actions() -> dict[str, Action]:
    """What scopes of API keys can allow, by name."""
    return {action.name: action for system in named().values() for action in system.actions}


def node_command() -> tuple[str, ...]:
    """The command that runs a node."""
    return (sys.executable, "-m", _PROGRAMS["node"])
