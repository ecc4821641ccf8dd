"""The system of inboxes: one role, a face for other processes of the cluster. Several nodes may share a database."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final

from muster_server.plane.kind import Action, Around, Into, Pods, RoleKind, System, numbers
from muster_server.systems.inbox.options import InboxOptions, InboxSettings, settle
from muster_server.systems.inbox.shapes import ROLE

MISSING: Final = "inboxes need the libraries of databases; to mend: pip install 'muster-server[database]'"
BODY_BYTES_MAX: Final = 8_192
"""Limit of a delayed message for an inbox: an entry in JSON."""


def lacks(section: Callable[[str], Any]) -> str | None:
    """Why it cannot run; None: nothing is missing."""
    return None if find_spec("sqlalchemy") and find_spec("aiosqlite") else MISSING


def alone(settings: InboxSettings) -> str | None:
    """Why no second node can serve beside the first."""
    if not settings.database.startswith("sqlite:"):
        return None
    return "inboxes are in a file of SQLite here, for nodes of one machine; to mend: set database.url to a server"


INBOX: Final = RoleKind(
    name=ROLE,
    process="face",
    numbers=numbers(50),
    about="keeps the entries of users, broadcasts, and read marks",
    options=InboxOptions,
    settings=InboxSettings,
    settle=settle,
    build="muster_server.systems.inbox.node:build",
    secrets=frozenset({"cluster", "token"}),
    registers="serving",
    plural="inboxes",
    count_why="more than one need a database server, which they share",
    scheme="tcp",
    ends=43,
    row=66,
    pods=Pods(port=7460, replicas=1, memory_max="2Gi", disk="16Gi"),
    received="muster_inbox_entries_total",
    sent="muster_inbox_reads_total",
    carried="muster_inbox_entries_total",
    check=lacks,
    alone=alone,
)


def told(around: Around) -> dict[str, Any]:
    """The part of the configuration that the routes need."""
    return {"broadcast_days": around.section(ROLE).broadcast_days}


SYSTEM: Final = System(
    name="inbox",
    title="Inbox",
    about="notices that wait for their user: kept, numbered and pushed",
    kinds=(INBOX,),
    tour=(
        "muster inbox notify 7 'Bo likes your song' --kind like",
        "muster inbox broadcast all 'a new release' --kind news",
        "muster inbox ls 7",
    ),
    commands="muster_server.systems.inbox.cli.words:add",
    load="muster_server.systems.inbox.load",
    load_word="muster_server.systems.inbox.cli.load:add",
    check="muster_server.systems.inbox.check:wrong",
    doctor="muster_server.systems.inbox.doctor:examined",
    stores="muster_server.systems.inbox.stores:stores",
    actions=(
        Action("notify", "put entries into the inboxes of these users"),
        Action("broadcast", "send to these audiences, and change who is in them"),
        Action("inbox", "read the inboxes of these users, mark entries, and change settings; a user's own", "read"),
    ),
    http="muster_server.systems.inbox.http.routes",
    http_settings="muster_server.systems.inbox.system:told",
    targets={
        "inbox": Into(
            "muster_server.systems.inbox.target:made",
            r"0|[1-9][0-9]{0,19}",
            "a user: a number from 0 to 2^64-1",
            "notify",
            BODY_BYTES_MAX,
        )
    },
)
