"""The store of a fleet in SQL: a `systems.fleet.records.Store`.

The first call opens it, and the call after an error opens it again, so the database may start late. Every call has a
time limit. Each write about runs locks the lead's row first: two leads never write at the same time.
"""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from sqlalchemy import (
    ColumnElement,
    LargeBinary,
    String,
    Table,
    Text,
    and_,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
    type_coerce,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import NullType

from muster.clock import now_ms
from muster_server.plane.database.connections import Connections
from muster_server.plane.database.errors import BadValue, DatabaseError
from muster_server.plane.database.migrate import Schema
from muster_server.plane.database.owned import OwnedRow
from muster_server.plane.database.url import Location
from muster_server.systems.fleet.database import schema
from muster_server.systems.fleet.questions import Draw, Kept, MinuteRow, RunBrief, TaskRow
from muster_server.systems.fleet.records import (
    OPEN,
    After,
    Lead,
    ResultRow,
    Rolled,
    RunPlace,
    RunRow,
    Unstored,
)
from muster_server.systems.fleet.runs import RunName
from muster_server.systems.fleet.schema import run_name
from muster_server.systems.fleet.wheel import MissedRuns

CALL_S: Final = 5.0
IDLE_S: Final = 3
DELETED_AT_ONCE: Final = 500
MINUTES_DELETED_AT_ONCE: Final = 50
"""Runs whose roll-ups are deleted together, each at most 1,001 rows."""
REASON_MAX: Final = 300
MISSED_MAX: Final = 1_000
MARK_MAX: Final = 260
UNREADABLE: Final = "the stored run is unreadable"


_FIELDS: Final = [each for each in msgspec.structs.fields(TaskRow) if each.name != "refused"]
_COLUMNS: Final = [each.name for each in _FIELDS]

_BRIEF: Final = (
    "task",
    "minute",
    "kind",
    "target",
    "selector",
    "state",
    "started_ms",
    "wanted",
    "asked",
    "done",
    "replaced",
    "missed",
    "reason",
)

_KEPT: Final = ("task", "minute", "client", "mark", "ok", "ms", "error", "at_ms", "value")

_Row = partial[dict[str, Any]]
"""Makes a row from the epoch and a run, a result, or missed runs; both making and writing it may fail."""
_Put = Callable[[AsyncConnection, Any, Sequence[_Row]], Awaitable[None]]
"""Writes rows by a statement."""
_Work = Callable[[AsyncConnection, _Put], Awaitable[None]]


class OutRow(msgspec.Struct, frozen=True):
    """A run whose results wait for their topic."""

    task: str
    minute: int
    ended_ms: int


class _Detail(msgspec.Struct, frozen=True, array_like=True):
    options: dict[str, Any]
    delay_ms: int
    draws: list[Draw]
    asked: list[list[tuple[str, int]]]
    replaced: list[str] | None
    marks: list[str] = []
    """The marks of the asked clients, each once."""
    mark_of: list[list[int]] = []
    """For each draw, the place in `marks` of each client's mark."""


class SqlStore:
    """Opens connections when needed, until `close`."""

    def __init__(self, location: Location, instance: str, *, call_s: float = CALL_S) -> None:
        self.where = location.shown
        self._database = Connections(location, Schema(schema.STEPS, schema.VERSION_TABLE), call_s=call_s)
        self._instance, self._kind = instance, location.kind
        self._row = OwnedRow(schema.lead, {"instance": instance}, f"{self.where}, the lead")
        self._put_run = self._database.upsert(schema.runs, schema.RUN_ORDER)
        self._put_result = self._database.upsert(schema.results, schema.ORDER)
        self._put_missed = self._database.upsert(schema.missed, schema.ORDER)
        self._put_minute = self._database.upsert(schema.minutes, schema.ORDER)
        self._put_out = self._database.upsert(schema.outbox, schema.ORDER)

    async def close(self) -> None:
        await self._database.close()

    # --- the lead -----------------------------------------------------------------------------------------------------

    async def lead(self) -> Lead | None:
        async with self._read() as connection:
            return await self._lead(connection)

    async def claim(self, seen: Lead | None, holder: str) -> Lead | None:
        taken: list[Lead] = []

        async def claim(connection: AsyncConnection) -> None:
            taken.clear()
            now = await self._lead(connection, lock=True)
            if now != seen:
                return
            epoch, last_minute = (1, 0) if now is None else (now.epoch + 1, now.last_minute)
            row = {"epoch": epoch, "beat": 0, "holder": holder, "last_minute": last_minute}
            if now is None:
                await connection.execute(insert(schema.lead).values(instance=self._instance, **row))
            else:
                await connection.execute(update(schema.lead).where(self._here(schema.lead)).values(**row))
            taken.append(Lead(epoch, 0, holder, last_minute))

        await self._write(claim)
        return taken[0] if taken else None

    async def beat(self, epoch: int) -> None:
        await self._fenced(epoch, beat=schema.lead.c.beat + 1)

    async def resign(self, epoch: int) -> None:
        await self._fenced(epoch, holder="")

    # --- tasks --------------------------------------------------------------------------------------------------------

    async def tasks(self) -> list[TaskRow]:
        table = schema.tasks
        # Raw values of the driver: SQLite stores text in a numeric column, and one wrong row must not affect others.
        columns = [self._raw(table.c[each]).label(each) for each in _COLUMNS]
        async with self._read() as connection:
            wanted = select(*columns).where(self._here(table)).order_by(table.c.name)
            rows = (await connection.execute(wanted)).mappings().all()
        return [_task(row) for row in rows]

    async def put_task(self, task: TaskRow, new: bool) -> bool:
        table = schema.tasks
        row = {name: getattr(task, name) for name in _COLUMNS}
        row["options"] = msgspec.json.encode(task.options).decode()
        key = and_(self._here(table), table.c.name == task.name)
        done: list[bool] = []

        async def put(connection: AsyncConnection) -> None:
            done.clear()
            there = (await connection.execute(select(table.c.name).where(key).with_for_update())).first()
            if there is None:
                await connection.execute(insert(table).values(instance=self._instance, **row))
            elif not new:
                await connection.execute(update(table).where(key).values(**row))
            done.append(there is None or not new)

        await self._write(put)
        return done[0]

    async def drop_task(self, name: str) -> bool:
        table = schema.tasks
        dropped: list[int] = []

        async def drop(connection: AsyncConnection) -> None:
            found = await connection.execute(delete(table).where(self._here(table), table.c.name == name))
            dropped[:] = [found.rowcount]

        await self._write(drop)
        return dropped[0] > 0

    # --- runs ---------------------------------------------------------------------------------------------------------

    async def turn(
        self, epoch: int, before: int, after: int, runs: Sequence[RunRow], missed: Sequence[MissedRuns]
    ) -> list[Unstored]:
        async def turn(connection: AsyncConnection, put: _Put) -> None:
            await put(connection, self._put_run, [partial(self._run_row, epoch, run) for run in runs])
            await put(connection, self._put_missed, [partial(self._missed_row, epoch, each) for each in missed])

        return await self._split(epoch, turn, before, last_minute=after)

    async def write(
        self, epoch: int, runs: Sequence[RunRow], results: Sequence[ResultRow], ends: Sequence[Rolled] = ()
    ) -> list[Unstored]:
        minutes = [partial(self._minute_row, epoch, row) for end in ends for row in end.minutes]
        out = [partial(self._out_row, epoch, OutRow(*end.run, now_ms())) for end in ends if end.out]

        async def write(connection: AsyncConnection, put: _Put) -> None:
            await put(connection, self._put_run, [partial(self._run_row, epoch, run) for run in runs])
            await put(connection, self._put_result, [partial(self._result_row, epoch, each) for each in results])
            await put(connection, self._put_minute, minutes)
            await put(connection, self._put_out, out)

        return await self._split(epoch, write)

    async def results_in(self, task: str, first: int, last: int, limit: int, after: After | None) -> list[Kept]:
        table, runs = schema.results, schema.runs
        columns = (*(table.c[name] for name in _KEPT), runs.c.kind, runs.c.target)
        same = and_(runs.c.instance == table.c.instance, runs.c.task == table.c.task, runs.c.minute == table.c.minute)
        mine = (self._here(table), table.c.task == task, table.c.minute.between(first, last))
        wanted = select(*columns).join(runs, same).where(*mine, *_behind(table.c.minute, table.c.client, after))
        async with self._read() as connection:
            rows = (await connection.execute(wanted.order_by(table.c.minute, table.c.client).limit(limit))).all()
        return [
            Kept(
                row.task,
                row.minute,
                row.client,
                row.mark or "",
                row.kind,
                row.target,
                row.ok,
                row.ms,
                row.error or "",
                row.at_ms,
                (row.value or "null").encode(),
            )
            for row in rows
        ]

    async def minutes_of(
        self, task: str, first: int, last: int, mark: str | None, limit: int, after: After | None
    ) -> list[MinuteRow]:
        table = schema.minutes
        columns = [table.c[name] for name in MinuteRow.__struct_fields__]
        mine = [self._here(table), table.c.task == task, table.c.minute.between(first, last)]
        if mark is not None:
            mine.append(table.c.mark == mark)
        wanted = select(*columns).where(*mine, *_behind(table.c.minute, table.c.mark, after))
        async with self._read() as connection:
            rows = (await connection.execute(wanted.order_by(table.c.minute, table.c.mark).limit(limit))).all()
        return [MinuteRow(*row) for row in rows]

    async def outbox(self, limit: int) -> tuple[list[RunName], int]:
        table = schema.outbox
        order = (table.c.ended_ms, table.c.task, table.c.minute)
        wanted = select(table.c.task, table.c.minute).where(self._here(table)).order_by(*order).limit(limit)
        async with self._read() as connection:
            rows = [(row.task, row.minute) for row in (await connection.execute(wanted)).all()]
            count = len(rows)
            if count == limit:
                counted = select(func.count()).select_from(table).where(self._here(table))
                count = int((await connection.execute(counted)).scalar() or 0)
        return rows, count

    async def handed_over(self, epoch: int, runs: Sequence[RunName]) -> None:
        async def over(connection: AsyncConnection) -> None:
            for run in runs:
                await self._gone(connection, schema.outbox, run)

        await self._fenced(epoch, over)

    async def heal(self, epoch: int, before: int, after: int) -> None:
        tasks, missed = schema.tasks, schema.missed
        span = missed.c.last_minute - missed.c.first_minute + 1
        left = after - missed.c.first_minute + 1

        async def heal(connection: AsyncConnection) -> None:
            await connection.execute(delete(missed).where(self._here(missed), missed.c.first_minute > after))
            # For a task that began before, the rest that remains; a task's runs are spread evenly.
            await connection.execute(
                update(missed)
                .where(self._here(missed), missed.c.last_minute > after)
                .ordered_values(
                    (missed.c.runs, missed.c.runs * left // span),
                    (missed.c.samples, missed.c.samples * left // span),
                    (missed.c.last_minute, after),
                )
            )
            soon = (self._here(tasks), tasks.c.since_minute > after + 1, tasks.c.since_minute <= before + 1)
            await connection.execute(update(tasks).where(*soon).values(since_minute=after + 1))

        await self._fenced(epoch, heal, before, last_minute=after)

    async def missed(self, first: int, last: int) -> list[MissedRuns]:
        table = schema.missed
        columns = (table.c.task, table.c.first_minute, table.c.last_minute, table.c.runs, table.c.samples)
        mine = (self._here(table), table.c.first_minute <= last, table.c.last_minute >= first)
        wanted = select(*columns).where(*mine).order_by(table.c.task, table.c.first_minute).limit(MISSED_MAX)
        async with self._read() as connection:
            return [MissedRuns(*row) for row in (await connection.execute(wanted)).all()]

    async def handed(self, first: int, last: int) -> set[RunName]:
        table = schema.runs
        wanted = select(table.c.task, table.c.minute).where(self._here(table), table.c.minute.between(first, last))
        async with self._read() as connection:
            return {(row.task, row.minute) for row in (await connection.execute(wanted)).all()}

    async def last_run(self) -> int:
        table = schema.runs
        async with self._read() as connection:
            wanted = select(func.max(table.c.minute)).where(self._here(table))
            return int((await connection.execute(wanted)).scalar() or 0)

    async def open_runs(self) -> list[RunRow]:
        table = schema.runs
        wanted = select(table).where(self._here(table), table.c.state.in_(OPEN)).order_by(table.c.minute, table.c.task)
        async with self._read() as connection:
            return [_run(row) for row in (await connection.execute(wanted)).all()]

    async def run(self, task: str, minute: int | None) -> RunRow | None:
        table = schema.runs
        wanted = select(table).where(self._here(table), table.c.task == task)
        if minute is not None:
            wanted = wanted.where(table.c.minute == minute)
        async with self._read() as connection:
            row = (await connection.execute(wanted.order_by(table.c.minute.desc()).limit(1))).first()
        return None if row is None else _run(row)

    async def runs(self, limit: int, after: RunPlace | None) -> list[tuple[RunPlace, RunBrief]]:
        table = schema.runs
        columns = table.c
        wanted = select(*(columns[name] for name in _BRIEF)).where(self._here(table), columns.started_ms > 0)
        if after is not None:
            started_ms, task, minute = after
            same = and_(columns.started_ms == started_ms, columns.task == task, columns.minute < minute)
            beside = and_(columns.started_ms == started_ms, columns.task > task)
            wanted = wanted.where(or_(columns.started_ms < started_ms, beside, same))
        wanted = wanted.order_by(columns.started_ms.desc(), columns.task, columns.minute.desc()).limit(limit)
        async with self._read() as connection:
            return [_brief(row) for row in (await connection.execute(wanted)).all()]

    async def results_of(self, run: RunName) -> list[ResultRow]:
        table = schema.results
        columns = [table.c[name] for name in ResultRow.__struct_fields__]
        mine = (self._here(table), table.c.task == run[0], table.c.minute == run[1])
        async with self._read() as connection:
            rows = (await connection.execute(select(*columns).where(*mine).order_by(table.c.at_ms))).all()
        return [_result(row) for row in rows]

    async def sent(self, first: int, last: int) -> Mapping[int, int]:
        table = schema.runs
        asked = func.sum(table.c.asked)
        wanted = select(table.c.minute, asked).where(self._here(table), table.c.minute.between(first, last))
        async with self._read() as connection:
            rows = (await connection.execute(wanted.group_by(table.c.minute))).all()
        return {int(minute): int(count) for minute, count in rows}

    async def prune(self, before_ms: int, before_minute: int) -> None:
        runs, minutes = schema.runs, schema.minutes
        old = (self._here(runs), runs.c.started_ms < before_ms, runs.c.state.not_in(OPEN))
        while True:
            async with self._read() as connection:
                wanted = select(runs.c.task, runs.c.minute).where(*old).limit(DELETED_AT_ONCE)
                keys = [(row.task, row.minute) for row in (await connection.execute(wanted)).all()]

            async def gone(connection: AsyncConnection, keys: Sequence[tuple[str, int]] = keys) -> None:
                for key in keys:
                    for table in (schema.outbox, schema.results, runs):
                        await self._gone(connection, table, key)

            if keys:
                await self._write(gone)
            if len(keys) < DELETED_AT_ONCE:
                break
        aged = (self._here(minutes), minutes.c.minute < before_minute, minutes.c.mark == "")
        while True:
            async with self._read() as connection:
                wanted = select(minutes.c.task, minutes.c.minute).where(*aged).limit(MINUTES_DELETED_AT_ONCE)
                keys = [(row.task, row.minute) for row in (await connection.execute(wanted)).all()]

            async def past(connection: AsyncConnection, keys: Sequence[RunName] = keys) -> None:
                for key in keys:
                    await self._gone(connection, minutes, key)

            if keys:
                await self._write(past)
            if len(keys) < MINUTES_DELETED_AT_ONCE:
                return

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _gone(self, connection: AsyncConnection, table: Table, run: RunName) -> None:
        """Delete the rows of a run."""
        mine = (self._here(table), table.c.task == run[0], table.c.minute == run[1])
        await connection.execute(delete(table).where(*mine))

    async def _lead(self, connection: AsyncConnection, *, lock: bool = False) -> Lead | None:
        table = schema.lead
        wanted = select(*(table.c[name] for name in Lead.__struct_fields__)).where(self._here(table))
        row = (await connection.execute(wanted.with_for_update() if lock else wanted)).first()
        return None if row is None else Lead(*row)

    async def _fenced(
        self,
        epoch: int,
        work: Callable[[AsyncConnection], Any] | None = None,
        before: int | None = None,
        **values: Any,
    ) -> None:
        """Run `work` in a transaction that sets values of the lead. Raises `Fenced`, with nothing written, unless this
        epoch leads and, if given, `before` is the last minute."""
        lead = schema.lead.c
        exact = [lead.epoch == epoch, *([] if before is None else [lead.last_minute == before])]

        async def guarded(connection: AsyncConnection) -> None:
            await self._hasten(connection)
            await self._row.lock(connection, epoch, *exact, **values)
            if work is not None:
                await work(connection)

        await self._write(guarded)

    async def _split(self, epoch: int, work: _Work, before: int | None = None, **values: Any) -> list[Unstored]:
        """As `_fenced`. If the database refuses a value, the rows are halved until only the refused ones are left."""
        refused: list[Unstored] = []

        async def plain(connection: AsyncConnection, statement: Any, rows: Sequence[_Row]) -> None:
            if rows:
                await connection.execute(statement, [row() for row in rows])

        async def halved(connection: AsyncConnection, statement: Any, rows: Sequence[_Row]) -> None:
            try:
                async with connection.begin_nested():
                    await plain(connection, statement, rows)
            except Exception as error:
                said = self._database.translated(error)
                if not isinstance(said, BadValue):
                    raise
                if len(rows) == 1:
                    refused.append(_unstored(rows[0], said))
                    return
                half = len(rows) // 2
                await halved(connection, statement, rows[:half])
                await halved(connection, statement, rows[half:])

        async def carefully(connection: AsyncConnection) -> None:
            refused.clear()
            await work(connection, halved)

        try:
            await self._fenced(epoch, lambda connection: work(connection, plain), before, **values)
        except BadValue:
            await self._fenced(epoch, carefully, before, **values)
        return refused

    async def _hasten(self, connection: AsyncConnection) -> None:
        """Let the server end this transaction if this process stalls in it: its lock would block the next lead."""
        if self._kind == "postgresql":
            await connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_S}s'")
        elif self._kind == "mysql" and getattr(connection.dialect, "is_mariadb", False):  # MySQL has no such variable
            await connection.exec_driver_sql(f"SET SESSION idle_transaction_timeout = {IDLE_S}")

    async def _write(self, work: Callable[[AsyncConnection], Any]) -> None:
        await self._database.open()
        await self._database.again(work, writes=True)

    @contextlib.asynccontextmanager
    async def _read(self) -> Any:
        await self._database.open()
        async with self._database.transaction() as connection:
            yield connection

    def _raw(self, column: Any) -> Any:
        if self._kind == "sqlite" and isinstance(column.type, String | Text):
            return cast(column, LargeBinary)  # its driver fails a whole answer for one text that is not UTF-8
        return type_coerce(column, NullType())

    def _here(self, table: Any) -> ColumnElement[bool]:
        here: ColumnElement[bool] = table.c.instance == self._instance
        return here

    def _run_row(self, epoch: int, run: RunRow) -> dict[str, Any]:
        marks = list(dict.fromkeys(mark for draw in run.marks for mark in draw))
        places = {mark: place for place, mark in enumerate(marks)}
        mark_of = [[places[mark] for mark in draw] for draw in run.marks]
        detail = _Detail(run.options, run.delay_ms, run.draws, run.asked, run.replaced, marks, mark_of)
        return {
            "instance": self._instance,
            "task": run.task,
            "minute": run.minute,
            "kind": _text(run.kind),
            "target": _text(run.target),
            "selector": _text(run.selector),
            "wanted": run.wanted,
            "state": run.state,
            "asked": sum(map(len, run.asked)),
            "done": run.done,
            "replaced": len(run.replaced or ()),
            "missed": run.missed,
            "started_ms": run.started_ms,
            "reason": _text(run.reason),
            "epoch": epoch,
            "stage": _stage(run),
            "detail": msgspec.msgpack.encode(detail),
        }

    def _result_row(self, epoch: int, row: ResultRow) -> dict[str, Any]:
        return {
            "instance": self._instance,
            "epoch": epoch,
            "task": row.task,
            "minute": row.minute,
            "client": row.client,
            "ok": row.ok,
            "value": _text(row.value.decode(errors="replace")),
            "error": _text(row.error),
            "at_ms": row.at_ms,
            "mark": _text(row.mark)[:MARK_MAX],
            "ms": row.ms,
        }

    def _minute_row(self, epoch: int, row: MinuteRow) -> dict[str, Any]:
        texts = {"mark": _text(row.mark)[:MARK_MAX], "kind": _text(row.kind), "target": _text(row.target)}
        return {"instance": self._instance, "epoch": epoch, **msgspec.structs.asdict(row), **texts}

    def _out_row(self, epoch: int, row: OutRow) -> dict[str, Any]:
        return {"instance": self._instance, "epoch": epoch, **msgspec.structs.asdict(row)}

    def _missed_row(self, epoch: int, missed: MissedRuns) -> dict[str, Any]:
        return {
            "instance": self._instance,
            "task": missed.task,
            "first_minute": missed.first,
            "last_minute": missed.last,
            "runs": missed.runs,
            "samples": missed.samples,
            "epoch": epoch,
        }


def _behind(minute: Any, name: Any, after: After | None) -> list[ColumnElement[bool]]:
    """The rows behind the last one of a page, in the order of minute and name."""
    return [] if after is None else [or_(minute > after[0], and_(minute == after[0], name > after[1]))]


def _stage(run: RunRow) -> int:
    """The progress of a run: due, running, its replacements drawn, over."""
    return 3 if run.state not in OPEN else 0 if run.state == "due" else 1 if run.replaced is None else 2


def _text(text: str) -> str:
    """A text that every database accepts: PostgreSQL has no NUL in text."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _unstored(row: _Row, why: DatabaseError) -> Unstored:
    said: RunRow | ResultRow | MissedRuns | MinuteRow | OutRow = row.args[1]
    minute = said.first if isinstance(said, MissedRuns) else said.minute
    client = said.client if isinstance(said, ResultRow) else ""
    return Unstored((said.task, minute), client, str(why)[:REASON_MAX])


def _task(row: Mapping[str, Any]) -> TaskRow:
    """A row that a web application wrote. `refused` names the values that cannot be read."""
    values, wrong = dict[str, Any](), list[str]()
    for field in _FIELDS:
        value = row[field.name]
        try:
            if isinstance(value, bytes):
                value = value.decode()
            if field.name == "options":
                value = _options(value)
            values[field.name] = msgspec.convert(value, field.type, strict=False)
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            wrong.append(f"{field.name}: {str(error) or type(error).__name__}")
            if field.type is str:
                text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
                values[field.name] = text[:REASON_MAX]
    return TaskRow(**values, refused="; ".join(wrong)[:REASON_MAX])


def _options(value: Any) -> Any:
    if not value:
        return {}
    if not isinstance(value, str):
        raise ValueError(f"text expected, not {type(value).__name__}")
    return msgspec.json.decode(value)


def _result(row: Any) -> ResultRow:
    value = (row.value or "null").encode()
    return ResultRow(
        row.task, row.minute, row.client, row.ok, value, row.error or "", row.at_ms, row.mark or "", row.ms
    )


def _brief(row: Any) -> tuple[RunPlace, RunBrief]:
    brief = RunBrief(
        run_name(row.task, row.minute),
        row.kind,
        row.target,
        row.selector,
        row.state,
        row.started_ms,
        row.wanted,
        row.asked,
        row.done,
        row.replaced,
        row.missed,
        row.reason or "",
    )
    return (row.started_ms, row.task, row.minute), brief


def _run(row: Any) -> RunRow:
    reason = row.reason or ""
    try:
        detail = msgspec.msgpack.decode(row.detail, type=_Detail)
        marks = [[detail.marks[place] for place in draw] for draw in detail.mark_of]
    except (msgspec.MsgspecError, ValueError, IndexError):
        detail, reason, marks = _Detail({}, 0, [], [], None), UNREADABLE, []
    return RunRow(
        task=row.task,
        minute=row.minute,
        kind=row.kind,
        target=row.target,
        selector=row.selector,
        options=detail.options,
        wanted=row.wanted,
        delay_ms=detail.delay_ms,
        state=row.state,
        started_ms=row.started_ms,
        draws=detail.draws,
        asked=detail.asked,
        marks=marks,
        replaced=detail.replaced,
        done=row.done,
        missed=row.missed,
        reason=reason,
    )
