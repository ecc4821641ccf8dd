"""The memberships of one cluster in one database: a partition is read page by page, changes are written in batches.

Every call has a time limit. Raises `DatabaseError`: one line, without the password.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import ColumnElement, and_, bindparam, delete, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from muster_server.plane.database.connections import CALL_S, Connections
from muster_server.plane.database.migrate import Schema
from muster_server.plane.database.url import Location
from muster_server.systems.rooms.database import schema
from muster_server.systems.rooms.database.records import Change, Ended, Membership, Partition, newest
from muster_server.systems.rooms.database.schema import memberships

PAGE: Final = 2_000
DELETED_AT_ONCE: Final = 500
LEFT_S: Final = 600
"""Seconds for which a row marks a room as left. An older report that comes even later would count again."""

_READ: Final = tuple(memberships.c[name] for name in ("room_reversed", "gateway", "epoch", "version", "name_check"))


class Store:
    """Connections are opened when needed; `async with` closes them."""

    def __init__(
        self,
        location: Location,
        cluster: str,
        *,
        steps: Path = schema.STEPS,
        now: Callable[[], float] = time.time,
        call_s: float = CALL_S,
    ) -> None:
        # A crash of the machine loses only hints.
        self._database = Connections(location, Schema(steps, schema.VERSION_TABLE), call_s=call_s, durable=False)
        self.where = self._database.where
        self._cluster, self._now = cluster, now
        self._upsert = self._database.upsert(memberships, schema.ORDER)
        self.malformed = 0
        """Rows that were skipped as malformed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """As `Connections.close`."""
        await self._database.close()

    async def open(self) -> None:
        """As `Connections.open`."""
        await self._database.open()

    async def load(self, partition: Partition, page: int = PAGE) -> AsyncIterator[list[Membership]]:
        """Read the memberships of a partition, in pages. Changes made meanwhile may or may not be included.

        Skips and counts malformed rows.
        """
        await self.open()
        place, last = schema.places(partition)
        gateway = -1
        while True:
            after = or_(memberships.c.room_reversed > place, memberships.c.gateway > gateway)
            wanted = (
                select(*_READ)
                .where(self._here(), memberships.c.room_reversed.between(place, last), after)
                .where(memberships.c.left_at.is_(None))
                .order_by(memberships.c.room_reversed, memberships.c.gateway)
                .limit(page)
            )
            async with self._database.transaction() as connection:
                rows = (await connection.execute(wanted)).all()
            if found := list(self._memberships(rows)):
                yield found
            if len(rows) < page:
                return
            place, gateway = rows[-1].room_reversed, rows[-1].gateway

    def _memberships(self, rows: Sequence[Any]) -> Iterator[Membership]:
        for each in rows:
            try:
                yield schema.membership(*each)
            except ValueError:
                self.malformed += 1

    async def write(self, changes: Sequence[Change]) -> None:
        """Delete ended lives, then write the changes that are newer than the stored rows.

        If this raises midway, repeat the same call.
        """
        await self.open()
        for ended in (each for each in changes if isinstance(each, Ended)):
            life = and_(memberships.c.gateway == ended.gateway, memberships.c.epoch <= ended.epoch)
            rooms = memberships.c.room_reversed.between(*schema.places(ended.partition))
            await self._delete(and_(life, rooms))
        said = [each for each in changes if isinstance(each, Membership)]
        rows = [schema.row(self._cluster, each, int(self._now())) for each in newest(said)]
        # Always in one order, so that two writers do not block each other.
        rows.sort(key=lambda each: (each["room_reversed"], each["gateway"]))
        if rows:
            await self._database.again(lambda connection: connection.execute(self._upsert, rows), writes=True)

    async def prune(self) -> None:
        """Delete rooms that were left long ago."""
        await self.open()
        await self._delete(memberships.c.left_at < int(self._now()) - LEFT_S)

    # Selected first and then deleted by key: the transactions are short, and the condition is checked again.
    async def _delete(self, condition: ColumnElement[bool]) -> None:
        here = and_(self._here(), condition)
        key = (memberships.c.room_reversed, memberships.c.gateway)
        found = select(*key).where(here).limit(DELETED_AT_ONCE)
        gone = delete(memberships).where(here, key[0] == bindparam("place"), key[1] == bindparam("whose"))
        keys: list[dict[str, int]] = []

        async def delete_these(connection: AsyncConnection) -> None:
            await connection.execute(gone, keys)

        while True:
            async with self._database.transaction() as connection:
                keys = [{"place": place, "whose": whose} for place, whose in await connection.execute(found)]
            if keys:
                await self._database.again(delete_these, writes=True)
            if len(keys) < DELETED_AT_ONCE:
                return

    def _here(self) -> ColumnElement[bool]:
        return memberships.c.cluster == self._cluster
