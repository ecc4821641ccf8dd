"""Handlers with transactional messages in processes that die or stand still at a step, and a program that forks them.

The program reads a job a line and writes what came of it: `ended CODE`, or `stopped`, after which the next line lets the
handler go on.
"""

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import sqlalchemy.dialects.mysql.asyncmy
import sqlalchemy.dialects.mysql.pymysql
import sqlalchemy.dialects.postgresql.asyncpg
import sqlalchemy.dialects.postgresql.psycopg
import sqlalchemy.dialects.sqlite.aiosqlite  # noqa: F401 - loaded before forks
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, event, insert
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from sqlalchemy.util import await_only

from muster.checks import Outcome
from muster.database.rows import OUTCOMES, insert_once
from muster.database.transactions import Transaction, Transactions
from muster.errors import Refused
from muster.messages import Messages
from muster_server.plane.database.url import location
from tests.documents import ROOT

for name in ("psycopg", "pymysql"):
    importlib.import_module(name)  # before forks too

CHECKS: Final = "checks"
PLAIN: Final = {"sqlite": "sqlite", "mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg"}
ORDERS: Final = Table("shop_orders", MetaData(), Column("id", Integer, primary_key=True), mysql_engine="InnoDB")
STEPS: Final = ("prepare", "prepared", "written", "decided", "committing", "committed", "sent", "withdrawn")
"""`committing`: the server has not heard of it yet."""
ABORTED: Final = 3
FAILED: Final = 4
BROKEN: Final = 5


@dataclass(frozen=True)
class Job:
    """One handler: it inserts `order` and sends it. `fault`: `kill`, `stop` or nothing, at the step; `stop, kill` dies after
    its commit too. `raises`: the business fails. `bug`: of a broken library, see `Broken`. `plain`: it has a `Session`."""

    url: str
    face: str
    secret: str
    order: int
    step: str = ""
    fault: str = ""
    raises: bool = False
    in_s: float | None = None
    bug: str = ""
    plain: bool = False


class Handlers:
    """The program, as a test sees it."""

    def __init__(self) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.messages.handlers"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, job: Job) -> str:
        """Run a handler until it ends, or stands still."""
        return self._say(json.dumps(asdict(job)))

    def go_on(self) -> str:
        """Let the one that stands still go on, to its end."""
        return self._say("go on")

    def _say(self, line: str) -> str:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(f"{line}\n")
        self._program.stdin.flush()
        return self._program.stdout.readline().strip()

    def close(self) -> None:
        """End the program."""
        self._program.communicate()


@contextmanager
def handlers() -> Iterator[Handlers]:
    """While the block lasts."""
    program = Handlers()
    try:
        yield program
    finally:
        program.close()


def engine(url: str, **more: Any) -> AsyncEngine:
    """To a database of a test."""
    return create_async_engine(make_url(location(url).url), **more)


def plain_engine(url: str, **more: Any) -> Engine:
    """The same for a `Session`."""
    where = location(url)
    return create_engine(where.url.set(drivername=PLAIN[where.kind]), **more)


class Watched(Messages):
    """A client that tells its steps."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.face, key="k")
        self._job = job

    def _ask(self, method: str, path: str, document: Any = None) -> Any:
        sends, checks = not path.endswith("/cancel"), f"/{CHECKS}/" in path
        if sends and checks:
            reach(self._job, "prepare")
        answer = super()._ask(method, path, document)
        reach(self._job, "prepared" if sends and checks else "sent" if sends else "withdrawn")
        return answer


class Broken(Transaction):
    """A bug: the outcome row commits by itself, `before` the business or `after` it; or the block `disobeys` another."""

    bug = ""

    def _decide(self, session: Session, outcome: Outcome) -> bool:
        if self.bug == "disobeys":
            super()._decide(session, outcome)
            return True
        if self.bug == "before":
            return await_only(self._alone(outcome))
        self._late = outcome
        return True

    async def _alone(self, outcome: Outcome) -> bool:
        assert isinstance(self._async.bind, AsyncEngine)
        engine = create_async_engine(self._async.bind.url, poolclass=NullPool)  # without the hooks of steps
        row = {"message": self.id, "outcome": outcome.word, "at_ms": outcome.at_ms}
        async with engine.begin() as connection:
            done = await connection.execute(insert_once(engine.dialect.name, OUTCOMES, row))
        return done.rowcount == 1

    async def __aexit__(self, *error: Any) -> None:
        await super().__aexit__(*error)
        if self.bug == "after" and error[0] is None:
            await self._alone(self._late)


def reach(job: Job, step: str) -> None:
    """A handler is at this step. Signals go to this very thread, so that it does nothing more."""
    if step == job.step and job.fault:
        number = signal.SIGKILL if job.fault == "kill" else signal.SIGSTOP
        signal.pthread_kill(threading.get_ident(), number)
    elif step == "committed" and job.fault == "stop, kill":
        signal.pthread_kill(threading.get_ident(), signal.SIGKILL)


def watch(job: Job, made: Engine) -> None:
    """Hooks at the steps of the database."""

    def executed(_: Any, __: Any, statement: str, *___: Any) -> None:
        if "muster_outcomes" in statement:
            reach(job, "decided")

    event.listen(made, "after_cursor_execute", executed)
    event.listen(made, "commit", lambda _: reach(job, "committing"))


def handle_plainly(job: Job) -> int:
    """One handler with a `Session`, as a user writes it."""
    made = plain_engine(job.url, poolclass=NullPool)
    watch(job, made)
    messages = Transactions(Watched(job), made, check_topic=CHECKS, secret=job.secret)
    with Session(made) as session:
        event.listen(session, "after_commit", lambda _: reach(job, "committed"))
        try:
            with messages.transaction(session, "orders", {"order": job.order}, in_s=job.in_s):
                session.execute(insert(ORDERS).values(id=job.order))
                reach(job, "written")
                if job.raises:
                    raise LookupError("no such article")
        except Refused as refused:
            return ABORTED if refused.code == "aborted" else BROKEN
        except LookupError:
            return FAILED
        except SQLAlchemyError:
            return BROKEN
    return 0


async def handle(job: Job) -> int:
    """The same with an `AsyncSession`."""
    made = engine(job.url, poolclass=NullPool)
    watch(job, made.sync_engine)
    messages = Transactions(Watched(job), made, check_topic=CHECKS, secret=job.secret)
    async with AsyncSession(made) as session:
        event.listen(session.sync_session, "after_commit", lambda _: reach(job, "committed"))
        block = messages.transaction(session, "orders", {"order": job.order}, in_s=job.in_s)
        if job.bug:
            block.__class__ = Broken
            block.bug = job.bug  # type: ignore[attr-defined]
        try:
            async with block:
                await session.execute(insert(ORDERS).values(id=job.order))
                reach(job, "written")
                if job.raises:
                    raise LookupError("no such article")
        except Refused as refused:
            return ABORTED if refused.code == "aborted" else BROKEN
        except LookupError:
            return FAILED
        except SQLAlchemyError:
            return BROKEN
    return 0


def main() -> None:
    """Fork a handler for each line."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = BROKEN
            try:
                job = Job(**json.loads(line))
                code = handle_plainly(job) if job.plain else asyncio.run(handle(job))
            finally:
                os._exit(code)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            print("stopped", flush=True)
            sys.stdin.readline()
            os.kill(child, signal.SIGCONT)
            _, status = os.waitpid(child, 0)
        print("ended", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
