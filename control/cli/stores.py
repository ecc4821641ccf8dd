"""`muster check` and `muster repair`: the stores in files of this machine, system by system.

Each system knows what its stores are and how to repair them: see `plane/stores.py` and `System.stores`.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from muster_server.control.cluster.instance import folder
from muster_server.control.config import load as configuration
from muster_server.control.config.options import UP
from muster_server.control.errors import FAILURE, TRY_LATER, USAGE, UserError
from muster_server.control.host.shown import one_line
from muster_server.control.registry.server import STATE, checked
from muster_server.control.terminal import common
from muster_server.control.terminal.found import Target, once
from muster_server.plane import systems
from muster_server.plane.kind import named
from muster_server.plane.stores import InUse, Report, Store, put_aside


class Fault(msgspec.Struct, frozen=True):
    """A fault, as JSON."""

    store: str
    file: str
    at: int | None
    text: str


def check(where: Target, system: str | None, as_json: bool) -> int:
    """Read all stores; exit code 1 if one is damaged. Raises `UserError`."""
    reports = [_checked(store) for store in _stores(where, system, running=True)]
    faults = [Fault(report.store, each.file, each.at, each.text) for report in reports for each in report.faults]
    with common.verdict_after():
        if as_json:
            stores = [{"store": each.store, "holds": each.holds, "faults": len(each.faults)} for each in reports]
            common.print_json({"stores": stores, "faults": faults})
        else:
            for report in reports:
                print(f"{report.store}: {report.holds or 'read'}: {_verdict(report)}")
                for fault in report.faults:
                    byte = "" if fault.at is None else f" at byte {fault.at}"
                    print(f"  {one_line(fault.file)}{byte}: {one_line(fault.text)}")
            if faults:
                print("to mend: stop the instance here, then run muster repair")
    return FAILURE if faults else 0


def repair(where: Target, system: str | None, as_json: bool) -> int:
    """Keep the intact part of every damaged store, and print what was done. Raises `UserError`."""
    done: list[str] = []
    aside = time.strftime("damaged-%Y%m%d-%H%M%S", time.gmtime())
    for store in _stores(where, system, running=False):
        if not _checked(store).faults:
            continue
        try:
            done += [f"{store.name}: {each}" for each in store.repair(store.place / aside)]
        except InUse as error:
            raise UserError(f"{store.name}: {error}", TRY_LATER) from None
        except OSError as error:
            raise UserError(f"{store.name}: {error}") from None
    with common.verdict_after():
        if as_json:
            common.print_json({"done": done})
        else:
            print("\n".join(map(one_line, done)) if done else "all stores are intact: nothing was changed")
    return 0


def _verdict(report: Report) -> str:
    return "whole" if not report.faults else "1 fault" if len(report.faults) == 1 else f"{len(report.faults)} faults"


def _checked(store: Store) -> Report:
    try:
        return store.check()
    except OSError as error:
        report = Report(store.name)
        report.fault(error.filename or store.name, str(error))
        return report


def _stores(where: Target, system: str | None, *, running: bool) -> Iterator[Store]:
    """The stores of one system, or of all. `running`: stores of a running instance may be read too."""
    known = systems.named()
    if system is not None and system not in known:
        raise UserError(f"unknown system {system!r} (expected one of {', '.join(known)})", USAGE)
    record = None
    with contextlib.suppress(UserError):  # no instance runs here
        record = once(where)
    if record is not None and not running:
        raise UserError("an instance runs here; stop it first, then run muster repair", TRY_LATER)
    config = configuration.load(where.file, profile=UP).config
    for name, each in known.items():
        if each.stores and system in {None, name}:
            yield from named(each.stores)(config, record)
    state = folder(config).path / STATE
    if system is None and state.exists():
        yield RegistryStore(state)


class RegistryStore:
    """A `plane.stores.Store`: the state of the embedded registry."""

    name: Final = "registry"

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
            report.holds = f"{checked(self._file)} sessions"
        except UserError as error:
            report.fault(self._file, str(error).removeprefix(f"{self._file}: "))
        return report

    def repair(self, aside: Path) -> list[str]:
        """As `Store.repair`. Nodes register again by themselves; only numbers of partitions that have grown are lost."""
        moved = put_aside(self._file, aside)
        return [
            f"{self._file}: the damaged file is {moved}; the registry starts empty. Partitions that were doubled start "
            "with the numbers of the configuration: set up.brokers and up.routers to their former numbers"
        ]
