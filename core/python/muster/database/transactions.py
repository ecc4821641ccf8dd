"""Messages that are delivered if and only if a database transaction commits (I-10).

    prepare: a check-back, durable at Muster, due in `check_s`
    business writes, then the outcome row OK, in one transaction; commit
    tell: send the message, withdraw the check-back

A check-back that comes asks the database alone: it inserts ABORT unless a row is there, and obeys the row that is. So
it sends the message of a handler that died after its commit, and a handler that commits after ABORT fails. Owns these
steps and their order. It must not know what a handler writes.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self

from sqlalchemy import URL, CursorResult, event, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from ..callbacks import verified
from ..errors import Invalid, MusterError, Refused
from ..messages import Messages, Sent
from .rows import OUTCOMES, insert_once, now_ms

CHECK_S: Final = 60.0
ANSWER_S: Final = 8.0
"""Shorter than a callback's deadline, which is 10 s unless its topic says another."""
CHECK_TYPE: Final = "application/vnd.muster.check"
BODY_BYTES_MAX: Final = 1 << 20
"""The schedule takes 1 MiB with the envelope."""
ID_BYTES: Final = 16
DELAY_S_MAX: Final = 3_650 * 86_400
LOG: Final = logging.getLogger(__name__)

Word = Literal["OK", "ABORT"]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """The one row of a message. `at_ms`: when it was written, by that process's clock."""

    word: Word
    at_ms: int


@dataclass(frozen=True, slots=True)
class Answer:
    """To a check-back, over HTTP: 200 once the outcome stands and is obeyed; any other status asks for another one."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message before its outcome. `in_s` counts from the outcome row; None: at once."""

    topic: str
    type: str
    in_s: float | None
    body: bytes

    def encoded(self) -> bytes:
        """As a check-back carries it: a line of JSON, then the body."""
        head = {"topic": self.topic, "type": self.type, "in_s": self.in_s}
        return json.dumps(head, separators=(",", ":")).encode() + b"\n" + self.body


def decoded(content: bytes) -> Prepared:
    """What `Prepared.encoded` wrote. Raises `ValueError`."""
    head, line, body = content.partition(b"\n")
    said = json.loads(head)
    if not line or not isinstance(said, dict) or said.keys() != {"topic", "type", "in_s"}:
        raise ValueError("it is no check-back")
    return Prepared(str(said["topic"]), str(said["type"]), said["in_s"], body)


