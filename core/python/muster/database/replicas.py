"""Reads on replicas that never miss what their reader wrote; writes and transactional reads on the primary.

A session chooses its server once, when it begins. After a commit `session.info["position"]` is the place in the
primary's log that includes it. A reader that has seen a position gets a replica that has applied it, or the primary. Owns
sessions and the looks at replicas. It must not know SQL statements of a program.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from ..errors import Invalid
from .positions import Positions, positions
from .standings import UNKNOWN, Figures, Standings, State

R = TypeVar("R")

POSITION: Final = "position"
"""The key of a session's `info`."""
WAIT_S: Final = 0.05
LAG_S_MAX: Final = 5.0
LOOK_S: Final = 1.0
ANSWER_S: Final = 1.0
AWAY: Final = (SQLAlchemyError, OSError, TimeoutError)


class _Servers:
    """The common part: what is known about the servers, and what a session needs in either form."""

    def __init__(
        self, primary: Engine, replicas: Sequence[Engine], wait_s: float, lag_s_max: float, look_s: float
    ) -> None:
        self._positions = positions(primary.dialect)
        if any(engine.dialect.name != primary.dialect.name for engine in replicas):
            raise Invalid("primary and replicas are different kinds of databases")
        if not 0 <= wait_s <= 60:
            raise Invalid(f"invalid wait_s {wait_s} (expected 0 to 60 seconds)")
        names = [engine.url.render_as_string(hide_password=True) for engine in replicas]
        self._standings = Standings(self._positions, names, lag_s_max, look_s)
        self._wait_s, self._look_s = wait_s, look_s

    def figures(self) -> Figures:
        """Return counts since the start."""
        return self._standings.figures

    def states(self) -> list[State]:
        """Return the replicas as last seen."""
        return list(self._standings.states)

    def newest(self, one: str, other: str) -> str:
        """Return the position of two that includes the other: for a reader that wrote by two requests."""
        for position, beside in ((one, other), (other, one)):
            if not beside or position == UNKNOWN:
                return position
        if not (self._positions.is_position(one) and self._positions.is_position(other)):
            return UNKNOWN
        includes = self._positions.includes
        return one if includes(one, other) else other if includes(other, one) else UNKNOWN


