"""Messages that are delivered if and only if a database transaction commits (I-10).

    prepare: a check-back, durable at Muster, due in `check_s`
    business writes, then the outcome row OK, in one transaction; commit
    tell: send the message, withdraw the check-back

A check-back asks only the database: it inserts ABORT unless a row exists, and follows the row that it finds. So it
sends the message of a handler that died after its commit, and a handler that commits after ABORT fails. Owns the row
and the block around a session's transaction. It must not know what a handler writes.
"""

import asyncio
from types import TracebackType
from typing import Any, Self, cast, overload

from sqlalchemy import URL, Connection, CursorResult, Engine, event, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from ..checks import ANSWER_S, CHECK_S, Checks, Outcome, Pending, Prepared
from ..clock import now_ms
from ..errors import Invalid, Refused
from ..messages import Messages
from .rows import OUTCOMES, insert_once


class Transactions(Checks):
    """Transactional messages of one database, and the answers to their check-backs.

    An ASGI application: serve it where the callback of `check_topic` points, in each program with this database or in one.
    """

    def __init__(
        self,
        messages: Messages,
        engine: AsyncEngine | Engine,
        *,
        check_topic: str,
        secret: str,
        check_s: float = CHECK_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`check_topic`: a topic for this database alone; `secret`: the secret that this topic signs with.

        `engine`: answers check-backs; it writes, so it must not be a replica's. `check_s`: a transaction that lasts
        longer, in seconds, may be aborted. `answer_s`: limit of an async engine's time for an answer, in seconds,
        shorter than the timeout of the topic; another engine has timeouts of its own. Raises `Invalid`.
        """
        super().__init__(messages, check_topic=check_topic, secret=secret, check_s=check_s, answer_s=answer_s)
        self._engine = engine

    @overload
    def transaction(
        self,
        session: AsyncSession,
        topic: str,
        data: Any,
        *,
        in_s: float | None = None,
        type: str = "application/octet-stream",
        handler: str = "",
        key: str = "",
    ) -> "Transaction": ...

    @overload
    def transaction(
        self,
        session: Session,
        topic: str,
        data: Any,
        *,
        in_s: float | None = None,
        type: str = "application/octet-stream",
        handler: str = "",
        key: str = "",
    ) -> "SyncTransaction": ...

    def transaction(
        self,
        session: AsyncSession | Session,
        topic: str,
        data: Any,
        *,
        in_s: float | None = None,
        type: str = "application/octet-stream",
        handler: str = "",
        key: str = "",
    ) -> "Transaction | SyncTransaction":
        """A block that ends with the commit of the session: the message is sent if and only if it commits.

        Use `async with` for an `AsyncSession`, `with` for a `Session`. `data`: bytes are a body of this `type`;
        anything else is sent as JSON. `in_s`: delay in seconds after the commit. `handler`: name of the calls in
        `calls`; the default is the topic. `key`: as for `Messages.send`. The block commits and rolls back itself, so do
        not use it inside `session.begin()`. Raises `Invalid`.
        """
        if _place(session.get_bind(clause=OUTCOMES).engine.url) != _place(self._engine.url):
            raise Invalid("the session writes to a database other than the one that answers these check-backs")
        prepared, handler = self._prepared(topic, data, in_s, type, key), handler or topic
        if isinstance(session, AsyncSession):
            return Transaction(self, session, prepared, handler)
        return SyncTransaction(self, session, prepared, handler)

    async def outcome(self, id: str, prepared: Prepared) -> Outcome | str:
        """Return the outcome row of a message; writes ABORT if there is none."""
        try:
            async with asyncio.timeout(self._answer_s):
                return await self._decided(id)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            return _silent(error)

    def outcome_sync(self, id: str, prepared: Prepared) -> Outcome | str:
        """The same. Raises `Invalid` for an async engine."""
        try:
            return self._decided_sync(id)
        except (SQLAlchemyError, OSError) as error:
            return _silent(error)

    async def _decided(self, id: str) -> Outcome:
        if isinstance(self._engine, Engine):
            return await asyncio.to_thread(self._decided_sync, id)
        async with self._engine.begin() as connection:
            await connection.run_sync(_insert_abort, id)
        # Read in a second transaction: it sees everything that was committed when the insert failed.
        async with self._engine.connect() as connection:
            return await connection.run_sync(_row, id)

    def _decided_sync(self, id: str) -> Outcome:
        if isinstance(self._engine, AsyncEngine):
            raise Invalid("the engine is async; use answer instead of answer_sync")
        with self._engine.begin() as connection:
            _insert_abort(connection, id)
        with self._engine.connect() as connection:
            return _row(connection, id)


class _Block(Pending):
    """A session's transaction with one message."""

    def __init__(self, owner: Transactions, session: Session, prepared: Prepared, handler: str) -> None:
        super().__init__(owner, prepared, handler)
        self._session = session
        self._begun: SessionTransaction | None = None

    def _free(self) -> None:
        if event.contains(self._session, "before_commit", _refuse):
            raise Invalid("the session is in such a block already; a transaction has one message")

    def _enter(self) -> None:
        self._begun = self._session.get_transaction() or self._session.begin()
        event.listen(self._session, "before_commit", _refuse)

    def _leave(self) -> None:
        event.remove(self._session, "before_commit", _refuse)

    def _decided(self, session: Session) -> Outcome:
        """Flush all pending writes, then write the outcome. Raises `Invalid`, and `Refused` where a check-back came
        first."""
        if session.get_transaction() is not self._begun:
            raise Invalid("the transaction was ended inside the block; let the block end it")
        session.flush()
        outcome = Outcome("OK", now_ms())
        if not self._decide(session, outcome):
            raise Refused(f"message {self.id} was aborted before its transaction ended", "aborted")
        return outcome

    def _decide(self, session: Session, outcome: Outcome) -> bool:
        """Write the outcome row in the handler's transaction. Returns False if a row exists."""
        row = {"message": self.id, "outcome": outcome.word, "at_ms": outcome.at_ms}
        dialect = session.get_bind(clause=OUTCOMES).dialect.name
        return cast(CursorResult[Any], session.execute(insert_once(dialect, OUTCOMES, row))).rowcount == 1


class Transaction(_Block):
    """One block of an `AsyncSession`."""

    def __init__(self, owner: Transactions, session: AsyncSession, prepared: Prepared, handler: str) -> None:
        super().__init__(owner, session.sync_session, prepared, handler)
        self._async = session

    async def __aenter__(self) -> Self:
        """Prepare. Raises as `Messages.send`: then the block wrote nothing, and no message is sent."""
        self._free()
        await asyncio.to_thread(self._prepare)
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit and tell, or roll back after an error.

        Raises `Refused` with the code `aborted` where a check-back came first: the transaction is rolled back. After an
        error of the commit itself, the database decides the outcome, and the check-back reads it there.
        """
        self._leave()
        if error is not None:
            await self._back()
            return
        try:
            outcome = await self._async.run_sync(self._decided)
        except BaseException:
            await self._back()
            raise
        await self._async.commit()
        await asyncio.to_thread(self._commit, outcome)

    async def _back(self) -> None:
        await self._async.rollback()
        await asyncio.to_thread(self._abort)


class SyncTransaction(_Block):
    """One block of a `Session`."""

    def __enter__(self) -> Self:
        """As `Transaction.__aenter__`."""
        self._free()
        self._prepare()
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `Transaction.__aexit__`."""
        self._leave()
        if error is not None:
            self._back()
            return
        try:
            outcome = self._decided(self._session)
        except BaseException:
            self._back()
            raise
        self._session.commit()
        self._commit(outcome)

    def _back(self) -> None:
        self._session.rollback()
        self._abort()


def _insert_abort(connection: Connection, id: str) -> None:
    row = {"message": id, "outcome": "ABORT", "at_ms": now_ms()}
    connection.execute(insert_once(connection.dialect.name, OUTCOMES, row))


def _row(connection: Connection, id: str) -> Outcome:
    found = connection.execute(select(OUTCOMES.c.outcome, OUTCOMES.c.at_ms).where(OUTCOMES.c.message == id))
    return Outcome(*found.one())


def _silent(error: Exception) -> str:
    return f"the database did not return the outcome: {type(error).__name__}"


def _place(url: URL) -> tuple[str, str | None, int | None, str | None]:
    kind = url.get_backend_name()
    return "mysql" if kind == "mariadb" else kind, url.host, url.port, url.database


def _refuse(session: Session) -> None:
    """Refuse a commit inside the block, which would lack the outcome. Savepoints may end."""
    if not session.in_nested_transaction():
        raise Invalid("the block commits at its end; a commit inside it would not send the message")
