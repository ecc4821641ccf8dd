"""Rows of one kind over several databases: a session for the shard of an id, and answers merged from all of them.

The map is a row of one database. Each shard has a fence: the version of the map that holds there. A writer reads the fence
in its own transaction and shares its lock. So a change of the map waits for writers under way, and a writer with an older
map learns of it before it writes. A reader reads the fence first, in the same state of the database as all its reads. Owns
changes of the map. It must not know what the rows are.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import (
    BigInteger,
    Column,
    MetaData,
    Row,
    Select,
    String,
    Table,
    Text,
    and_,
    delete,
    event,
    insert,
    not_,
    select,
)
from sqlalchemy import update as updated
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from ..errors import Invalid, MusterError
from .maps import NAME_CHARS_MAX, ShardMap
from .positions import positions
from .replicas import POSITION, Replicas
from .standings import UNKNOWN

LOOK_S: Final = 1.0
HOLD_S: Final = 10.0
AGAIN_S: Final = 0.02
TRIES: Final = 20
"""How often a session chooses again, as maps change, before it raises `Moved`."""
ROWS: Final = 1_000

Statement = Select[*tuple[Any, ...]]
MergedRow = Row[*tuple[Any, ...]]
METADATA: Final = MetaData()
MAPS: Final = Table(
    "muster_shard_maps",
    METADATA,
    Column("name", String(NAME_CHARS_MAX), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("map", Text, nullable=False),
    mysql_engine="InnoDB",
)
"""Maps by name, in one database."""
FENCES: Final = Table(
    "muster_shard_fences",
    METADATA,
    Column("name", String(NAME_CHARS_MAX), primary_key=True),
    Column("version", BigInteger, nullable=False),
    mysql_engine="InnoDB",
)
"""The version of each map that holds at a shard, in each shard."""


class Moved(MusterError):
    """The shard of this id changes now, or has changed since the session began. Nothing was written by this call."""

    code = "moved"
    retry = True


class _Behind(Exception):
    """A replica has an older fence than the map: the rows that it lacks are on the primary."""


class Shards:
    """Databases that share the rows of one map, by name. `async with`, or `open` and `close`. The caller closes the
    `Replicas`."""

    def __init__(
        self,
        maps: Replicas,
        shards: Mapping[str, Replicas],
        *,
        name: str = "main",
        look_s: float = LOOK_S,
        hold_s: float = HOLD_S,
    ) -> None:
        """`maps`: the database that has the map. `shards`: a database for each name in it. `look_s`: pause between two looks
        at the map. `hold_s`: how long a session waits for a part that moves. Raises `Invalid`."""
        if not look_s > 0 or not hold_s >= 0:
            raise Invalid(f"invalid look_s {look_s} or hold_s {hold_s} (expected seconds)")
        if not 0 < len(name) <= NAME_CHARS_MAX:
            raise Invalid(f"invalid name of a map (expected 1 to {NAME_CHARS_MAX} characters)")
        self._maps, self._shards, self._name = maps, dict(shards), name
        self._look_s, self._hold_s = look_s, hold_s
        self._map: ShardMap | None = None
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Read the map, and look for changes from now on. Raises `Invalid` where there is none, and `SQLAlchemyError`."""
        if self._looking is None:
            await self.look()
            self._looking = asyncio.create_task(self._look_on())

    async def close(self) -> None:
        """End the looks."""
        if self._looking is not None:
            looking, self._looking = self._looking, None
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    @property
    def map(self) -> ShardMap:
        """The map as last read."""
        if self._map is None:
            raise Invalid("the map is not read yet; use async with, or open")
        return self._map

    async def look(self) -> ShardMap:
        """Read the map now. Raises `Invalid` and `SQLAlchemyError`."""
        async with self._maps.reading(UNKNOWN) as session:
            found = (await session.execute(_of(MAPS, self._name, MAPS.c.version, MAPS.c.map))).one_or_none()
        if found is None:
            raise Invalid(f"no map {self._name!r}; make it with create")
        if self._map is None or found.version > self._map.version:
            self._map = self._known(ShardMap.decoded(found.map, found.version))
        return self._map

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            with contextlib.suppress(SQLAlchemyError, OSError, Invalid):  # the last map is good while its fences say so
                await self.look()

    def _known(self, map: ShardMap) -> ShardMap:
        missing = set(map.shards) - self._shards.keys()
        if missing:
            raise Invalid(f"the map names the shard {min(missing)!r}, and this program has no database of that name")
        return map

    # --- one shard ---------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def writing(self, id: int, **options: Any) -> AsyncIterator[AsyncSession]:
        """A session on the primary of the shard that has this id, as `Replicas.writing`. Write rows of its shard alone.

        Raises `Moved` where the part is on its way to another shard for longer than `hold_s`.
        """
        async with contextlib.AsyncExitStack() as stack:

            def opened(shard: str, _: str) -> Any:
                return self._shards[shard].writing(**options)

            place, session = await self._entered(stack, id, opened, writes=True)
            yield session
            await session.commit()
        if session.info[POSITION]:
            session.info[POSITION] = place + session.info[POSITION]

    @contextlib.asynccontextmanager
    async def reading(self, id: int, seen: str = "", **options: Any) -> AsyncIterator[AsyncSession]:
        """A session that only reads, as `Replicas.reading`, at the shard that has this id. `seen`: a position of this id's
        shard; one of another shard says nothing here."""
        async with contextlib.AsyncExitStack() as stack:

            def opened(shard: str, seen: str) -> Any:
                return self._shards[shard].reading(seen, **options)

            _, session = await self._entered(stack, id, opened, writes=False, seen=seen)
            yield session

    async def _entered(
        self,
        stack: contextlib.AsyncExitStack,
        id: int,
        opened: Callable[[str, str], Any],
        *,
        writes: bool,
        seen: str = "",
    ) -> tuple[str, AsyncSession]:
        """Return how positions of the id's shard begin, and a session there."""
        loop = asyncio.get_running_loop()
        deadline, tries, primary = loop.time() + self._hold_s, 0, False
        await self._seen_map(seen)
        while True:
            map = self.map
            if map.part(id).held:
                map = await self.look()  # from this moment on it may be elsewhere
                if writes and map.part(id).held:
                    if loop.time() >= deadline:
                        raise Moved(f"the part of id {id} is on its way to another shard; try again later")
                    await asyncio.sleep(AGAIN_S)
                    continue
            shard = map.shard(id)
            async with contextlib.AsyncExitStack() as own:
                session = await own.enter_async_context(opened(shard, UNKNOWN if primary else _seen(seen, shard)))
                try:
                    await self._fenced(session, shard, map, writes=writes, is_replica=not (writes or primary))
                except _Behind:
                    primary = True
                    continue
                except Moved:
                    tries += 1
                    if tries >= TRIES and loop.time() >= deadline:
                        raise
                    await session.rollback()
                else:
                    await stack.enter_async_context(own.pop_all())
                    return f"{shard}~{map.version}~", session
            if (await self.look()).version <= map.version:
                await asyncio.sleep(AGAIN_S)

    async def _seen_map(self, seen: str) -> None:
        """Read the map where a position was made by a newer one."""
        version = seen.partition("~")[2].partition("~")[0]
        if version.isdecimal() and len(version) < 20 and int(version) > self.map.version:
            await self.look()

    async def _fenced(
        self, session: AsyncSession, shard: str, map: ShardMap, *, writes: bool = False, is_replica: bool = False
    ) -> None:
        """Compare the fence in each transaction of the session. Raises `Moved` in the first one, which is begun here, and
        `_Behind` where a replica may lack rows that the map gives it."""
        asked = _of(FENCES, self._name, FENCES.c.version)
        asked = asked.with_for_update(read=True) if writes else asked

        def begun(session: Session, transaction: SessionTransaction, connection: Any) -> None:
            if transaction.nested:
                return
            positions(connection.dialect).begin(connection, writes=writes)
            version = connection.execute(asked).scalar_one_or_none()
            if version is None:
                raise Invalid(f"shard {shard!r} has no fence of the map {self._name!r}; make it with create")
            if version > map.version:
                raise Moved(f"shard {shard!r} has a newer map than this session; begin it again")
            if version < map.version and is_replica:
                raise _Behind

        event.listen(session.sync_session, "after_begin", begun)
        await session.connection()

    # --- all shards --------------------------------------------------------------------------------------------------

    async def each(self, statement: Statement, id: Any, *, seen: str = "") -> list[Sequence[MergedRow]]:
        """Return the rows of a statement for each shard, without rows that a shard has but does not own.

        `id`: the column with the row's id. All shards are asked side by side, by one version of the map. Raises `Moved`.
        """
        for _ in range(TRIES):
            await self._seen_map(seen)
            map = self.map
            asked = [
                asyncio.ensure_future(
                    self._asked(shard, map, statement.where(map.owned(id, shard)), _seen(seen, shard))
                )
                for shard in map.shards
            ]
            try:
                return list(await asyncio.gather(*asked))
            except Moved:
                if (await self.look()).version <= map.version:
                    await asyncio.sleep(AGAIN_S)
            finally:
                for task in asked:
                    task.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
        raise Moved("the map changed with each try; try again")

    async def _asked(self, shard: str, map: ShardMap, statement: Statement, seen: str) -> Sequence[MergedRow]:
        async with self._shards[shard].reading(seen) as session:
            try:
                await self._fenced(session, shard, map, is_replica=seen != UNKNOWN)
            except _Behind:
                pass  # this session ends first: a change of the map may wait for it, and the next session for the change
            else:
                rows: Sequence[MergedRow] = (await session.execute(statement)).all()
                return rows
        return await self._asked(shard, map, statement, UNKNOWN)

    async def sums(self, statement: Statement, id: Any, *, seen: str = "") -> tuple[Any, ...]:
        """Return the sums of a statement with one row of counts and sums, as `select(func.count(), func.sum(…))`."""
        (row,) = (await self.groups(statement, id, keys=0, seen=seen)).values()
        return row

    async def groups(
        self, statement: Statement, id: Any, *, keys: int = 1, seen: str = ""
    ) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Return the sums of a statement with `GROUP BY`: its first `keys` columns are the group, the others are counts and
        sums."""
        parts: dict[tuple[Any, ...], list[tuple[Any, ...]]] = defaultdict(list)
        for rows in await self.each(statement, id, seen=seen):
            for row in rows:
                parts[tuple(row[:keys])].append(tuple(row[keys:]))
        return {group: tuple(_sum(column) for column in zip(*rows, strict=True)) for group, rows in parts.items()}

    async def top(
        self, statement: Statement, id: Any, n: int, *, key: Callable[[MergedRow], Any], seen: str = ""
    ) -> list[MergedRow]:
        """Return the first `n` rows of an ordered statement. `key`: of a row, in the same order: `lambda row: (-row.likes,
        row.id)` for `ORDER BY likes DESC, id`."""
        return list(islice(merge(*await self.each(statement.limit(n), id, seen=seen), key=key), n))

    # --- changes of the map ------------------------------------------------------------------------------------------

    async def create(self, map: ShardMap) -> None:
        """Make the missing tables, and store the first map. Let one program call it. Raises `Invalid` where it is there."""
        self._known(map)
        async with self._maps.writing() as session:
            await (await session.connection()).run_sync(MAPS.create, checkfirst=True)
        for shard in self._shards.values():
            async with shard.writing() as session:
                await (await session.connection()).run_sync(FENCES.create, checkfirst=True)
            async with shard.writing() as session:
                if (await session.execute(_of(FENCES, self._name, FENCES.c.version))).one_or_none() is None:
                    await session.execute(insert(FENCES).values(name=self._name, version=1))
        async with self._maps.writing() as session:
            if (await session.execute(_of(MAPS, self._name, MAPS.c.version))).one_or_none() is not None:
                raise Invalid(f"the map {self._name!r} exists; change it with change")
            await session.execute(insert(MAPS).values(name=self._name, version=1, map=map.encoded()))

    async def change(self, to: ShardMap, copy: Callable[["Move"], Awaitable[None]]) -> "Move":
        """Change the map while it is in use. `copy` copies the rows that move; nothing writes to them meanwhile.

        Reads go on at the old shards. After an error of `copy` the old map holds again. Where this program dies meanwhile,
        the parts stay held: `change` again, or `release`. Rows at their old shards are no more counted; delete them with
        `Move.clean`. Raises `Moved` where another program changes the map.
        """
        self._known(to)
        old = await self.look()
        if any(part.held for part in old.parts):
            raise Moved("another change of the map is under way; if its program died, call release")
        held = old.held(to)
        await self._publish(held)
        move = Move(self._shards, old, to)
        try:
            await self._raise_fences(held.version)
            await copy(move)
        except BaseException:
            await self._publish(ShardMap(old.kind, old.parts, held.version + 1))
            with contextlib.suppress(SQLAlchemyError, OSError):  # the old map gives each id the shard that it had
                await self._raise_fences(held.version + 1)
            raise
        await self._publish(ShardMap(to.kind, to.parts, held.version + 1))
        await self._raise_fences(held.version + 1)
        return move

    async def release(self) -> None:
        """End a change whose program died: held parts are written at their old shards again."""
        map = await self.look()
        parts = [(part.begin, part.shards) for part in map.parts]
        await self._publish(ShardMap(map.kind, parts, map.version + 1))
        await self._raise_fences(map.version + 1)

    async def _publish(self, map: ShardMap) -> None:
        async with self._maps.writing() as session:
            former = and_(MAPS.c.name == self._name, MAPS.c.version == map.version - 1)
            done = await session.execute(updated(MAPS).where(former).values(version=map.version, map=map.encoded()))
            if getattr(done, "rowcount", 0) != 1:
                raise Moved("another program has changed the map meanwhile")
        self._map = map

    async def _raise_fences(self, version: int) -> None:
        """Wait for writers under way at each shard, and keep out those with an older map."""
        for shard in self._shards.values():
            async with shard.writing() as session:
                lower = and_(FENCES.c.name == self._name, FENCES.c.version < version)
                await session.execute(updated(FENCES).where(lower).values(version=version))


class Move:
    """The rows that a change of the map moves."""

    def __init__(self, shards: Mapping[str, Replicas], before: ShardMap, after: ShardMap) -> None:
        self._shards, self.before, self.after = shards, before, after

    def pairs(self, column: Any) -> Iterable[tuple[str, str, Any]]:
        """Return each pair of shards, from and to, with the condition of the rows that move between them."""
        for source in self.before.shards:
            for target in self.after.shards:
                if source != target:
                    yield source, target, and_(self.before.owned(column, source), self.after.owned(column, target))

    async def copy(self, table: Table, id: Any) -> int:
        """Copy the rows of a table that move, and return their number. Rows of an earlier try are replaced."""
        count = 0
        for source, target, condition in self.pairs(id):
            async with self._shards[target].writing() as there:
                await there.execute(delete(table).where(condition))
                async with self._shards[source].reading(UNKNOWN) as here:
                    found = await here.stream(select(table).where(condition).execution_options(yield_per=ROWS))
                    async for rows in found.partitions(ROWS):
                        await there.execute(insert(table), [dict(row._mapping) for row in rows])
                        count += len(rows)
        return count

    async def clean(self, table: Table, id: Any) -> int:
        """Delete the rows of a table at shards that do not own them, and return their number."""
        count = 0
        for name in self.before.shards:
            async with self._shards[name].writing() as session:
                done = await session.execute(delete(table).where(not_(self.after.owned(id, name))))
                count += getattr(done, "rowcount", 0)
        return count


def _of(table: Table, name: str, *columns: Any) -> Statement:
    return select(*columns).where(table.c.name == name)


def _seen(seen: str, shard: str) -> str:
    """The position at this shard, in `SHARD~VERSION~POSITION`; empty: none. A text of another form is for the primary."""
    if not seen:
        return ""
    name, _, rest = seen.partition("~")
    version, _, position = rest.partition("~")
    if not version or not position:
        return UNKNOWN
    return position if name == shard else ""


def _sum(values: Sequence[Any]) -> Any:
    """As SQL: without the absent ones; None if all are."""
    there = [value for value in values if value is not None]
    return sum(there[1:], start=there[0]) if there else None