class Replicas(_Servers):
    """A primary and its replicas, for async sessions. `async with`, or `open` and `close`. The caller ends the engines."""

    def __init__(
        self,
        primary: AsyncEngine,
        replicas: Sequence[AsyncEngine] = (),
        *,
        wait_s: float = WAIT_S,
        lag_s_max: float = LAG_S_MAX,
        look_s: float = LOOK_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`wait_s`: how long a read waits at a replica for a position. `lag_s_max`: a replica that lags more is left out.
        `look_s`: pause between two looks at the replicas. `answer_s`: a replica that takes longer is left out. Raises
        `Invalid`."""
        super().__init__(primary.sync_engine, [each.sync_engine for each in replicas], wait_s, lag_s_max, look_s)
        if not answer_s > 0:
            raise Invalid(f"invalid answer_s {answer_s} (expected more than 0 seconds)")
        self._primary, self._replicas, self._answer_s = primary, list(replicas), answer_s
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Look at the replicas, and go on doing so. Until then the primary serves all reads. Raises `Invalid` for a database
        that is not supported."""
        if self._replicas and self._looking is None:
            await self.look()
            self._looking = asyncio.create_task(self._look_on())

    async def close(self) -> None:
        """End the looks."""
        if self._looking is not None:
            looking, self._looking = self._looking, None
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def look(self) -> None:
        """Look at the primary and at all replicas once."""
        standings = self._standings
        with contextlib.suppress(*AWAY):
            standings.sampled(await self._said(self._primary, self._positions.written), time.monotonic())
        await asyncio.gather(*(self._look_at(index) for index in range(len(self._replicas))))

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            await self.look()

    async def _look_at(self, index: int) -> None:
        try:
            position = await self._said(self._replicas[index], self._positions.applied)
        except AWAY as error:
            self._standings.failed(index, _why(error))
        else:
            self._standings.answered(index, position, time.monotonic())

    async def _said(self, engine: AsyncEngine, ask: Callable[[Connection], R]) -> R:
        async with asyncio.timeout(self._answer_s), engine.connect() as connection:
            return await connection.run_sync(ask)

    @contextlib.asynccontextmanager
    async def writing(self, **options: Any) -> AsyncIterator[AsyncSession]:
        """A session on the primary: for writes, and for reads that a write depends on.

        Commits at the end of the block, and rolls back after an error. Each commit sets `session.info["position"]`.
        `options`: of `AsyncSession`. Raises `SQLAlchemyError`.
        """
        self._standings.figures.writes += 1
        async with self._primary.connect() as connection, AsyncSession(connection, **options) as session:
            _note_commits(session.sync_session, self._positions)
            yield session
            await session.commit()

    @contextlib.asynccontextmanager
    async def reading(self, seen: str = "", **options: Any) -> AsyncIterator[AsyncSession]:
        """A session that only reads: on a replica that has applied the position `seen`, else on the primary.

        The server refuses writes in it, also as text; they raise `Invalid`. `options`: of `AsyncSession`. Raises `Invalid`,
        `SQLAlchemyError`.
        """
        async with AsyncExitStack() as stack:
            index, connection = await self._chosen(seen, stack)
            await stack.enter_async_context(_cleaned(connection, self._positions))
            session = await stack.enter_async_context(AsyncSession(connection, **options))
            _only_read(session.sync_session, self._positions)
            try:
                yield session
            except DBAPIError as error:
                _judge(error, self._positions, self._standings, index)
                raise

    async def _chosen(self, seen: str, stack: AsyncExitStack) -> tuple[int | None, AsyncConnection]:
        figures = self._standings.figures
        for index in self._standings.order(seen):
            try:
                connection = await self._reached(self._replicas[index], seen)
            except AWAY as error:
                self._standings.failed(index, _why(error))
                figures.failed += 1
                continue
            if connection is None:
                figures.behind += 1
                break
            stack.push_async_callback(connection.close)
            figures.replica_reads += 1
            return index, connection
        figures.primary_reads += 1
        return None, await stack.enter_async_context(self._primary.connect())

    async def _reached(self, engine: AsyncEngine, seen: str) -> AsyncConnection | None:
        """Return a connection to a replica that has this position; None: it does not have it in time."""
        connection = engine.connect()
        async with asyncio.timeout(self._answer_s + (self._wait_s if seen else 0.0)):
            await connection.start()
            if not seen:
                return connection
            try:
                reached = await connection.run_sync(self._positions.reached, seen, self._wait_s)
                await connection.rollback()
            except BaseException:
                await connection.invalidate()
                await connection.close()
                raise
        if reached:
            return connection
        await connection.close()
        return None


class SyncReplicas(_Servers):
    """The same for a program without an event loop, with engines and sessions of SQLAlchemy without async.

    A thread looks at the replicas. Time limits are those of the engines' drivers: give each `connect_timeout`,
    `read_timeout` or `statement_timeout`.
    """

    def __init__(
        self,
        primary: Engine,
        replicas: Sequence[Engine] = (),
        *,
        wait_s: float = WAIT_S,
        lag_s_max: float = LAG_S_MAX,
        look_s: float = LOOK_S,
    ) -> None:
        """As `Replicas`. Raises `Invalid`."""
        super().__init__(primary, replicas, wait_s, lag_s_max, look_s)
        self._primary, self._replicas = primary, list(replicas)
        self._ended = threading.Event()
        self._looking: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """As `Replicas.open`."""
        if self._replicas and self._looking is None:
            self.look()
            self._looking = threading.Thread(target=self._look_on, name="muster-replicas", daemon=True)
            self._looking.start()

    def close(self) -> None:
        """End the looks."""
        self._ended.set()
        if self._looking is not None:
            self._looking.join()

    def look(self) -> None:
        """Look at the primary and at all replicas once."""
        with contextlib.suppress(*AWAY), self._primary.connect() as connection:
            self._standings.sampled(self._positions.written(connection), time.monotonic())
        for index, engine in enumerate(self._replicas):
            try:
                with engine.connect() as connection:
                    position = self._positions.applied(connection)
            except AWAY as error:
                self._standings.failed(index, _why(error))
            else:
                self._standings.answered(index, position, time.monotonic())

    def _look_on(self) -> None:
        while not self._ended.wait(self._look_s):
            self.look()

    @contextlib.contextmanager
    def writing(self, **options: Any) -> Iterator[Session]:
        """As `Replicas.writing`."""
        self._standings.figures.writes += 1
        with self._primary.connect() as connection, Session(connection, **options) as session:
            _note_commits(session, self._positions)
            yield session
            session.commit()

    @contextlib.contextmanager
    def reading(self, seen: str = "", **options: Any) -> Iterator[Session]:
        """As `Replicas.reading`."""
        with ExitStack() as stack:
            index, connection = self._chosen(seen, stack)
            stack.callback(_clean, connection, self._positions)
            session = stack.enter_context(Session(connection, **options))
            _only_read(session, self._positions)
            try:
                yield session
            except DBAPIError as error:
                _judge(error, self._positions, self._standings, index)
                raise

    def _chosen(self, seen: str, stack: ExitStack) -> tuple[int | None, Connection]:
        figures = self._standings.figures
        for index in self._standings.order(seen):
            try:
                connection = self._reached(self._replicas[index], seen)
            except AWAY as error:
                self._standings.failed(index, _why(error))
                figures.failed += 1
                continue
            if connection is None:
                figures.behind += 1
                break
            stack.callback(connection.close)
            figures.replica_reads += 1
            return index, connection
        figures.primary_reads += 1
        return None, stack.enter_context(self._primary.connect())

    def _reached(self, engine: Engine, seen: str) -> Connection | None:
        connection = engine.connect()
        try:
            reached = not seen or self._positions.reached(connection, seen, self._wait_s)
            connection.rollback()
        except BaseException:
            connection.close()
            raise
        if reached:
            return connection
        connection.close()
        return None


def _note_commits(session: Session, known: Positions) -> None:
    session.info[POSITION] = ""

    def committed(session: Session) -> None:
        connection = session.get_bind()
        assert isinstance(connection, Connection)
        if connection.in_transaction():  # a savepoint ended
            return
        try:
            session.info[POSITION] = known.committed(connection)
            connection.rollback()
        except AWAY:  # committed all the same: an error here would say that it is not
            session.info[POSITION] = UNKNOWN

    event.listen(session, "after_commit", committed)


def _only_read(session: Session, known: Positions) -> None:
    def begun(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
        if not transaction.nested:
            known.only_read(connection)

    event.listen(session, "after_begin", begun)


@contextlib.asynccontextmanager
async def _cleaned(connection: AsyncConnection, known: Positions) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await connection.run_sync(_clean, known)


def _clean(connection: Connection, known: Positions) -> None:
    """Give the connection back as one that writes, or not at all."""
    if connection.invalidated:
        return
    try:
        known.may_write(connection)
        connection.rollback()
    except BaseException as error:
        connection.invalidate()
        if not isinstance(error, AWAY):
            raise


def _judge(error: DBAPIError, known: Positions, standings: Standings, index: int | None) -> None:
    """Leave a lost replica out. Raises `Invalid` where the error is a write that was refused."""
    if known.is_refused_write(error):
        raise Invalid("a session of reading cannot write; use writing") from error
    if index is not None and error.connection_invalidated:
        standings.failed(index, _why(error))


def _why(error: BaseException) -> str:
    """The reason without addresses and names, which may be secret."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    origin = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return f"no answer: {type(origin).__name__}"
