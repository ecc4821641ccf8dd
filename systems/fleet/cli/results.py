"""`muster fleet results TASK` and `muster fleet minutes TASK`: stored results, and their roll-ups.

Files are written page by page, under another name until they are whole.
"""

import contextlib
import csv
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final, Protocol

import msgspec
from rich.table import Table

from muster_server.control.errors import UNAVAILABLE, USAGE, UserError
from muster_server.control.terminal.common import counted, out, print_json, verdict_after
from muster_server.control.terminal.words import say
from muster_server.systems.fleet.asking import Asking
from muster_server.systems.fleet.cli.formats import Format
from muster_server.systems.fleet.questions import Kept, MinutesOf, MinutesPage, ResultsIn, ResultsPage

PAGE: Final = 1_000
SHOWN_MAX: Final = 1_000
"""Limit of rows of a table on the terminal; a file has all."""
COLUMNS: Final = ("task", "minute", "at_ms", "client", "mark", "kind", "target", "ok", "ms", "error", "value")


class Sink(Protocol):
    """Takes pages of results, one after the other."""

    def put(self, rows: Sequence[Kept]) -> None:
        """Write a page."""

    def close(self) -> None:
        """Write the end."""


def span(name: str, minutes: int, now_s: float) -> tuple[str, int, int]:
    """The task, and the first and last minute: of a run `TASK@MINUTE` that one, of a task the last `minutes`. Raises
    `UserError`."""
    task, at, minute = name.rpartition("@")
    if not at:
        last = int(now_s // 60)
        return name, last - minutes + 1, last
    if not (task and minute.isascii() and minute.isdigit() and len(minute) < 19):
        raise UserError(f"invalid run {name!r:.80} (expected TASK or TASK@MINUTE)", USAGE)
    return task, int(minute), int(minute)


async def results(asking: Asking, name: str, minutes: int, form: Format, file: Path | None) -> int:
    """Show results, or write them into a file."""
    if form is Format.parquet:
        if file is None:
            raise UserError("--format parquet needs --out FILE", USAGE)
        if find_spec("pyarrow") is None:
            raise UserError("parquet needs pyarrow; to mend: pip install 'muster-server[parquet]'", UNAVAILABLE)
    if form is Format.table and file is not None:
        raise UserError("--out needs --format csv, json or parquet", USAGE)
    task, first, last = span(name, minutes, time.time())
    count = 0
    try:
        with verdict_after(), _opened(form, file) as sink:
            async for page in pages(asking, task, first, last):
                count += len(page)
                sink.put(page)
                if form is Format.table and count >= SHOWN_MAX:
                    break
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from None
    say(f"{counted(count, 'result')} of {task}, minutes {first} to {last}" + (f" in {file}" if file else ""))
    return 0


async def pages(asking: Asking, task: str, first: int, last: int) -> AsyncIterator[list[Kept]]:
    """All results, by minute and client."""
    after: tuple[int, str] | None = None
    while True:
        page = await asking.lead(ResultsIn(task, first, last, PAGE, after), ResultsPage)
        if page.results:
            yield page.results
            after = page.results[-1].minute, page.results[-1].client
        if not page.more:
            return


async def minutes(asking: Asking, name: str, count: int, mark: str | None, as_json: bool) -> int:
    """Show roll-ups by minute and mark."""
    task, first, last = span(name, count, time.time())
    after: tuple[int, str] | None = None
    rows = []
    while True:
        page = await asking.lead(MinutesOf(task, first, last, mark, PAGE, after), MinutesPage)
        rows += page.minutes
        if not page.more or len(rows) >= 100 * PAGE:
            break
        after = rows[-1].minute, rows[-1].mark
    with verdict_after():
        if as_json:
            print_json(rows)
            return 0
        table = Table(
            *("minute", "mark", "results", "failed", "missed", "p50 ms", "p90 ms", "p99 ms"), box=None, pad_edge=False
        )
        for row in rows[-SHOWN_MAX:]:
            at = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.minute * 60))
            numbers = ("" if each is None else f"{each:,.2f}" for each in (row.p50, row.p90, row.p99))
            table.add_row(at, row.mark or "all", str(row.results), str(row.failed), str(row.missed), *numbers)
        if rows:
            out().print(table)
    say(f"{counted(len(rows), 'row')} of {task}, minutes {first} to {last}")
    return 0


@contextlib.contextmanager
def _opened(form: Format, file: Path | None) -> Iterator[Sink]:
    """A sink on stdout, or on a file that has its name once it is whole."""
    made: dict[Format, Callable[[Any], Sink]] = {Format.csv: Csv, Format.json: JsonLines, Format.parquet: Parquet}
    if form is Format.table:
        shown = Shown()
        yield shown
        shown.close()
        return
    if file is None:
        plain = made[form](sys.stdout)
        yield plain
        plain.close()
        return
    part = file.with_name(f"{file.name}.part")
    try:
        with part.open("wb") if form is Format.parquet else part.open("w", encoding="utf-8", newline="") as stream:
            sink = made[form](stream)
            yield sink
            sink.close()
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class Shown:
    """A table on the terminal."""

    def __init__(self) -> None:
        self._table = Table("minute", "client", "mark", "ok", "ms", "error", box=None, pad_edge=False)

    def put(self, rows: Sequence[Kept]) -> None:
        for row in rows[: SHOWN_MAX - self._table.row_count]:
            ms = "" if row.ms is None else f"{row.ms:,.2f}"
            self._table.add_row(str(row.minute), row.client, row.mark, "yes" if row.ok else "no", ms, row.error)

    def close(self) -> None:
        if self._table.row_count:
            out().print(self._table)


class Csv:
    """RFC 4180, with a head; `value` is JSON."""

    def __init__(self, stream: IO[str]) -> None:
        self._writer = csv.writer(stream)
        self._writer.writerow(COLUMNS)

    def put(self, rows: Sequence[Kept]) -> None:
        self._writer.writerows([_cell(getattr(row, name)) for name in COLUMNS] for row in rows)

    def close(self) -> None:
        """Nothing is left."""


class JsonLines:
    """A JSON object a line."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def put(self, rows: Sequence[Kept]) -> None:
        for row in rows:
            said = {name: getattr(row, name) for name in COLUMNS} | {"value": msgspec.Raw(row.value)}
            self._stream.write(msgspec.json.encode(said).decode() + "\n")

    def close(self) -> None:
        """Nothing is left."""


class Parquet:
    """A row group for each page; `at_ms` is a timestamp in UTC, `value` JSON."""

    def __init__(self, stream: IO[bytes]) -> None:
        import pyarrow
        import pyarrow.parquet

        text, number = pyarrow.string(), pyarrow.int64()
        kinds = {"minute": number, "at_ms": pyarrow.timestamp("ms", tz="UTC"), "ok": pyarrow.bool_()}
        kinds["ms"] = pyarrow.float64()
        self._schema = pyarrow.schema([(name, kinds.get(name, text)) for name in COLUMNS])
        self._writer = pyarrow.parquet.ParquetWriter(stream, self._schema)
        self._pyarrow = pyarrow

    def put(self, rows: Sequence[Kept]) -> None:
        columns = {name: [_text(getattr(row, name)) for row in rows] for name in COLUMNS}
        self._writer.write_table(self._pyarrow.table(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _cell(value: Any) -> Any:
    """A boolean as in JSON; nothing for a missing number."""
    return ("true" if value else "false") if isinstance(value, bool) else _text(value)
