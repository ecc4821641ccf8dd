"""The system of presence: writers with their stores, and readers."""

from typing import Final

from plane.kind import System
from plane.presence import redis_server
from plane.presence.options import Presence
from plane.presence.reader import READER
from plane.presence.writer import WRITER

SYSTEM: Final = System(
    name="presence",
    kinds=(WRITER, READER),
    sections={"presence": Presence},
    programs=redis_server.PROGRAMS,
    commands="control.presence.words:add",
    check="control.presence.check:wrong",
    http="control.presence.http",
)
