"""The checks of inboxes: the database, mails that wait, and hints."""

from typing import Any, Final

from muster_server.control.cluster.instance import Record
from muster_server.control.config.options import Config
from muster_server.control.doctor.finding import Finding, fail, ok, warn
from muster_server.control.errors import UserError
from muster_server.control.terminal import common
from muster_server.systems.inbox.shapes import ROLE

CHECK: Final = "inbox"
WAITING_MAX: Final = 10_000
"""More entries that wait than a few seconds' worth are reported."""


def examined(config: Config, record: Record | None) -> list[Finding]:
    """All findings; they are read from the running nodes, whatever the configuration."""
    found: list[Finding] = []
    for process in record.of(ROLE) if record is not None else []:
        try:
            _, said = common.get(process, "/api/v1/status")
        except UserError as error:
            found.append(warn(CHECK, str(error), "see its log"))
            continue
        found += judged(process.name, said)
    return found


def judged(name: str, said: dict[str, Any]) -> list[Finding]:
    """The findings of one node's status."""
    found: list[Finding] = []
    if why := said.get("store"):
        found.append(fail(CHECK, f"{name}: {why}", "correct the database: inbox.database, or database.url"))
    if why := said.get("mails"):
        found.append(warn(CHECK, f"{name}: mails wait: {why}", "run muster topic ls, and see inbox.mail_topic"))
    if rows := said.get("unreadable_rows"):
        row, why = next(iter(rows.items()))
        text = f"{name}: {said['unreadable']} rows are left out, for example {row}: {why}"
        found.append(
            warn(CHECK, text, "correct or delete these rows; `unreadable_rows` of the node's status lists them")
        )
    if said.get("waiting", 0) > WAITING_MAX:
        text = f"{name}: {said['waiting']} entries wait for the database"
        found.append(warn(CHECK, text, "use a faster disk or a database server"))
    return found or [ok(CHECK, f"{name}: the database answers, and no mail waits")]
