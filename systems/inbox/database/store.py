"""The store of inboxes in SQL: a `systems.inbox.records.Store`. This file has what changes rows; `reading.py` the rest.

Each change locks the users' rows first, in the order of their numbers: the numbers of an inbox have no gap that a
reader could see, whichever node writes.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from sqlalchemy import and_, bindparam, delete, func, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from muster_server.plane.database.connections import Connections
from muster_server.plane.database.errors import BadValue
from muster_server.plane.database.migrate import Schema
from muster_server.plane.database.url import Location
from muster_server.plane.ownership.errors import Full
from muster_server.systems.inbox.database import schema
from muster_server.systems.inbox.database.reading import Mailed, Reading
from muster_server.systems.inbox.database.rows import Person, Unreadable
from muster_server.systems.inbox.database.schema import loaded, stored
from muster_server.systems.inbox.preferences import written
from muster_server.systems.inbox.records import Due, Limits, Told
from muster_server.systems.inbox.shapes import (
    ALL,
    AUDIENCES_MAX,
    SETTINGS_MAX,
    Broadcast,
    Choice,
    Choose,
    Chosen,
    Count,
    Counts,
    Cursor,
    Done,
    Join,
    Mark,
    New,
    Noted,
    Numbered,
    Page,
    Read,
    Totals,
)

CALL_S: Final = 15.0
AT_ONCE: Final = 500
"""Limit of rows that one statement names."""
TRIM_EVERY: Final = 64
"""An inbox is cut to its limit when its number passes a multiple of this."""
DIGEST: Final = 16

_Group = tuple[int, str, str]
_Id = tuple[int, str]


class SqlStore:
    """Opens connections when needed, until `close`."""

    def __init__(self, location: Location, instance: str, limits: Limits, *, call_s: float = CALL_S) -> None:
        self.where = location.shown
        self.dropped = 0
        """Entries beyond the limit of their inboxes, and old ones."""
        self._database = Connections(location, Schema(schema.STEPS, schema.VERSION_TABLE), call_s=call_s)
        self._instance, self._limits = instance, limits
        self._unreadable = Unreadable()
        self._reading = Reading(instance, limits, self._unreadable)
        self._make_user = self._database.upsert(schema.users, ("last_seq",))
        self._make_last = self._database.upsert(schema.last, ("number",))

    @property
    def unreadable(self) -> Mapping[str, str]:
        """As `Store.unreadable`."""
        return self._unreadable.rows

    async def close(self) -> None:
        """As `Store.close`."""
        await self._database.close()

    # --- entries ------------------------------------------------------------------------------------------------------

    async def notify(self, asked: Sequence[tuple[int, New]], now: int, told: list[Told] | None = None) -> list[Noted]:
        """As `Store.notify`."""
        said: list[Noted] = []
        heard: list[Told] = []
        over = 0

        async def write(connection: AsyncConnection) -> None:
            nonlocal over
            heard.clear()
            batch = _Batch(self, connection, now, heard)
            said[:] = await batch.write(asked, renumber)
            over = batch.dropped

        renumber = False
        try:
            await self._write(write)
        except BadValue:  # a user's last number may be behind the entries, as after a restored table
            renumber = True
            await self._write(write)
        self.dropped += over
        if told is not None:
            told += heard
        return said

    async def mark(self, asked: Mark, now: int) -> Done:
        """As `Store.mark`."""
        user = stored(asked.user)
        count = 0

        async def write(connection: AsyncConnection) -> None:
            nonlocal count
            count = 0
            row = (await self.locked(connection, [user]))[user]
            there = Cursor(row.last_seq, await self._reading.last(connection))
            if asked.to is not None:
                to = Cursor(min(asked.to.seq, there.seq), min(asked.to.number, there.number))
                count += await self._grow(connection, user, asked.verb, asked.kind, to)
            own = [int(each) for each in asked.entries if not each.startswith("b")]
            if own:
                table = schema.entries
                mine = and_(table.c.instance == self._instance, table.c.user_id == user, table.c.seq.in_(own))
                done = await connection.execute(update(table).where(mine, ~table.c.is_read).values(is_read=True))
                count += done.rowcount
            numbers = {int(each[1:]) for each in asked.entries if each.startswith("b")}
            if numbers:
                count += await self._read_one_by_one(connection, user, row, there, numbers, now)

        await self._write(write)
        return Done(count)

    async def _grow(self, connection: AsyncConnection, user: int, verb: str, kind: str, to: Cursor) -> int:
        """Move the marks of a kind forward; reading is seeing too."""
        table = schema.marks
        key = and_(table.c.instance == self._instance, table.c.user_id == user, table.c.kind == kind)
        row = (await connection.execute(select(table).where(key))).mappings().first()
        before = {
            name: 0 if row is None else row[name] for name in ("read_seq", "read_number", "seen_seq", "seen_number")
        }
        now = dict(before)
        for each in ("read", "seen") if verb == "read" else ("seen",):
            now[f"{each}_seq"] = max(now[f"{each}_seq"], to.seq)
            now[f"{each}_number"] = max(now[f"{each}_number"], to.number)
        if now == before:
            return 0
        if row is None:
            await connection.execute(insert(table).values(instance=self._instance, user_id=user, kind=kind, **now))
        else:
            await connection.execute(update(table).where(key).values(**now))
        if verb == "read" and not kind:  # the mark of all kinds covers these
            read = schema.read
            mine = and_(read.c.instance == self._instance, read.c.user_id == user, read.c.number <= to.number)
            await connection.execute(delete(read).where(mine))
        return 1

    async def _read_one_by_one(
        self, connection: AsyncConnection, user: int, row: Person, there: Cursor, numbers: set[int], now: int
    ) -> int:
        """Mark broadcasts that the user can see."""
        visible = self._reading.visible(user, row.since, row.hidden, there.number, now)
        table, read = schema.broadcasts, schema.read
        found = await connection.scalars(visible.with_only_columns(table.c.number).where(table.c.number.in_(numbers)))
        seen = set(found)
        if not seen:
            return 0
        mine = and_(read.c.instance == self._instance, read.c.user_id == user, read.c.number.in_(seen))
        new = seen - set(await connection.scalars(select(read.c.number).where(mine)))
        if new:
            rows = [{"instance": self._instance, "user_id": user, "number": number} for number in sorted(new)]
            await connection.execute(insert(read), rows)
        return len(new)

    # --- audiences ----------------------------------------------------------------------------------------------------

    async def broadcast(self, asked: Broadcast, now: int) -> Numbered:
        """As `Store.broadcast`."""
        said, full = Numbered(0, "new"), ""
        table, last, new = schema.broadcasts, schema.last, asked.new
        digest = _digest(new, asked.audience)

        async def write(connection: AsyncConnection) -> None:
            nonlocal said, full
            full = ""
            await connection.execute(self._make_last, [{"instance": self._instance, "number": 0}])
            mine = last.c.instance == self._instance
            number = (await connection.execute(select(last.c.number).where(mine).with_for_update())).scalar_one()
            here = table.c.instance == self._instance
            if new.id:
                known = select(table.c.number, table.c.digest).where(here, table.c.id == new.id)
                if there := (await connection.execute(known)).first():
                    said = Numbered(there.number, "same" if there.digest == digest else "conflict")
                    return
            live = select(func.count()).select_from(table).where(here, table.c.until_ms > now)
            if (await connection.execute(live)).scalar_one() >= self._limits.broadcasts_max:
                most = self._limits.broadcasts_max
                full = f"too many broadcasts (limit {most}; see inbox.broadcasts_max): give them an earlier end"
                return
            await connection.execute(update(last).where(mine).values(number=number + 1))
            row = {"instance": self._instance, "number": number + 1, "audience": asked.audience, "kind": new.kind}
            row |= {"actor": new.actor, "id": new.id or None, "digest": digest, "data": new.data}
            await connection.execute(insert(table).values(**row, at_ms=now, until_ms=asked.until))
            said = Numbered(number + 1, "new")

        await self._write(write, lambda: full)
        return said

    async def join(self, asked: Join) -> Done:
        """As `Store.join`."""
        count, why = 0, ""
        users = sorted({stored(user) for user in asked.users})

        async def write(connection: AsyncConnection) -> None:
            nonlocal count, why
            why = ""
            table = schema.audiences
            here = and_(table.c.instance == self._instance, table.c.user_id.in_(users))
            if asked.leave:
                gone = await connection.execute(delete(table).where(here, table.c.audience == asked.audience))
                count = gone.rowcount
                return
            known = await self.locked(connection, users)
            number = await self._reading.last(connection)
            if asked.audience == ALL:
                people = schema.users
                mine = and_(people.c.instance == self._instance, people.c.user_id.in_(users), people.c.since == 0)
                count = (await connection.execute(update(people).where(mine).values(since=number))).rowcount
                return
            has = dict.fromkeys(known, 0)
            counted = select(table.c.user_id, func.count()).where(here).group_by(table.c.user_id)
            for user, audiences in await connection.execute(counted):
                has[user] = audiences
            there = set(
                await connection.scalars(select(table.c.user_id).where(here, table.c.audience == asked.audience))
            )
            new = [user for user in users if user not in there]
            if full := next((user for user in new if has[user] >= AUDIENCES_MAX), None):
                why = f"user {loaded(full)} is in {AUDIENCES_MAX} audiences, which is the limit"
                return
            if new:
                row = {"instance": self._instance, "audience": asked.audience, "since": number}
                await connection.execute(insert(table), [row | {"user_id": user} for user in new])
            count = len(new)

        await self._write(write, lambda: why)
        return Done(count)

    async def choose(self, asked: Choose) -> Chosen:
        """As `Store.choose`."""
        user = stored(asked.user)
        table = schema.users
        if asked.kinds is None:
            async with self._read() as connection:
                return Chosen(dict((await self._reading.user(connection, user)).kinds))
        changed = asked.kinds
        chosen: dict[str, Choice] = {}
        full = ""

        async def write(connection: AsyncConnection) -> None:
            nonlocal chosen, full
            full = ""
            row = (await self.locked(connection, [user]))[user]
            chosen = {kind: choice for kind, choice in {**row.kinds, **changed}.items() if choice != Choice()}
            if len(chosen) > SETTINGS_MAX:
                full = f"settings for {len(chosen)} kinds (limit {SETTINGS_MAX}): reset the settings of some kinds"
                return
            mine = and_(table.c.instance == self._instance, table.c.user_id == user)
            await connection.execute(update(table).where(mine).values(settings=written(chosen)))

        await self._write(write, lambda: full)
        return Chosen(chosen)

    # --- mails and age ------------------------------------------------------------------------------------------------

    async def due(self, now: int, limit: int) -> list[Due]:
        """As `Store.due`."""
        async with self._read() as connection:
            found, needless = await self._reading.due(connection, now, limit)
        await self._mailed(needless)
        return found

    async def mailed(self, sent: Sequence[Due]) -> None:
        """As `Store.mailed`."""
        await self._mailed([(stored(each.user), int(each.entry.id), each.due) for each in sent])

    async def _mailed(self, sent: Sequence[Mailed]) -> None:
        if not sent:
            return
        table = schema.entries
        mine = and_(
            table.c.instance == self._instance,
            table.c.user_id == bindparam("of"),
            table.c.seq == bindparam("at"),
            table.c.mail_due == bindparam("by"),
        )
        rows = [{"of": user, "at": seq, "by": due} for user, seq, due in sent]

        async def write(connection: AsyncConnection) -> None:
            await connection.execute(update(table).where(mine).values(mail_due=None), rows)

        await self._write(write)

    async def sweep(self, now: int, keep_ms: int, ids_ms: int, limit: int) -> int:
        """As `Store.sweep`."""
        dropped = 0

        async def write(connection: AsyncConnection) -> None:
            nonlocal dropped
            entries, ids, told, read = schema.entries, schema.ids, schema.broadcasts, schema.read
            dropped = await self._drop(connection, entries, ("user_id", "seq"), entries.c.at_ms < now - keep_ms, limit)
            await self._drop(connection, ids, ("user_id", "id"), ids.c.at_ms < now - ids_ms, limit)
            await self._drop(connection, told, ("number",), told.c.until_ms < now - ids_ms, limit)
            first = select(func.min(told.c.number)).where(told.c.instance == self._instance)
            oldest = (await connection.execute(first)).scalar_one_or_none()
            if oldest is not None:
                await self._drop(connection, read, ("user_id", "number"), read.c.number < oldest, limit)

        await self._write(write)
        self.dropped += dropped
        return dropped

    async def _drop(self, connection: AsyncConnection, table: Any, key: Sequence[str], where: Any, limit: int) -> int:
        columns = [table.c[name] for name in key]
        here = table.c.instance == self._instance
        rows = (await connection.execute(select(*columns).where(here, where).limit(limit))).mappings().all()
        if rows:
            match = and_(here, *(table.c[name] == bindparam(f"the_{name}") for name in key))
            await connection.execute(
                delete(table).where(match), [{f"the_{name}": row[name] for name in key} for row in rows]
            )
        return len(rows)

    # --- reads --------------------------------------------------------------------------------------------------------

    async def read(self, asked: Read, now: int) -> Page:
        """As `Store.read`."""
        async with self._read() as connection:
            return await self._reading.page(connection, asked, now)

    async def count(self, asked: Count, now: int) -> Counts:
        """As `Store.count`."""
        async with self._read() as connection:
            return await self._reading.counts(connection, asked, now)

    async def unread(self, users: Sequence[int], now: int) -> dict[int, int]:
        """As `Store.unread`."""
        async with self._read() as connection:
            found = await self._reading.unread(connection, [stored(user) for user in users], now)
        return {loaded(user): count for user, count in found.items()}

    async def totals(self, now: int) -> Totals:
        """As `Store.totals`."""
        async with self._read() as connection:
            return await self._reading.totals(connection, now)

    # --- internal -----------------------------------------------------------------------------------------------------

    async def locked(
        self, connection: AsyncConnection, users: Sequence[int], *, renumber: bool = False
    ) -> dict[int, Person]:
        """The rows of these users, which are made if needed, locked until the transaction ends. `renumber`: the entries
        tell the last numbers, too."""
        table = schema.users
        found: dict[int, Person] = {}
        for first in range(0, len(users), AT_ONCE):
            some = users[first : first + AT_ONCE]
            wanted = (
                select(table.c.user_id, table.c.last_seq, table.c.since, table.c.settings)
                .where(table.c.instance == self._instance, table.c.user_id.in_(some))
                .order_by(table.c.user_id)
                .with_for_update()
            )
            rows = (await connection.execute(wanted)).all()
            if len(rows) < len(some):
                new = sorted(set(some) - {row.user_id for row in rows})
                none = {"instance": self._instance, "last_seq": 0, "since": 0, "settings": None}
                await connection.execute(self._make_user, [none | {"user_id": user} for user in new])
                rows = (await connection.execute(wanted)).all()
            for row in rows:
                kept = row.last_seq, row.since, row.settings
                found[row.user_id] = Person(row.user_id, kept, self._limits, self._unreadable)
        if lost := [user for user, person in found.items() if renumber or not person.numbered]:
            for user, last_seq in (await self._reading.last_seqs(connection, lost)).items():
                found[user].last_seq = max(found[user].last_seq, last_seq)
        return found

    @contextlib.asynccontextmanager
    async def _read(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that only reads."""
        await self._database.open()
        async with self._database.transaction() as connection:
            yield connection

    async def _write(
        self, work: Callable[[AsyncConnection], Awaitable[None]], full: Callable[[], str] = lambda: ""
    ) -> None:
        """Run a transaction. `full`: why it wrote nothing."""
        await self._database.open()
        await self._database.again(work, writes=True)
        if why := full():
            raise Full(why)


