"""The store of the HTTP face for `muster check` and `muster repair`: the file of API keys."""

from pathlib import Path
from typing import Final

import msgspec

from muster_server.control.cluster.instance import Record, folder
from muster_server.control.config.options import Config
from muster_server.control.errors import ConfigError
from muster_server.control.host.files import absolute
from muster_server.plane.files import write_atomically
from muster_server.plane.stores import Report, Store, put_aside
from muster_server.systems.http.keys import Key, Keys, read
from muster_server.systems.http.system import KEYS

OBJECT: Final = "{"


def stores(config: Config, record: Record | None) -> list[Store]:
    """The keys, if there are any."""
    file = config.section("http").keys_file
    place = absolute(file) if file else folder(config).path / KEYS
    return [KeysStore(place)] if place.exists() else []


class KeysStore:
    """A `plane.stores.Store`."""

    name: Final = "http"

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def place(self) -> Path:
        """As `Store.place`."""
        return self._file.parent

    def check(self) -> Report:
        """As `Store.check`."""
        report = Report(self.name)
        try:
            report.holds = f"{len(read(self._file).keys)} keys"
        except ConfigError as error:
            report.fault(self._file, str(error).removeprefix(f"{self._file}: "))
        return report

    def repair(self, aside: Path) -> list[str]:
        """As `Store.repair`. A key that is not whole is lost: nothing else has its hash."""
        if not self.check().faults:
            return []
        whole = _whole(self._file.read_bytes().decode(errors="replace"))
        moved = put_aside(self._file, aside)
        write_atomically(self._file, msgspec.json.format(msgspec.json.encode(Keys(keys=whole))) + b"\n")
        names = ", ".join(each.name for each in whole) or "none"
        return [f"{self._file}: kept {len(whole)} keys ({names}); make the others again; the damaged file is {moved}"]


def _whole(text: str) -> tuple[Key, ...]:
    """Each key that can be read by itself; of one name or id the first."""
    found: dict[str, Key] = {}
    at = text.find(OBJECT)
    while at >= 0:
        end = text.find("}", at)
        try:
            key = msgspec.json.decode(text[at : end + 1], type=Key)
        except msgspec.MsgspecError:
            pass
        else:
            if not {key.name, key.id} & {each for known in found.values() for each in (known.name, known.id)}:
                found[key.id] = key
        at = text.find(OBJECT, at + 1)
    return tuple(found.values())
