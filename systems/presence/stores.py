"""The stores of presence for `muster check` and `muster repair`: the change feeds, where their logs are files here.

Users and devices are in Redis, and devices report them again. Owns what is read of a log, and what a repair leaves.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from muster_server import _engines
from muster_server.control.cluster.instance import Record, folder
from muster_server.control.config.options import Config
from muster_server.plane.stores import STAMP, Report, Store, locked, misplaced, put_aside

LOGS: Final = "presence"
"""The folder of the logs in that of the instance, or of the node."""
LOCK: Final = "lock"


def stores(config: Config, record: Record | None) -> list[Store]:
    """The log of each shard on this machine."""
    return [FeedStore(each) for each in _folders(folder(config).path / LOGS)]


def _folders(logs: Path) -> Iterator[Path]:
    for name in sorted(each for each in logs.glob("presence-site*") if each.is_dir()):
        yield from sorted(each for each in name.iterdir() if each.is_dir() and each.name.isdecimal())


class FeedStore:
    """The `plane.stores.Store` of the change feed of one shard."""

    def __init__(self, log: Path) -> None:
        self._log = log

    @property
    def name(self) -> str:
        """As `Store.name`."""
        return f"presence, {self._log.parent.name}, shard {self._log.name}"

    @property
    def place(self) -> Path:
        """As `Store.place`."""
        return self._log.parent.parent

    def check(self) -> Report:
        """As `Store.check`."""
        report = Report(self.name)
        if text := misplaced(self._log, f"{self._log.parent.name} {self._log.name}"):
            report.fault(self._log / STAMP, text)
        start, end, _, faults = _engines.check_log(str(self._log))
        report.holds = f"changes {start} to {end}"
        for file, at, text, first, behind in faults:
            lost = f": changes {first} to {behind - 1} are lost" if behind > first else ""
            report.fault(self._log / file, f"{text}{lost}", at)
        return report

    def repair(self, aside: Path) -> list[str]:
        """As `Store.repair`."""
        with locked(self._log / LOCK):
            if text := misplaced(self._log, f"{self._log.parent.name} {self._log.name}"):
                raise OSError(text)
            if not self.check().faults:
                return []
            moved = [put_aside(each, aside) for each in sorted(self._log.iterdir()) if each.name not in {LOCK, STAMP}]
        return [
            f"{self._log}: moved {len(moved)} files to {aside}; the feed starts empty, and its readers read the state of "
            "their users again"
        ]
