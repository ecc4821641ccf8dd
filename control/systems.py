"""The systems of this program, in one list. Everything else about them is in their own folders."""

import functools
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Final

from plane import kinds
from plane.kind import System

LISTED: Final = (
    "control.rooms",
    "control.probes",
    "control.http",
    "control.fleet",
    "control.messages",
    "control.likes",
    "control.presence",
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
