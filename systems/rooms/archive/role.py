"""The role `archive`: keeps the messages of some rooms beyond memory. Its descriptor."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

from muster_server.plane.kind import Pods, RoleKind, numbers
from muster_server.systems.rooms.archive.options import ArchiveOptions, ArchiveSettings, settle
from muster_server.systems.rooms.archive.shapes import ROLE

MISSING: Final = "the archive needs the libraries of databases; to mend: pip install 'muster-server[database]'"


def wanted(section: Callable[[str], Any]) -> int:
    """A single node if rooms are to be kept, else none."""
    return 1 if section(ROLE).rooms else 0


def lacks(section: Callable[[str], Any]) -> str | None:
    """Why no archive can run; None: nothing is missing."""
    if not section(ROLE).rooms:
        return "archive.rooms: missing; muster serve archive needs the rooms that it keeps"
    return None if find_spec("sqlalchemy") and find_spec("aiosqlite") else MISSING


def alone(settings: ArchiveSettings) -> str | None:
    """Why no second node can serve beside the first."""
    return "one archive keeps all rooms of archive.rooms; to mend: end the other one first"


ARCHIVE: Final = RoleKind(
    name=ROLE,
    process="face",
    numbers=numbers(60),
    about="keeps the messages of some rooms beyond memory",
    options=ArchiveOptions,
    settings=ArchiveSettings,
    settle=settle,
    build="muster_server.systems.rooms.archive.node:build",
    secrets=frozenset({"cluster", "token"}),
    registers="serving",
    awaited=False,
    wanted=wanted,
    scheme="tcp",
    ends=5,
    row=70,
    pods=Pods(port=7470, replicas=1, memory_max="2Gi", disk="16Gi", keys={"archive.rooms": "*"}),
    received="muster_archive_messages_total",
    sent="muster_archive_messages_read_total",
    carried="muster_archive_messages_total",
    check=lacks,
    alone=alone,
)
