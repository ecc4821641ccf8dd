"""One log's likes in one database: rows of items and users, and the snapshot, in parts.

Every transaction that writes first checks that its owner still may: an earlier owner that comes late changes nothing.
Raises `DatabaseError`: one line, without the password.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, and_, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from muster_server.plane.database.connections import CALL_S, Connections
from muster_server.plane.database.migrate import Schema
from muster_server.plane.database.owned import OwnedRow
from muster_server.plane.database.url import Location
from muster_server.systems.likes.database import schema
from muster_server.systems.likes.database.schema import erased, items, logs, snapshots, users
from muster_server.systems.likes.records import Row, StoredState, User

LOAD_S: Final = 300.0
"""Limit of loading a snapshot, in seconds; one of 10^7 likes has 60 MB."""


class SqlStore:
    """The `systems.likes.behind.Store` over SQL. It opens connections when needed."""

    def __init__(self, location: Location, instance: str, number: int, *, call_s: float = CALL_S) -> None:
        self._database = Connections(location, Schema(schema.STEPS, schema.VERSION_TABLE), call_s=call_s)
        self.where = self._database.where
        self._log = {"instance": instance, "log_number": number}
        self._row, self._epoch = OwnedRow(logs, self._log, f"{self.where}, log {number}"), 0
        self._upsert_item = self._database.upsert(items, schema.ORDER)
        self._upsert_user = self._database.upsert(users, ("dense_id",))

    async def close(self) -> None:
        """As `Connections.close`."""
        await self._database.close()

    async def load(self) -> StoredState:
        """As `Store.load`."""
        await self._database.open()
        async with self._database.transaction(call_s=LOAD_S) as connection:
            found = (await connection.execute(select(logs).where(self._here(logs)))).one_or_none()
            if found is None:
                return StoredState()
            parts = await self._parts(connection, found.snapshot_offset)
        whole = parts and len(parts) == found.snapshot_parts
        return StoredState(
            found.log_offset, found.users, found.snapshot_offset, b"".join(parts) if whole else None, found.epoch
        )

    async def former(self, offset: int) -> tuple[int, bytes] | None:
        """As `Store.former`."""
        await self._database.open()
        earlier = select(func.max(snapshots.c.snapshot_offset)).where(
            self._here(snapshots), snapshots.c.snapshot_offset < offset
        )
        async with self._database.transaction(call_s=LOAD_S) as connection:
            found = (await connection.execute(earlier)).scalar_one()
            return None if found is None else (found, b"".join(await self._parts(connection, found)))

    async def rows(self, after: bytes | None, count: int) -> list[Row]:
        """Items in the order of their keys, after this one."""
        behind = [] if after is None else [items.c.item > after]
        asked = select(items).where(self._here(items), *behind).order_by(items.c.item).limit(count)
        async with self._database.transaction(call_s=LOAD_S) as connection:
            return [schema.row_of(found) for found in await connection.execute(asked)]

    async def users(self, after: int, count: int) -> list[User]:
        """Users in the order of their dense ids, after this one."""
        asked = select(users).where(self._here(users), users.c.dense_id > after).order_by(users.c.dense_id).limit(count)
        async with self._database.transaction(call_s=LOAD_S) as connection:
            return [schema.user_of(found) for found in await connection.execute(asked)]

    async def erased(self, after: int, count: int) -> list[int]:
        """Dense ids of erased users, in order, after this one."""
        asked = (
            select(erased.c.dense_id)
            .where(self._here(erased), erased.c.dense_id > after)
            .order_by(erased.c.dense_id)
            .limit(count)
        )
        async with self._database.transaction(call_s=LOAD_S) as connection:
            return [int(dense) for dense in (await connection.execute(asked)).scalars()]

    async def _parts(self, connection: AsyncConnection, offset: int) -> list[bytes]:
        """The parts of a snapshot up to the first missing one; read one by one, so that memory contains each once."""
        parts: list[bytes] = []
        while True:
            at = and_(snapshots.c.snapshot_offset == offset, snapshots.c.part == len(parts))
            found = await connection.execute(select(snapshots.c.data).where(self._here(snapshots), at))
            data = found.scalar_one_or_none()
            if data is None:
                return parts
            parts.append(data)

    async def claim(self, epoch: int) -> None:
        """As `Store.claim`."""
        await self._database.open()
        self._epoch = epoch
        new = {"epoch": epoch, "log_offset": 0, "users": 0, "snapshot_offset": 0, "snapshot_parts": 0, "writes": 0}

        async def claim(connection: AsyncConnection) -> None:
            known = (await connection.execute(select(logs.c.epoch).where(self._here(logs)))).scalar_one_or_none()
            if known is None:
                await connection.execute(insert(logs).values(**self._log, **new))
            await self._own(connection)

        await self._database.again(claim, writes=True)

    async def write_users(self, new: Sequence[User], gone: Sequence[int], total: int) -> None:
        """As `Store.write_users`."""
        rows = [self._log | schema.user_row(user) for user in new]

        async def write(connection: AsyncConnection) -> None:
            await self._own(connection, users=total)
            if rows:
                await connection.execute(self._upsert_user, rows)
            await self._mark_erased(connection, gone)

        await self._written(write)

    async def erase_users(self, dense: Sequence[int]) -> None:
        """As `Store.erase_users`."""

        async def write(connection: AsyncConnection) -> None:
            await self._own(connection)
            await connection.execute(delete(users).where(self._here(users), users.c.dense_id.in_(dense)))
            await self._mark_erased(connection, dense)

        if dense:
            await self._written(write)

    async def _mark_erased(self, connection: AsyncConnection, dense: Sequence[int]) -> None:
        if dense:
            await connection.execute(delete(erased).where(self._here(erased), erased.c.dense_id.in_(dense)))
            await connection.execute(insert(erased), [self._log | {"dense_id": each} for each in dense])

    async def traces(self, dense: Sequence[int], since: int) -> tuple[int, int]:
        """As `Store.traces`."""
        await self._database.open()
        left = select(func.count()).select_from(users).where(self._here(users), users.c.dense_id.in_(dense))
        offsets = select(snapshots.c.snapshot_offset).where(self._here(snapshots)).distinct()
        async with self._database.transaction(call_s=LOAD_S) as connection:
            rows = int((await connection.execute(left)).scalar_one())
            found = [int(offset) for offset in (await connection.execute(offsets)).scalars()]
        return rows + sum(offset < since for offset in found), len(found)

    async def scrub(self) -> None:
        """As `Store.scrub`."""
        await self._database.open()
        await self._database.scrub()

    async def write(self, rows: Sequence[Row], offset: int | None) -> None:
        """As `Store.write`."""
        # Always in one order, so that two writers do not block each other.
        told = [self._log | schema.item_row(row) for row in sorted(rows, key=lambda row: row[0])]

        async def write(connection: AsyncConnection) -> None:
            await self._own(connection, **({} if offset is None else {"log_offset": offset}))
            if told:
                await connection.execute(self._upsert_item, told)

        await self._written(write)

    async def keep_snapshot(self, offset: int, parts: Sequence[bytes], former: int) -> None:
        """As `Store.keep_snapshot`. Items that were deleted before it need no row any more."""
        for number, part in enumerate(parts):
            row = self._log | {"snapshot_offset": offset, "part": number, "data": part}
            same = and_(self._here(snapshots), snapshots.c.snapshot_offset == offset, snapshots.c.part == number)

            async def add(connection: AsyncConnection, row: Any = row, same: ColumnElement[bool] = same) -> None:
                await self._own(connection)
                await connection.execute(delete(snapshots).where(same))  # left by an attempt that was cut short
                await connection.execute(insert(snapshots), [row])

            await self._written(add)

        async def finish(connection: AsyncConnection) -> None:
            await self._own(connection, snapshot_offset=offset, snapshot_parts=len(parts))
            await connection.execute(
                delete(snapshots).where(self._here(snapshots), snapshots.c.snapshot_offset.not_in((offset, former)))
            )
            gone = and_(items.c.likers.is_(None), items.c.modification <= offset)
            await connection.execute(delete(items).where(self._here(items), gone))

        await self._written(finish)

    async def _written(self, work: Any) -> None:
        await self._database.open()
        await self._database.again(work, writes=True)

    async def _own(self, connection: AsyncConnection, **values: Any) -> None:
        """As `OwnedRow.lock`, of the log's row."""
        await self._row.lock(connection, self._epoch, writes=logs.c.writes + 1, **values)

    def _here(self, table: Table) -> ColumnElement[bool]:
        return and_(*(table.c[name] == value for name, value in self._log.items()))
