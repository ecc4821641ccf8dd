"""The checks of delayed messages: overdue messages, and targets that get nothing."""

from typing import Any, Final

from muster_server.control.cluster.instance import Record
from muster_server.control.config.options import Config
from muster_server.control.doctor.finding import Finding, ok, warn
from muster_server.control.errors import UserError
from muster_server.control.terminal import common
from muster_server.systems.messages.system import CENTER

CHECK: Final = "messages"
LATE_S: Final = 60.0
"""A message that is overdue for longer, in seconds, is reported."""


def examined(config: Config, record: Record | None) -> list[Finding]:
    """All findings; they are read from the running centers, whatever the configuration."""
    found: list[Finding] = []
    for process in record.of(CENTER) if record is not None else []:
        try:
            _, said = common.get(process, "/api/v1/status")
        except UserError as error:
            found.append(warn(CHECK, str(error), "see its log"))
            continue
        found += judged(process.name, said)
    return found


def judged(name: str, said: dict[str, Any]) -> list[Finding]:
    """The findings of one center's status."""
    overdue, held = said.get("overdue", {}), said.get("held", [])
    found = [
        warn(
            CHECK,
            f"{name}: nothing goes to {each['url']}: {each['why']}",
            f"run muster topic show {each['topic'] or '…'}",
        )
        for each in held
    ]
    if overdue.get("oldest_s", 0.0) > LATE_S:
        text = f"{name}: {overdue['messages']} messages are overdue, the oldest for {overdue['oldest_s']:.0f} s"
        found.append(warn(CHECK, text, "run muster topic stats TOPIC and muster topic show TOPIC"))
    return found or [ok(CHECK, f"{name}: no message is overdue, and no target is held")]
