"""The list of all systems. Everything else about a system is in its own folder.

The package `muster_server` imports this module, so each process registers all systems before it reads their roles.
"""

import os
from importlib import import_module
from typing import Final

from muster_server.plane import systems
from muster_server.plane.kind import System
from muster_server.systems.console.system import SYSTEM as CONSOLE
from muster_server.systems.edge.system import SYSTEM as EDGE
from muster_server.systems.fleet.system import SYSTEM as FLEET
from muster_server.systems.http.system import SYSTEM as HTTP
from muster_server.systems.inbox.system import SYSTEM as INBOX
from muster_server.systems.likes.system import SYSTEM as LIKES
from muster_server.systems.messages.system import SYSTEM as MESSAGES
from muster_server.systems.presence.system import SYSTEM as PRESENCE
from muster_server.systems.probes.system import SYSTEM as PROBES
from muster_server.systems.rooms.system import SYSTEM as ROOMS

LISTED: Final = (ROOMS, PROBES, HTTP, CONSOLE, EDGE, FLEET, MESSAGES, LIKES, PRESENCE, INBOX)


def further() -> list[System]:
    """The systems of the packages that the environment names."""
    packages = filter(None, os.environ.get(systems.MORE, "").split(","))
    return [import_module(f"{package}.system").SYSTEM for package in packages]


systems.register([*LISTED, *further()], node="muster_server.systems.node")