class _Batch:
    """Entries of one transaction. Rows of groups that grow several times in it are written once."""

    def __init__(self, store: SqlStore, connection: AsyncConnection, now: int, told: list[Told]) -> None:
        self.dropped = 0
        self._store, self._connection, self._now, self._told = store, connection, now, told
        self._instance = store._instance
        self._users: dict[int, Person] = {}
        self._ids: dict[_Id, tuple[int, bytes]] = {}
        self._groups: dict[_Group, dict[str, Any]] = {}
        self._rows: list[dict[str, Any]] = []
        self._gone: list[dict[str, Any]] = []
        """Rows of groups, before they grew."""
        self._new_ids: list[dict[str, Any]] = []

    async def write(self, asked: Sequence[tuple[int, New]], renumber: bool) -> list[Noted]:
        """Write all; what came of each."""
        entries = [(stored(user), new) for user, new in asked]
        users = sorted({user for user, _ in entries})
        self._users = await self._store.locked(self._connection, users, renumber=renumber)
        before = {user: row.last_seq for user, row in self._users.items()}
        await self._look_up_ids(sorted({(user, new.id) for user, new in entries if new.id}))
        await self._look_up_groups(sorted({(user, new.kind, new.group) for user, new in entries if new.group}))
        said = [self._put(user, new) for user, new in entries]
        await self._flush(before)
        return said

    def _put(self, user: int, new: New) -> Noted:
        row = self._users[user]
        digest = b""
        if new.id:
            digest = _digest(new)
            if known := self._ids.get((user, new.id)):
                return Noted(known[0], "same" if known[1] == digest else "conflict")
        if not row.keeps(new.kind):
            return Noted(0, "off")
        row.last_seq += 1
        seq = row.last_seq
        way, due = row.mail(new.kind, self._now)
        there = self._groups.get((user, new.kind, new.group)) if new.group else None
        if there is not None and there["mail_due"] is not None and not there["is_read"]:
            way, due = there["mail"], there["mail_due"]  # an entry that grows all the time is mailed too
        made = {
            "instance": self._instance,
            "user_id": user,
            "seq": seq,
            "kind": new.kind,
            "grp": new.group or None,
            "actor": new.actor,
            "count": _grown(there["count"]) if there is not None else 1,
            "at_ms": self._now,
            "is_read": False,
            "mail_due": due,
            "mail": way,
            "data": new.data,
        }
        if there is not None:
            there.update(made)
        else:
            self._rows.append(made)
            if new.group:
                self._groups[user, new.kind, new.group] = made
        if new.id:
            self._ids[user, new.id] = seq, digest
            self._new_ids.append(
                {
                    "instance": self._instance,
                    "user_id": user,
                    "id": new.id,
                    "seq": seq,
                    "digest": digest,
                    "at_ms": self._now,
                }
            )
        self._told.append(Told(loaded(user), seq, new, row.pushes(new.kind)))
        return Noted(seq, "new" if there is None else "grown")

    async def _look_up_ids(self, wanted: Sequence[_Id]) -> None:
        table = schema.ids
        for first in range(0, len(wanted), AT_ONCE):
            some = wanted[first : first + AT_ONCE]
            asked = select(table.c.user_id, table.c.id, table.c.seq, table.c.digest).where(
                table.c.instance == self._instance, tuple_(table.c.user_id, table.c.id).in_(some)
            )
            for row in await self._connection.execute(asked):
                self._ids[row.user_id, row.id] = row.seq, row.digest

    async def _look_up_groups(self, wanted: Sequence[_Group]) -> None:
        table = schema.entries
        for first in range(0, len(wanted), AT_ONCE):
            some = wanted[first : first + AT_ONCE]
            asked = select(table).where(
                table.c.instance == self._instance, tuple_(table.c.user_id, table.c.kind, table.c.grp).in_(some)
            )
            for row in (await self._connection.execute(asked)).mappings():
                self._groups[row["user_id"], row["kind"], row["grp"]] = {**row, "was": row["seq"]}

    async def _flush(self, before: dict[int, int]) -> None:
        entries, users = schema.entries, schema.users
        for row in self._groups.values():
            was = row.pop("was", None)
            if was is not None and was != row["seq"]:
                self._gone.append({"of": row["user_id"], "at": was})
                self._rows.append(row)
        mine = and_(entries.c.instance == self._instance, entries.c.user_id == bindparam("of"))
        if self._gone:
            await self._connection.execute(delete(entries).where(mine, entries.c.seq == bindparam("at")), self._gone)
        if self._rows:
            await self._connection.execute(insert(entries), self._rows)
        if self._new_ids:
            await self._connection.execute(insert(schema.ids), self._new_ids)
        moved = [{"of": user, "to": row.last_seq} for user, row in self._users.items() if row.last_seq != before[user]]
        if moved:
            one = and_(users.c.instance == self._instance, users.c.user_id == bindparam("of"))
            await self._connection.execute(update(users).where(one).values(last_seq=bindparam("to")), moved)
        most = self._store._limits.entries_max
        for user, person in self._users.items():
            if person.last_seq > most and person.last_seq // TRIM_EVERY != before[user] // TRIM_EVERY:
                old = and_(
                    entries.c.instance == self._instance,
                    entries.c.user_id == user,
                    entries.c.seq <= person.last_seq - most,
                )
                self.dropped += (await self._connection.execute(delete(entries).where(old))).rowcount


def _grown(count: Any) -> int:
    """The count of a group after one more entry; a damaged one begins again."""
    return count + 1 if isinstance(count, int) and count > 0 else 1


def _digest(new: New, audience: str = "") -> bytes:
    """Tells two entries with one id apart."""
    parts = (new.kind, new.group, new.actor, audience)
    return blake2b("\0".join(parts).encode() + b"\0" + new.data, digest_size=DIGEST).digest()
