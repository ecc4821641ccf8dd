"""The stores of delayed messages for `muster check` and `muster repair`: the schedule, the topics, and the last
answers.

A running center scrubs its own schedule, because its files are ahead of the disk; otherwise the files are read.
"""

from pathlib import Path
from typing import Final

import msgspec

from muster.clock import now_ms
from muster_server import _engines
from muster_server.control.cluster.instance import Record, folder
from muster_server.control.cluster.specs import absolute
from muster_server.control.config.options import Config
from muster_server.control.errors import UserError
from muster_server.plane.files import write_atomically
from muster_server.plane.kind import Around
from muster_server.plane.kinds import kind
from muster_server.plane.stores import Report, Store, locked, put_aside, sqlite_faults, sqlite_saved
from muster_server.systems.messages import recurring
from muster_server.systems.messages.answers import FILE as ANSWERS
from muster_server.systems.messages.options import CenterOptions
from muster_server.systems.messages.system import CENTER
from muster_server.systems.messages.topics import FILE, Book

LOST_SHOWN: Final = 20
SEGMENT_BYTES: Final = 64 << 20
"""Size of a new log's files; the center continues with its own size."""


def stores(config: Config, record: Record | None) -> list[Store]:
    """The schedule, unless it is in Redis, and the files beside it."""
    around = Around(config.section, config.instance.name, folder(config).path, 0, absolute, {}, config.runs)
    options: CenterOptions = config.section("center")
    told = kind(CENTER).settle(options, around)
    schedule, topics = Path(told.schedule), Path(told.topics)
    runs = record is not None and any(process.role == CENTER and process.pid for process in record.processes)
    found: list[Store] = []
    if not options.schedule and schedule.exists():
        found.append(ScheduleStore(schedule, record if runs else None))
    if topics.exists():
        found.append(TopicsStore(topics / FILE, schedule / FILE))
    if (topics / recurring.FILE).exists():
        found.append(RecurringStore(topics / recurring.FILE))
    if (schedule / ANSWERS).exists():
        found.append(AnswersStore(schedule / ANSWERS))
    return found


class ScheduleStore:
    """The `plane.stores.Store` of messages by due time."""

    name = "messages, schedule"

    def __init__(self, place: Path, record: Record | None = None) -> None:
        """`record`: the instance whose center has the schedule open."""
        self.place, self._place, self._record = place.parent, place, record

    def check(self) -> Report:
        """As `Store.check`."""
        report = Report(self.name)
        if self._record is not None:
            return self._scrubbed(report, self._record)
        messages, lost, faults, count = self._read(None)
        report.holds = f"{messages} intact messages"
        for file, at, text in faults:
            report.fault(self._place / file, text, at)
        if count > len(faults):
            report.fault(self._place, f"{count - len(faults)} more faults")
        if lost:
            report.fault(self._place, _lost(lost))
        return report

    def _scrubbed(self, report: Report, record: Record) -> Report:
        """The findings of the center itself, whose files are ahead of the disk."""
        from muster_server.systems.messages.cli.commands import scrubbed

        try:
            found = scrubbed(record)
        except UserError as error:
            report.fault(self._place, f"its center did not scrub it: {error}")
            return report
        report.holds = f"{found.messages} messages, {found.bodies} bodies"
        for fault in found.faults:
            report.fault(self._place, fault)
        return report

    def repair(self, aside: Path) -> list[str]:
        """As `Store.repair`."""
        with locked(self._place / "log" / "lock"):
            if not self.check().faults:
                return []
            new = self._place.with_name(f"{self._place.name}-new")
            messages, lost, _, _ = self._read(new)
            old = put_aside(self._place, aside)
            new.rename(self._place)
            for kept in (FILE, ANSWERS, f"{ANSWERS}-wal", "mark"):
                if (old / kept).exists():
                    (old / kept).rename(self._place / kept)
        done = [f"{self._place}: rebuilt with {messages} messages; the damaged schedule was moved to {old}"]
        if lost:
            done.append(_lost(lost))
        done.append("a message whose last records were damaged has its state before them, and may be fired again")
        return done

    def _read(self, into: Path | None) -> tuple[int, list[int], list[tuple[str, int, str]], int]:
        return _engines.salvage_schedule(
            str(self._place),
            None if into is None else str(into),
            segment_bytes=SEGMENT_BYTES,
            now_ms=now_ms(),
        )


