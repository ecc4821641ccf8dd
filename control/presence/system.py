"""The system of presence: online proxies, writers with their stores, readers, and unicast services."""

from collections.abc import Mapping
from typing import Final

from plane.kind import System
from plane.presence import redis_server
from plane.presence.options import Presence, Users
from plane.presence.proxy import PROXY
from plane.presence.reader import READER
from plane.presence.unicast import UNICAST
from plane.presence.writer import WRITER

SYSTEM: Final = System(
    name="presence",
    kinds=(WRITER, PROXY, READER, UNICAST),
    sections={"presence": Presence, "users": Mapping[str, Users]},
    programs=redis_server.PROGRAMS,
    commands="control.presence.words:add",
    check="control.presence.check:wrong",
    http="control.presence.http",
)
