"""When each API key was used last, to the minute: a file beside the file of keys, which all processes of a machine share.

A process writes at most once a minute and at its end. Knows no secret and no request.
"""

import fcntl
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from muster_server.plane.files import write_atomically

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

EVERY_S: Final = 60
_TIMES: Final = dict[str, int]


def file_beside(keys_file: Path) -> Path:
    """The file of last uses that belongs to a file of keys."""
    return keys_file.with_name(f"{keys_file.stem}.used.json")


def read(keys_file: Path) -> Mapping[str, int]:
    """The last uses by id of a key, in seconds since 1970; empty if nothing is known."""
    try:
        return msgspec.json.decode(file_beside(keys_file).read_bytes(), type=_TIMES)
    except (OSError, msgspec.MsgspecError):
        return {}


class Uses:
    """The uses that one process saw."""

    def __init__(self, keys_file: Path, log: "FilteringBoundLogger", clock: Callable[[], float] = time.time) -> None:
        self._file, self._log, self._clock = keys_file, log, clock
        self._seen: dict[str, int] = {}
        self._saved: dict[str, int] = {}
        self._due = 0.0
        self._failed = False

    def note(self, key_id: str) -> None:
        """This key was used now. Only known keys come here, so their number bounds the memory."""
        self._seen[key_id] = int(self._clock()) // EVERY_S * EVERY_S

    @property
    def due(self) -> bool:
        """True if there is something to write, and the last time is a minute ago."""
        return self._clock() >= self._due and self._seen != self._saved

    def save(self, known: Iterable[str], *, at_once: bool = False) -> None:
        """Write what is new, at most once a minute. Uses of keys that are not `known` are dropped. Waits for the disk."""
        now = self._clock()
        seen = dict(self._seen)
        if seen == self._saved or not (at_once or now >= self._due):
            return
        self._due = now + EVERY_S
        keep = set(known)
        try:
            with (self._file.parent / f".{file_beside(self._file).name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                times = dict(read(self._file))
                for key_id, at in seen.items():
                    times[key_id] = max(at, times.get(key_id, 0))
                kept = {key_id: at for key_id, at in times.items() if key_id in keep}
                write_atomically(file_beside(self._file), msgspec.json.encode(kept, order="sorted"))
        except OSError as error:
            if not self._failed:
                self._log.warning("cannot write when keys were used", file=str(error.filename), why=error.strerror)
            self._failed = True
            return
        self._failed = False
        self._saved = seen
        for key_id in seen.keys() - keep:  # the event loop may have noted further uses meanwhile
            self._seen.pop(key_id, None)
