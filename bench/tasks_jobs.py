"""The tasks of the bench: they note when they began. Imported by workers; it must not know the driver.

`TASKS_NOTES` names the file: for each task the time that it carries and the time of its begin, by the monotonic clock, which
all processes of a machine share.
"""

import functools
import os
import struct
import time
from typing import Final

from muster.tasks import Tasks

NOTE: Final = struct.Struct("<qq")
NOTES: Final = "TASKS_NOTES"
tasks = Tasks(os.environ.get("TASKS_URL", "http://127.0.0.1:1"), key=os.environ.get("TASKS_KEY", "none"))


def note(sent_ns: int) -> None:
    """A task begins."""
    os.write(_notes(), NOTE.pack(sent_ns, time.monotonic_ns()))


@functools.cache
def _notes() -> int:
    return os.open(os.environ[NOTES], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@tasks.handler("noop", lease_s=30)
async def noop(sent_ns: int) -> None:
    """Nothing but the note."""
    note(sent_ns)
