"""The roles of this process. `systems/listed.py` registers their systems before anything else reads them."""

import functools
from collections.abc import Mapping
from typing import Any, Final

from muster_server.plane.kind import RoleKind, System

_KNOWN: Final[dict[str, RoleKind[Any, Any]]] = {}
_SYSTEMS: Final[dict[str, str]] = {}
_COMMAND_KEYS: Final[list[str]] = []


def know(system: System) -> None:
    """Add the roles of a system. Raises `ValueError` if two share a name, a section or a node number."""
    for new in system.kinds:
        for old in _KNOWN.values():
            if new.name == old.name or new.key == old.key or _meet(new.numbers, old.numbers):
                raise ValueError(f"roles {old.name} and {new.name} share a name, a section or a node number")
        _KNOWN[new.name] = new
        _SYSTEMS[new.name] = system.name
    _COMMAND_KEYS.extend(system.command_keys)
    for derived in (linked, peers, partitioned, clustered, doors):
        derived.cache_clear()


def _meet(one: range, other: range) -> bool:
    """Whether two ranges have a number in common."""
    if one.step == other.step and one.start % one.step != other.start % other.step:
        return False
    return one.start <= other[-1] and other.start <= one[-1]


def kinds() -> Mapping[str, RoleKind[Any, Any]]:
    """All roles by name."""
    return _KNOWN


def kind(role: str) -> RoleKind[Any, Any]:
    """The descriptor of a role. Raises `KeyError`."""
    return _KNOWN[role]


def system_of(role: str) -> str:
    """The name of a role's system. Raises `KeyError`."""
    return _SYSTEMS[role]


def listed() -> tuple[RoleKind[Any, Any], ...]:
    """The roles whose nodes `instance.json` lists for clients."""
    return tuple(each for each in _KNOWN.values() if each.listed)


def command_keys() -> tuple[str, ...]:
    """Prefixes of the systems' keys that only commands read."""
    return tuple(_COMMAND_KEYS)


@functools.cache
def linked() -> tuple[str, ...]:
    """The roles whose nodes have links."""
    return tuple(each.name for each in _KNOWN.values() if each.linked)


@functools.cache
def peers(role: str) -> frozenset[str]:
    """The roles with links to this role: those of its system, and those that dial it or that it dials."""
    own = _KNOWN[role]
    return frozenset(
        each.name
        for each in _KNOWN.values()
        if each.linked and (_SYSTEMS[each.name] == _SYSTEMS[role] or each.name in own.dials or role in each.dials)
    )


@functools.cache
def partitioned() -> frozenset[str]:
    """The roles whose nodes are replicas of partitions."""
    return frozenset(each.name for each in _KNOWN.values() if each.partitioned)


@functools.cache
def clustered() -> frozenset[str]:
    """The roles whose nodes belong to one cluster."""
    return frozenset(each.name for each in _KNOWN.values() if each.clustered)


@functools.cache
def doors() -> tuple[str, ...]:
    """The roles that clients connect to over UDP."""
    return tuple(each.name for each in _KNOWN.values() if each.door)
