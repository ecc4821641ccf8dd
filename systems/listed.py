"""The systems of this program, in one list. Everything else about them is in their own folders."""

import functools
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Final

from muster_server.plane import kinds
from muster_server.plane.kind import System

LISTED: Final = (
    "muster_server.systems.rooms",
    "muster_server.systems.probes",
    "muster_server.systems.http",
    "muster_server.systems.fleet",
    "muster_server.systems.messages",
    "muster_server.systems.likes",
    "muster_server.systems.presence",
)
MORE: Final = "MUSTER_SYSTEMS"
"""Packages of further systems, separated by commas: each has a module `system` with a `SYSTEM`."""


@functools.cache
def named() -> Mapping[str, System]:
    """All systems by name, in the order of the list."""
    packages = [*LISTED, *filter(None, os.environ.get(MORE, "").split(","))]
    found: list[System] = [import_module(f"{package}.system").SYSTEM for package in packages]
    for system in found:
        kinds.know(system)
    return {system.name: system for system in found}


named()