class Transactions:
    """Transactional messages of one database, and the answers to their check-backs.

    An ASGI application: serve it where the callback of `check_topic` points, in each program with this database or in one.
    """

    def __init__(
        self,
        messages: Messages,
        engine: AsyncEngine,
        *,
        check_topic: str,
        secret: str,
        check_s: float = CHECK_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        """`check_topic`: a topic of this database alone, and `secret` the one that it signs with.

        `check_s`: a transaction that lasts longer may be aborted. `answer_s`: how long the database may take for the answer
        to a check-back; shorter than the timeout of the topic. `engine` writes, so it is no replica's. Raises `Invalid`.
        """
        verified(secret, {}, b"")
        if not check_s > 0:
            raise Invalid(f"{check_s} s is no time until a check-back")
        self._messages, self._engine, self._secret = messages, engine, secret
        self._check_topic, self._check_s, self._answer_s = check_topic, check_s, answer_s

    def transaction(
        self,
        session: AsyncSession,
        topic: str,
        data: Any,
        *,
        in_s: float | None = None,
        type: str = "application/octet-stream",
    ) -> "Transaction":
        """A block that ends with the commit of the session: the message goes if and only if it commits.

        `data`: bytes, a body of this `type`; anything else is sent as JSON. `in_s`: this long after the commit. The block
        commits and rolls back itself: it is not inside `session.begin()`. Raises `Invalid`.
        """
        if topic == self._check_topic:
            raise Invalid(f"topic {topic} has the check-backs")
        if in_s is not None and not 0 <= in_s <= DELAY_S_MAX:
            raise Invalid(f"a delay of {in_s} s is not 0 to {DELAY_S_MAX}")
        if not isinstance(data, bytes):
            data, type = json.dumps(data, separators=(",", ":")).encode(), "application/json"
        if _place(session.get_bind(clause=OUTCOMES).engine.url) != _place(self._engine.url):
            raise Invalid("the session writes to another database than the one whose check-backs are answered here")
        return Transaction(self, session, Prepared(topic, type, in_s, data))

    async def answer(self, headers: Mapping[str, str], content: bytes) -> Answer:
        """Answer a check-back: its headers, with names in small letters, and its body. Never raises for what others do."""
        if not verified(self._secret, headers, content):
            return Answer(401, "the signature is not of the topic of check-backs")
        try:
            prepared = decoded(content)
        except ValueError:
            return Answer(400, "the body is no check-back")
        id = headers["webhook-id"]
        try:
            async with asyncio.timeout(self._answer_s):
                outcome = await self._decided(id)
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            return Answer(503, f"the database does not say the outcome: {type(error).__name__}")
        if outcome.word == "OK":
            try:
                await self.send(id, prepared, outcome)
            except MusterError as error:
                return Answer(503, f"the message is committed and not sent: {error}")
        return Answer(200, outcome.word)

    async def _decided(self, id: str) -> OutcomeRow:
        """The row of a message, which is ABORT if there was none."""
        row = {"message": id, "outcome": "ABORT", "at_ms": now_ms()}
        async with self._engine.begin() as connection:
            await connection.execute(insert_once(self._engine.dialect.name, OUTCOMES, row))
        # A second transaction: it sees all that was committed when the insert lost.
        async with self._engine.connect() as connection:
            found = await connection.execute(
                select(OUTCOMES.c.outcome, OUTCOMES.c.at_ms).where(OUTCOMES.c.message == id)
            )
            word, at_ms = found.one()
        return OutcomeRow(word, at_ms)

    async def prepare(self, id: str, prepared: Prepared) -> None:
        """Make the check-back durable. Raises as `Messages.send`."""
        await asyncio.to_thread(
            self._messages.send, self._check_topic, prepared.encoded(), in_s=self._check_s, id=id, type=CHECK_TYPE
        )

    async def send(self, id: str, prepared: Prepared, outcome: OutcomeRow) -> Sent:
        """Send a committed message; the same id is the same message. Raises as `Messages.send`."""
        at = None if prepared.in_s is None else outcome.at_ms / 1_000 + prepared.in_s
        return await asyncio.to_thread(
            self._messages.send, prepared.topic, prepared.body, at=at, id=id, type=prepared.type
        )

    async def withdraw(self, id: str) -> None:
        """Withdraw the check-back. One that is under way obeys the outcome. Raises as `Messages.cancel`."""
        await asyncio.to_thread(self._messages.cancel, self._check_topic, id)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI calls an application."""
        if scope["type"] != "http":
            raise Invalid(f"check-backs come over HTTP, not as {scope['type']}")
        content, more = b"", True
        while more and len(content) <= BODY_BYTES_MAX:
            part = await receive()
            if part["type"] == "http.disconnect":
                return
            content, more = content + part.get("body", b""), part.get("more_body", False)
        if len(content) > BODY_BYTES_MAX:
            said = Answer(413, f"a check-back has at most {BODY_BYTES_MAX} bytes")
        else:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            said = await self.answer(headers, content)
        text = said.text.encode()
        head = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": said.status, "headers": head})
        await send({"type": "http.response.body", "body": text})


class Transaction:
    """One block. `id`: of the message. `sent`: the answer to it after the block; None where a check-back will send it."""

    def __init__(self, owner: Transactions, session: AsyncSession, prepared: Prepared) -> None:
        self.id = secrets.token_hex(ID_BYTES)
        self.sent: Sent | None = None
        self._owner, self._session, self._prepared = owner, session, prepared
        self._begun: SessionTransaction | None = None

    async def __aenter__(self) -> Self:
        """Prepare. Raises as `Messages.send`: then nothing was written, and nothing is sent."""
        sync = self._session.sync_session
        if event.contains(sync, "before_commit", _refuse):
            raise Invalid("the session is in such a block; one transaction has one message")
        await self._owner.prepare(self.id, self._prepared)
        self._begun = sync.get_transaction() or sync.begin()
        event.listen(sync, "before_commit", _refuse)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit and tell, or roll back what failed.

        Raises `Refused` with the code `aborted` where a check-back came first: the transaction is rolled back. An error of
        the commit itself leaves the outcome to the database, and the check-back finds it there.
        """
        sync = self._session.sync_session
        event.remove(sync, "before_commit", _refuse)
        if error is not None:
            await self._abort()
            return
        try:
            if sync.get_transaction() is not self._begun:
                raise Invalid("the transaction was ended inside the block, which ends it itself")
            await self._session.flush()
            outcome = OutcomeRow("OK", now_ms())
            if not await self._decide(outcome):
                raise Refused(f"message {self.id} was aborted before its transaction ended", "aborted")
        except BaseException:
            await self._abort()
            raise
        await self._session.commit()
        try:
            self.sent = await self._owner.send(self.id, self._prepared, outcome)
            await self._owner.withdraw(self.id)
        except MusterError as failed:
            LOG.warning("message %s is committed; a check-back ends it: %s", self.id, failed)

    async def _decide(self, outcome: OutcomeRow) -> bool:
        """Write the outcome row in the handler's transaction. False: there is one."""
        row = {"message": self.id, "outcome": outcome.word, "at_ms": outcome.at_ms}
        dialect = self._session.get_bind(clause=OUTCOMES).dialect.name
        done: CursorResult[Any] = await self._session.execute(  # type: ignore[assignment]
            insert_once(dialect, OUTCOMES, row)
        )
        return done.rowcount == 1

    async def _abort(self) -> None:
        """Nothing of it was committed, so no check-back is needed."""
        await self._session.rollback()
        try:
            await self._owner.withdraw(self.id)
        except MusterError as failed:
            LOG.warning("message %s is rolled back; a check-back ends it: %s", self.id, failed)


def _place(url: URL) -> tuple[str, str | None, int | None, str | None]:
    return url.get_backend_name(), url.host, url.port, url.database


def _refuse(session: Session) -> None:
    """A commit inside the block would be one without its outcome. Savepoints may end."""
    if not session.in_nested_transaction():
        raise Invalid("the block commits at its end; a commit inside it would not send the message")
