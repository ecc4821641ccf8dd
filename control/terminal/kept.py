"""The last map that this user read of each registry: commands show it, with its age, while the registry does not
answer.

Owns the files below `$XDG_CACHE_HOME/muster`. They are hints: unreadable files and failed writes are ignored.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from muster_server.control.cluster.instance import Record
from muster_server.control.host.files import foreign
from muster_server.plane.files import write_atomically
from muster_server.plane.kinds import listed


class KeptRecord(msgspec.Struct, frozen=True):
    """A record of all nodes, and when it was read, in seconds since 1970."""

    at: float
    record: Record

    def age(self) -> str:
        """The age as text."""
        return words(max(0.0, time.time() - self.at))


def keep(url: str, record: Record) -> None:
    """Store this record of the registry at `url`, without servers for clients: their certificates expire."""
    record = msgspec.structs.replace(record, **{of.listed: [] for of in listed()})
    file = _file(url, os.environ)
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(file, msgspec.json.encode(KeptRecord(time.time(), record)))


def last(url: str) -> KeptRecord | None:
    """The record that was stored last; None if there is none of this version, or if other users could have written it."""
    file = _file(url, os.environ)
    try:
        if foreign(file):
            return None
        return msgspec.json.decode(file.read_bytes(), type=KeptRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def words(seconds: float) -> str:
    """Format an age: 45 s, 3 min, 2 h, 5 d."""
    for unit, least, name in ((86_400, 172_800, "d"), (3_600, 7_200, "h"), (60, 120, "min")):
        if seconds >= least:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def _file(url: str, environment: Mapping[str, str]) -> Path:
    folder = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '/nowhere')}/.cache"
    return Path(folder) / "muster" / f"map-{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"
