"""Reads inboxes in SQL: pages, counts, and mails that are due. Changes nothing."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from muster_server.systems.inbox.database import schema
from muster_server.systems.inbox.database.rows import Marks, Person, Unreadable, broadcast, entry, is_kind
from muster_server.systems.inbox.database.schema import loaded, stored
from muster_server.systems.inbox.merging import FIRST, newer, older
from muster_server.systems.inbox.records import Due, Limits
from muster_server.systems.inbox.shapes import ALL, COUNT_MAX, Count, Counts, Cursor, Page, Read, Totals

NEWEST: Final = 256
"""Entries of a user that are counted first: a full inbox mostly has its `COUNT_MAX` unread ones among them."""
Mailed = tuple[int, int, int]
"""The mail of an entry: user as SQL has it, number, due time."""
_MARKS: Final = ("read_seq", "read_number", "seen_seq", "seen_number")


class Reading:
    """Reads on a connection in a transaction."""

    def __init__(self, instance: str, limits: Limits, unreadable: Unreadable) -> None:
        self._instance, self._limits, self._unreadable = instance, limits, unreadable

    async def user(self, connection: AsyncConnection, user: int) -> Person:
        """The row of a user, or what it would be."""
        table = schema.users
        wanted = select(table.c.last_seq, table.c.since, table.c.settings).where(*self._of(table, user))
        row = (await connection.execute(wanted)).first()
        found = Person(user, row, self._limits, self._unreadable)
        if not found.numbered:
            found.last_seq = (await self.last_seqs(connection, [user])).get(user, 0)
        return found

    async def last_seqs(self, connection: AsyncConnection, users: Sequence[int]) -> dict[int, int]:
        """The greatest numbers among the entries of users; a user without entries has none."""
        own = schema.entries
        wanted = (
            select(own.c.user_id, func.max(own.c.seq))
            .where(own.c.instance == self._instance, own.c.user_id.in_(users))
            .group_by(own.c.user_id)
        )
        return {row.user_id: row[1] for row in await connection.execute(wanted)}

    async def last(self, connection: AsyncConnection) -> int:
        """The number of the last broadcast."""
        table = schema.last
        found = await connection.execute(select(table.c.number).where(table.c.instance == self._instance))
        return found.scalar_one_or_none() or 0

    def visible(self, user: int, since: int, hidden: Sequence[str], last: int, now: int) -> Select[Any]:
        """The live broadcasts of a user's audiences, up to a number."""
        table, joined = schema.broadcasts, schema.audiences
        mine = and_(
            joined.c.instance == self._instance, joined.c.user_id == user, joined.c.audience == table.c.audience
        )
        return (
            select(table)
            .select_from(table.outerjoin(joined, mine))
            .where(
                table.c.instance == self._instance,
                table.c.until_ms > now,
                table.c.number <= last,
                or_(
                    and_(table.c.audience == ALL, table.c.number > since),
                    and_(joined.c.user_id.is_not(None), table.c.number > joined.c.since),
                ),
                *([table.c.kind.not_in(hidden)] if hidden else []),
            )
        )

    async def page(self, connection: AsyncConnection, asked: Read, now: int) -> Page:
        """As `Store.read`."""
        user, kind, most = stored(asked.user), asked.kind, asked.limit + 1
        row = await self.user(connection, user)
        there = Cursor(row.last_seq, await self.last(connection))
        marks = await self._marks(connection, user)
        audiences = await self._audiences(connection, user, row.since)
        own, told = schema.entries, schema.broadcasts
        mine = select(own).where(*self._of(own, user), own.c.seq <= there.seq)
        theirs = self.visible(user, row.since, row.hidden, there.number, now)
        if kind:
            mine, theirs = mine.where(own.c.kind == kind), theirs.where(told.c.kind == kind)
        before = asked.before or Cursor(there.seq + 1, there.number + 1)
        after = asked.after or FIRST
        if asked.after is not None:
            # A cursor ahead of the inbox is that of a store before its backup: nothing is left out.
            after = Cursor(
                after.seq if after.seq <= there.seq else FIRST.seq,
                after.number if after.number <= there.number else FIRST.number,
            )
            mine = mine.where(own.c.seq > after.seq).order_by(own.c.seq)
            theirs = theirs.where(told.c.number > after.number).order_by(told.c.number)
        else:
            mine = mine.where(own.c.seq < before.seq).order_by(own.c.seq.desc())
            theirs = theirs.where(told.c.number < before.number).order_by(told.c.number.desc())
        entries = [
            entry(each, marks, self._unreadable) for each in (await connection.execute(mine.limit(most))).mappings()
        ]
        rows = (await connection.execute(theirs.limit(most))).mappings().all() if there.number else []
        read = await self._read_ones(connection, user, [each["number"] for each in rows])
        broadcasts = [broadcast(each, marks, read, self._unreadable) for each in rows]
        if asked.after is not None:
            found, end, more = newer(entries, broadcasts, after, there, asked.limit)
        else:
            found, end, more = older(entries, broadcasts, before, asked.limit)
        return Page(found, end, there, more, audiences, row.hidden)

    async def counts(self, connection: AsyncConnection, asked: Count, now: int) -> Counts:
        """As `Store.count`."""
        user = stored(asked.user)
        row = await self.user(connection, user)
        last = await self.last(connection)
        said: list[dict[str, int]] = []
        for verb in ("read", "seen"):
            found: dict[str, int] = {}
            for each in (
                self._own_count(user, verb),
                *([self._told_count(user, verb, row, last, now)] if last else []),
            ):
                for kind, count in await connection.execute(each):
                    if not is_kind(kind):
                        continue
                    found[kind] = min(found.get(kind, 0) + count, COUNT_MAX)
            said.append(found)
        return Counts(*said)

    async def unread(self, connection: AsyncConnection, users: Sequence[int], now: int) -> dict[int, int]:
        """As `Store.unread`; users as SQL has them. A user without a row has none."""
        people, told = schema.users, schema.broadcasts
        mine = people.c.instance == self._instance, people.c.user_id.in_(users)
        wanted = select(people.c.user_id, people.c.last_seq, people.c.since, people.c.settings).where(*mine)
        rows = {
            row.user_id: Person(row.user_id, (row.last_seq, row.since, row.settings), self._limits, self._unreadable)
            for row in await connection.execute(wanted)
        }
        found = dict.fromkeys(rows, 0)
        found |= await self._own_unread(connection, users, NEWEST)
        if old := [user for user, row in rows.items() if row.last_seq > NEWEST and found[user] < COUNT_MAX]:
            found |= await self._own_unread(connection, old, None)
        last = await self.last(connection)
        if not last:
            return found
        joined, read = schema.audiences, schema.read
        one = select(read.c.number).where(*self._of(read, people.c.user_id), read.c.number == told.c.number)
        member = select(joined.c.since).where(
            *self._of(joined, people.c.user_id), joined.c.audience == told.c.audience, told.c.number > joined.c.since
        )
        counted = (
            select(people.c.user_id, told.c.kind, func.count())
            .select_from(people)
            .join(told, told.c.instance == people.c.instance)
            .where(*mine, told.c.until_ms > now, told.c.number <= last)
            .where(or_(and_(told.c.audience == ALL, told.c.number > people.c.since), member.exists()), ~one.exists())
            .where(*self._above(told, people.c.user_id, "read", told.c.number, "number"))
            .group_by(people.c.user_id, told.c.kind)
        )
        for user, kind, count in await connection.execute(counted):
            if kind not in rows[user].hidden:
                found[user] = min(found[user] + count, COUNT_MAX)
        return found

    async def _own_unread(
        self, connection: AsyncConnection, users: Sequence[int], newest: int | None
    ) -> dict[int, int]:
        """The own unread entries of users, of their `newest` numbers or of all."""
        own, people = schema.entries, schema.users
        counted = (
            select(own.c.user_id, func.count())
            .where(own.c.instance == self._instance, own.c.user_id.in_(users), ~own.c.is_read)
            .where(*self._above(own, own.c.user_id, "read", own.c.seq, "seq"))
            .group_by(own.c.user_id)
        )
        if newest is not None:
            mine = and_(people.c.instance == own.c.instance, people.c.user_id == own.c.user_id)
            counted = counted.join(people, mine).where(own.c.seq > people.c.last_seq - newest)
        return {user: min(count, COUNT_MAX) for user, count in await connection.execute(counted)}

    def _own_count(self, user: int, verb: str) -> Select[Any]:
        table = schema.entries
        above = self._above(table, user, verb, table.c.seq, "seq")
        return (
            select(table.c.kind, func.count())
            .where(*self._of(table, user), ~table.c.is_read, *above)
            .group_by(table.c.kind)
        )

    def _told_count(self, user: int, verb: str, row: Person, last: int, now: int) -> Select[Any]:
        table, read = schema.broadcasts, schema.read
        one = select(read.c.number).where(*self._of(read, user), read.c.number == table.c.number)
        visible = self.visible(user, row.since, row.hidden, last, now)
        above = self._above(table, user, verb, table.c.number, "number")
        return visible.with_only_columns(table.c.kind, func.count()).where(~one.exists(), *above).group_by(table.c.kind)

    def _above(self, table: Any, user: Any, verb: str, number: Any, name: str) -> list[Any]:
        """Above the marks of its kind, and of all kinds. `user`: a number, or a column."""
        marks = schema.marks
        column = marks.c[f"{verb}_{name}"]
        return [
            number
            > func.coalesce(select(column).where(*self._of(marks, user), marks.c.kind == "").scalar_subquery(), 0),
            number
            > func.coalesce(
                select(column).where(*self._of(marks, user), marks.c.kind == table.c.kind).scalar_subquery(), 0
            ),
        ]

    async def due(self, connection: AsyncConnection, now: int, limit: int) -> tuple[list[Due], list[Mailed]]:
        """Entries whose mail is due and that are not read; and the mails of others, which are read or cannot be read."""
        table = schema.entries
        wanted = (
            select(table)
            .where(table.c.instance == self._instance, table.c.mail_due <= now)
            .order_by(table.c.mail_due, table.c.user_id, table.c.seq)
            .limit(limit)
        )
        rows = (await connection.execute(wanted)).mappings().all()
        marks = {user: await self._marks(connection, user) for user in {row["user_id"] for row in rows}}
        unread: list[Due] = []
        needless: list[Mailed] = []
        for row in rows:
            seq, told = entry(row, marks[row["user_id"]], self._unreadable)
            if told is None or told.read:
                needless.append((row["user_id"], seq, row["mail_due"]))
            else:
                unread.append(Due(loaded(row["user_id"]), row["mail"], row["mail_due"], told))
        return unread, needless

    async def totals(self, connection: AsyncConnection, now: int) -> Totals:
        """As `Store.totals`."""
        users, entries, told = schema.users, schema.entries, schema.broadcasts

        async def counted(table: Any, *where: Any) -> int:
            found = select(func.count()).select_from(table).where(table.c.instance == self._instance, *where)
            number: int = (await connection.execute(found)).scalar_one()
            return number

        first = select(func.min(entries.c.mail_due)).where(entries.c.instance == self._instance)
        oldest = (await connection.execute(first)).scalar_one_or_none()
        return Totals(
            await counted(users),
            await counted(entries),
            await counted(told, told.c.until_ms > now),
            await counted(entries, entries.c.mail_due.is_not(None)),
            0.0 if oldest is None else max(0.0, (now - oldest) / 1_000),
        )

    async def _marks(self, connection: AsyncConnection, user: int) -> Marks:
        table = schema.marks
        wanted = select(table.c.kind, *(table.c[name] for name in _MARKS)).where(*self._of(table, user))
        return Marks((await connection.execute(wanted)).mappings().all())

    async def _audiences(self, connection: AsyncConnection, user: int, since: int) -> dict[str, int]:
        table = schema.audiences
        wanted = select(table.c.audience, table.c.since).where(*self._of(table, user))
        return {ALL: since} | {row.audience: row.since for row in await connection.execute(wanted)}

    async def _read_ones(self, connection: AsyncConnection, user: int, numbers: Sequence[int]) -> set[int]:
        if not numbers:
            return set()
        table = schema.read
        wanted = select(table.c.number).where(*self._of(table, user), table.c.number.in_(numbers))
        return set(await connection.scalars(wanted))

    def _of(self, table: Any, user: Any) -> tuple[Any, Any]:
        return table.c.instance == self._instance, table.c.user_id == user