class TopicsStore:
    """The `plane.stores.Store` of the topics, with the key that maps ids to numbers. `copy`: the schedule's copy of it."""

    name = "messages, topics"

    def __init__(self, file: Path, copy: Path) -> None:
        self.place, self._file, self._copy = file.parent, file, copy

    def check(self) -> Report:
        """As `Store.check`."""
        report = Report(self.name)
        book, copy = _book(self._file), _book(self._copy)
        if isinstance(book, Book):
            report.holds = f"{len(book.topics)} topics"
            if isinstance(copy, Book) and copy.key != book.key:
                report.fault(self._file, f"different key than in {self._copy}: ids mean other messages")
        elif book or isinstance(copy, Book):
            report.fault(self._file, book or "the file is missing, but the schedule has a copy")
        if isinstance(copy, str) and copy:
            report.fault(self._copy, copy)
        return report

    def repair(self, aside: Path) -> list[str]:
        """As `Store.repair`."""
        if not self.check().faults:
            return []
        book, copy = _book(self._file), _book(self._copy)
        if isinstance(copy, Book):
            if self._file.exists():
                put_aside(self._file, aside)
            self._file.write_bytes(self._copy.read_bytes())
            self._file.chmod(0o600)
            return [f"{self._file}: restored from {self._copy}, with {len(copy.topics)} topics"]
        if isinstance(book, Book):
            put_aside(self._copy, aside)
            return [f"{self._copy}: the damaged copy was moved to {aside}; the center writes it again"]
        return [
            f"{self._file}: damaged, and so is its copy; restore the file, because no id of a message can be "
            "found without it"
        ]


class RecurringStore:
    """The `plane.stores.Store` of the recurring messages."""

    name = "messages, recurring"

    def __init__(self, file: Path) -> None:
        self.place, self._file = file.parent, file

    def check(self) -> Report:
        """As `Store.check`."""
        report = Report(self.name)
        try:
            report.holds = f"{len(recurring.read(self._file))} recurring messages"
        except FileNotFoundError:
            pass
        except ValueError as error:
            report.fault(self._file, str(error))
        return report

    def repair(self, aside: Path) -> list[str]:
        """As `Store.repair`."""
        if not self.check().faults:
            return []
        kept = recurring.intact(self._file)
        put_aside(self._file, aside)
        write_atomically(self._file, recurring.written(kept))
        return [f"{self._file}: the damaged file was moved to {aside}; {len(kept)} recurring messages were kept"]


class AnswersStore:
    """The `plane.stores.Store` of the last answers of dead letters' targets."""

    name = "messages, answers"

    def __init__(self, file: Path) -> None:
        self.place, self._file = file.parent, file

    def check(self) -> Report:
        """As `Store.check`."""
        report = Report(self.name)
        for fault in sqlite_faults(self._file):
            report.fault(self._file, f"SQLite: {fault}")
        return report

    def repair(self, aside: Path) -> list[str]:
        """As `Store.repair`."""
        return [sqlite_saved(self._file, aside)] if self.check().faults else []


def _book(file: Path) -> Book | str:
    """The topics of a file; or why they cannot be read, empty if there is no file."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Book)
    except FileNotFoundError:
        return ""
    except (OSError, msgspec.MsgspecError) as error:
        return str(error)


def _lost(ids: list[int]) -> str:
    shown = ", ".join(f"{each:016x}" for each in ids[:LOST_SHOWN])
    more = f", and {len(ids) - LOST_SHOWN} more" if len(ids) > LOST_SHOWN else ""
    return f"the bodies of {len(ids)} messages are lost: {shown}{more}"
