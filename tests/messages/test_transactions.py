"""Transactional messages over the three databases: delivered if and only if committed, whoever dies or stands still (I-10).

Handlers are processes of their own. Nothing fires by itself: each test says when a check-back comes.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from sqlalchemy import event, insert, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from muster.callbacks import verified
from muster.calls import HOUR_S, Hour
from muster.checks import Answer, Outcome
from muster.database.barrier import first_time, first_time_sync
from muster.database.rows import EFFECTS, OUTCOMES, create, create_sync, forget, forget_sync
from muster.database.transactions import SyncTransaction, Transaction, Transactions
from muster.errors import Invalid, Refused, Unavailable
from muster.messages import Messages
from muster_server.systems.messages.topics import new_secret
from tests.databases import Database, plain
from tests.fakes.face import Face, face
from tests.messages.handlers import (
    ABORTED,
    CHECKS,
    FAILED,
    ORDERS,
    STEPS,
    Handlers,
    Job,
    engine,
    handlers,
    plain_engine,
)
from tests.waiting import PATIENT_S

RUNS: Final = int(os.environ.get("MUSTERTEST_TRANSACTIONS", "500"))
SEED: Final = int(os.environ.get("MUSTERTEST_SEED", "36"))
SECRET: Final = new_secret()
ANSWER_S: Final = 5.0
SHORT_S: Final = 0.1
"""Where a handler that stands still may hold the row: the check-back comes again."""
CHECKS_MAX: Final = 100
RESTARTS: Final = 60
"""Handlers for each restart of their database, while they stand still or run."""


def signed(id: str, body: bytes, secret: str = SECRET, at: float | None = None) -> dict[str, str]:
    """The headers of a callback."""
    timestamp = str(int(time.time() if at is None else at))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signature = hmac.digest(key, f"{id}.{timestamp}.".encode() + body, hashlib.sha256)
    return {
        "webhook-id": id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
    }


class Shop:
    """A database with orders, the face that its handlers use, and the answers to its check-backs."""

    def __init__(self, url: str, plane: Face) -> None:
        self.url, self.plane = url, plane
        # A file waits for its writer in a thread, for which nothing else waits.
        waits: dict[str, Any] = {"connect_args": {"timeout": 0.2}} if url.startswith("sqlite") else {}
        self.engine: AsyncEngine = engine(url, **waits)
        self.client = Messages(plane.url, key="k")
        self.messages = self.answering(Transactions, ANSWER_S)

    def answering(self, kind: type[Transactions], answer_s: float) -> Transactions:
        return kind(self.client, self.engine, check_topic=CHECKS, secret=SECRET, answer_s=answer_s, check_s=0.001)

    async def open(self) -> None:
        await create(self.engine)
        async with self.engine.begin() as connection:
            await connection.run_sync(ORDERS.metadata.create_all)

    async def close(self) -> None:
        self.client.close()
        await self.engine.dispose()

    def session(self) -> AsyncSession:
        return AsyncSession(self.engine)

    async def check(self, id: str) -> Answer | None:
        """A check-back comes; None where it was withdrawn, or has ended."""
        body = self.plane.take(CHECKS, id)
        if body is None:
            return None
        answer = await self.messages.answer(signed(id, body), body)
        self.plane.end(CHECKS, id, well=answer.status == 200)
        return answer

    async def settle(self) -> None:
        """Check-backs come until none waits."""
        for held in self.plane.held(CHECKS):
            for _ in range(CHECKS_MAX):
                if await self.check(held.id) is None:
                    break

    async def committed(self) -> set[int]:
        async with self.engine.connect() as connection:
            return set((await connection.execute(select(ORDERS.c.id))).scalars())

    async def outcomes(self) -> dict[str, tuple[str, int]]:
        async with self.engine.connect() as connection:
            rows = await connection.execute(select(OUTCOMES.c.message, OUTCOMES.c.outcome, OUTCOMES.c.at_ms))
            return {id: (outcome, at_ms) for id, outcome, at_ms in rows}

    async def violations(self, jobs: list[Job]) -> list[str]:
        """What is not so once no check-back waits: delivered, committed and the outcome row say the same."""
        said = list[str]()
        sent = {int(json.loads(each.body)["order"]): each for each in self.plane.held("orders")}
        checks = {json.loads(each.body.partition(b"\n")[2])["order"]: each for each in self.plane.held(CHECKS)}
        committed, outcomes = await self.committed(), await self.outcomes()
        if len(sent) != len(self.plane.held("orders")):
            said.append("an order was sent under two ids")
        for job in jobs:
            order = job.order
            check = checks.get(order)
            word, at_ms = outcomes.get("" if check is None else check.id, (None, 0))
            if (order in sent) != (order in committed):
                said.append(f"{job}: delivered {order in sent}, committed {order in committed}")
            if (word == "OK") != (order in committed):
                said.append(f"{job}: outcome {word}, committed {order in committed}")
            if check is not None and check.state not in {"done", "cancelled"}:
                said.append(f"{job}: its check-back is {check.state}")
            if order in sent and job.in_s is not None and sent[order].due_at != at_ms + round(job.in_s * 1_000):
                said.append(f"{job}: due at {sent[order].due_at}, committed at {at_ms}")
        return said


@contextlib.asynccontextmanager
async def opened(database: Database) -> AsyncIterator[Shop]:
    with face(CHECKS, "orders") as plane:
        made = Shop(database.url, plane)
        await made.open()
        try:
            yield made
        finally:
            await made.close()


@pytest.fixture
async def shop(database: Database) -> AsyncIterator[Shop]:
    async with opened(database) as made:
        yield made


async def ordered(
    shop: Shop, session: AsyncSession, order: int, do: Callable[[Transaction], Awaitable[object]]
) -> None:
    """An order in a block, and then this."""
    async with shop.messages.transaction(session, "orders", {"order": order}) as block:
        await session.execute(insert(ORDERS).values(id=order))
        await do(block)


@pytest.fixture(scope="module")
def program() -> Iterator[Handlers]:
    with handlers() as made:
        yield made


async def restart(database: Database) -> None:
    """kill -9, and serve again."""
    await asyncio.to_thread(database.kill)
    database.start()
    await plain(database.url, "SELECT 1")


async def struck(
    shop: Shop, program: Handlers, job: Job, dice: Random, database: Database | None = None
) -> Counter[str]:
    """Run one handler under its fault, with a check-back beside or after it. Counts what was seen.

    `database`: it is killed too, where the handler stands still, or at any moment of it, and serves again.
    """
    seen = Counter[str]()
    before = {each.id for each in shop.plane.held(CHECKS)}

    async def checked() -> None:
        for held in shop.plane.held(CHECKS):
            if held.id not in before and (answer := await shop.check(held.id)) is not None:
                seen[f"check {answer.status} {answer.text if answer.status == 200 else ''}".strip()] += 1

    running = asyncio.create_task(asyncio.to_thread(program.run, job))
    if database is not None and not job.fault:
        await asyncio.wait([running], timeout=dice.random() * 0.03)
        await restart(database)
    elif dice.random() < 0.3:  # a check-back comes at any moment of it
        while not running.done() and not seen:
            await checked()
            await asyncio.wait([running], timeout=0.001)
    said = await running
    if said == "stopped":
        if database is not None:
            await restart(database)
        await checked()
        said = await asyncio.to_thread(program.go_on)
        seen["went on"] += 1
    seen[said] += 1
    await checked()
    return seen


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(RUNS, id="some"),
        pytest.param(10_000, id="many", marks=[pytest.mark.soak, pytest.mark.timeout(3_600)]),
    ],
)
async def test_a_message_is_delivered_if_and_only_if_its_transaction_commits(
    shop: Shop, database: Database, program: Handlers, runs: int
) -> None:
    dice, seen = Random(f"{SEED} {shop.engine.dialect.name}"), Counter[str]()

    def restarts(order: int) -> bool:
        return order % RESTARTS == RESTARTS - 1

    shop.messages = shop.answering(Transactions, SHORT_S)
    jobs = [
        Job(
            shop.url,
            shop.plane.url,
            SECRET,
            order,
            step=STEPS[order % len(STEPS)],
            fault=dice.choice(["stop", ""])
            if restarts(order)
            else dice.choice(["kill", "kill", "stop", "stop, kill", ""]),
            raises=dice.random() < 0.1,
            in_s=dice.choice([None, 1_800.0]),
            plain=dice.random() < 0.5,
        )
        for order in range(runs // 3)
    ]
    for job in jobs:
        seen += await struck(shop, program, job, dice, database if restarts(job.order) else None)
    await shop.settle()
    assert await shop.violations(jobs) == []
    assert {"ended 0", "ended -9", f"ended {FAILED}", "went on", "check 200 OK", "check 200 ABORT"} <= set(seen), seen
    assert seen[f"ended {ABORTED}"] > 0, "no commit came too late"


class Reads(Transactions):
    """A bug: a check-back that finds no row writes none."""

    async def _decided(self, id: str) -> Outcome:
        assert isinstance(self._engine, AsyncEngine)
        async with self._engine.connect() as connection:
            found = await connection.execute(
                select(OUTCOMES.c.outcome, OUTCOMES.c.at_ms).where(OUTCOMES.c.message == id)
            )
            row = found.one_or_none()
        return Outcome("ABORT", 0) if row is None else Outcome(*row)


@pytest.mark.parametrize(
    ("bug", "step", "fault"),
    [
        ("before", "committing", "kill"),
        ("after", "committed", "kill"),
        ("disobeys", "written", "stop"),
        ("reads", "written", "stop, kill"),
    ],
)
async def test_a_planted_bug_is_found(served: Database, program: Handlers, bug: str, step: str, fault: str) -> None:
    """An outcome row outside the transaction, before it or after; one that is not obeyed; none of a check-back."""
    async with opened(served) as shop:
        shop.messages = shop.answering(Reads if bug == "reads" else Transactions, SHORT_S)
        found = list[str]()
        for order, at in enumerate(STEPS):
            job = Job(shop.url, shop.plane.url, SECRET, order, at, fault, bug="" if bug == "reads" else bug)
            if program.run(job) == "stopped":
                for held in shop.plane.held(CHECKS):
                    await shop.check(held.id)
                program.go_on()
            await shop.settle()
            if await shop.violations([job]):
                found.append(at)
        assert step in found


async def test_a_cancelled_handler_rolls_back_and_withdraws(shop: Shop) -> None:
    inside = asyncio.Event()

    async def stay(_: Transaction) -> None:
        inside.set()
        await asyncio.Event().wait()

    async with shop.session() as session:
        running = asyncio.create_task(ordered(shop, session, 1, stay))
        await inside.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert [each.state for each in shop.plane.held(CHECKS)] == ["cancelled"]
    assert (shop.plane.held("orders"), await shop.committed(), await shop.outcomes()) == ([], set(), {})


async def test_a_commit_sends_at_once_and_withdraws_the_check_back(shop: Shop) -> None:
    async with shop.session() as session:
        async with shop.messages.transaction(session, "orders", {"order": 1}) as block:
            await session.execute(insert(ORDERS).values(id=1))
        assert block.sent is not None
    (sent,), (check,) = shop.plane.held("orders"), shop.plane.held(CHECKS)
    assert (sent.id, sent.body, sent.type, sent.due_at) == (block.id, b'{"order":1}', "application/json", None)
    assert (check.id, check.state, check.in_ms) == (block.id, "cancelled", 1)
    assert await shop.committed() == {1}


async def test_half_an_hour_after_the_commit_is_said_in_the_same_call(shop: Shop) -> None:
    before = time.time_ns() // 1_000_000
    async with (
        shop.session() as session,
        shop.messages.transaction(session, "orders", b"\x00", in_s=1_800, type="image/png"),
    ):
        await session.execute(insert(ORDERS).values(id=1))
    (sent,) = shop.plane.held("orders")
    assert (sent.body, sent.type) == (b"\x00", "image/png")
    assert sent.due_at is not None
    assert before + 1_800_000 <= sent.due_at <= time.time_ns() // 1_000_000 + 1_800_000


async def test_an_error_in_the_block_rolls_back_and_withdraws(shop: Shop) -> None:
    async def fail(_: Transaction) -> None:
        raise LookupError

    async with shop.session() as session:
        with pytest.raises(LookupError):
            await ordered(shop, session, 1, fail)
        assert [each.state for each in shop.plane.held(CHECKS)] == ["cancelled"]
        with pytest.raises(IntegrityError):  # the session goes on, and business errors are the handler's
            await ordered(shop, session, 2, lambda _: session.execute(insert(ORDERS).values(id=2)))
    assert [each.state for each in shop.plane.held(CHECKS)] == ["cancelled"] * 2
    assert (shop.plane.held("orders"), await shop.committed(), await shop.outcomes()) == ([], set(), {})


async def test_a_commit_after_a_check_back_fails(shop: Shop) -> None:
    async def late(session: AsyncSession) -> None:
        async with shop.messages.transaction(session, "orders", 1) as block:
            assert await shop.check(block.id) == Answer(200, "ABORT")
            await session.execute(insert(ORDERS).values(id=1))

    async with shop.session() as session:
        with pytest.raises(Refused, match="aborted"):
            await late(session)
    assert (shop.plane.held("orders"), await shop.committed()) == ([], set())
    assert [word for word, _ in (await shop.outcomes()).values()] == ["ABORT"]


async def test_a_commit_inside_the_block_is_refused_and_a_savepoint_is_not(shop: Shop) -> None:
    async with shop.session() as session:
        with pytest.raises(Invalid, match="commits at its end"):
            await ordered(shop, session, 1, lambda _: session.commit())
        with pytest.raises(Invalid, match="ended inside"):
            await ordered(shop, session, 1, lambda _: session.rollback())
        with pytest.raises(Invalid, match="one message"):
            await ordered(shop, session, 1, lambda _: shop.messages.transaction(session, "orders", 1).__aenter__())
        assert await shop.committed() == set()
        async with shop.messages.transaction(session, "orders", {"order": 3}):
            await session.execute(insert(ORDERS).values(id=3))
            async with session.begin_nested():
                await session.execute(insert(ORDERS).values(id=4))
        await session.execute(insert(ORDERS).values(id=5))
        await session.commit()
    assert await shop.committed() == {3, 4, 5}
    assert len(shop.plane.held("orders")) == 1


async def test_what_cannot_be_sent_after_the_commit_comes_by_check_back(shop: Shop) -> None:
    async with shop.session() as session, shop.messages.transaction(session, "orders", {"order": 1}) as block:
        await session.execute(insert(ORDERS).values(id=1))
        shop.plane.topics.discard("orders")
    assert block.sent is None
    answer = await shop.check(block.id)
    assert answer is not None
    assert (answer.status, "no topic orders" in answer.text) == (503, True)
    shop.plane.topics.add("orders")
    assert await shop.check(block.id) == Answer(200, "OK")
    assert [each.id for each in shop.plane.held("orders")] == [block.id]


async def test_a_message_to_a_topic_that_is_not_there_is_refused_before_its_block_runs(shop: Shop) -> None:
    async with shop.session() as session:
        with pytest.raises(Refused, match="no topic nosuch") as caught:
            async with shop.messages.transaction(session, "nosuch", {"order": 1}):
                raise AssertionError("the block ran")
    assert caught.value.code == "not_found"
    assert shop.plane.held(CHECKS) == []


async def test_nothing_is_written_where_nothing_can_be_prepared(shop: Shop, tmp_path: Path) -> None:
    shop.plane.away = True
    async with shop.session() as session:
        with pytest.raises(Unavailable):
            async with shop.messages.transaction(session, "orders", 1):
                raise AssertionError("the block ran")
    with pytest.raises(Invalid, match="check-backs"):
        shop.messages.transaction(session, CHECKS, 1)
    with pytest.raises(Invalid, match="delay"):
        shop.messages.transaction(session, "orders", 1, in_s=float("nan"))
    other = engine(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(Invalid, match="a database other than"):
        shop.messages.transaction(AsyncSession(other), "orders", 1)


async def test_a_database_that_dies_at_the_commit_knows_the_outcome_later(served: Database) -> None:
    async with opened(served) as shop:
        dying = engine(served.url)
        event.listen(dying.sync_engine, "commit", lambda _: served.kill())
        ids = list[str]()

        async def note(block: Transaction) -> None:
            ids.append(block.id)

        async with AsyncSession(dying) as session:
            with pytest.raises((SQLAlchemyError, OSError)):
                await ordered(shop, session, 1, note)
        await dying.dispose()
        answer = await shop.check(ids[0])
        assert answer is not None, "the check-back was withdrawn"
        assert (answer.status, answer.text.startswith("the database did not return")) == (503, True)
        served.start()
        deadline = time.monotonic() + PATIENT_S
        while (answer := await shop.check(ids[0])) is not None and answer.status == 503:
            assert time.monotonic() < deadline, answer
        assert answer == Answer(200, "ABORT")
        assert (shop.plane.held("orders"), await shop.committed()) == ([], set())


async def test_check_backs_of_strangers_change_nothing(shop: Shop) -> None:
    id, body = "a" * 32, b'{"topic":"orders","type":"a/b","in_s":null}\n1'
    stranger, now = new_secret(), time.time()
    for headers in ({}, signed(id, body, stranger), signed(id, body, at=now - 400), signed(id, body + b"1")):
        assert (await shop.messages.answer(headers, body)).status == 401
    for odd in (b"", b"1", b"{}\n", b"\xff\n1", body.replace(b"\n", b"")):
        assert (await shop.messages.answer(signed(id, odd), odd)).status == 400
    assert await shop.outcomes() == {}
    assert verified(SECRET, signed(id, body), body)
    assert not verified(SECRET, signed(id, body) | {"webhook-timestamp": "²"}, body)
    with pytest.raises(Invalid, match="whsec_"):
        verified("secret", {}, b"")


async def test_check_backs_come_over_asgi(shop: Shop) -> None:
    async def asked(headers: dict[str, str], *parts: bytes) -> tuple[int, bytes]:
        coming = iter(parts)
        said = list[Any]()

        async def receive() -> dict[str, Any]:
            part = next(coming)
            return {"type": "http.request", "body": part, "more_body": part is not parts[-1]}

        async def send(message: Any) -> None:
            said.append(message)

        named = [(name.encode(), value.encode()) for name, value in headers.items()]
        await shop.messages({"type": "http", "headers": named}, receive, send)
        return said[0]["status"], said[1]["body"]

    id, body = "b" * 32, b'{"topic":"orders","type":"a/b","in_s":null}\n1'
    assert await asked(signed(id, body), body[:9], body[9:]) == (200, b"ABORT")
    assert (await asked({}, body))[0] == 401
    assert (await asked({}, b"x" * 600_000, b"y" * 600_000, b""))[0] == 413
    with pytest.raises(Invalid, match="websocket"):
        await shop.messages({"type": "websocket"}, None, None)  # type: ignore[arg-type]


async def test_effects_happen_once_however_often_a_message_comes(shop: Shop) -> None:
    async def effect(message: str, order: int, *, fails: bool = False) -> bool:
        async with shop.session() as session:
            if not await first_time(session, message, consumer="stock"):
                return False
            await session.execute(insert(ORDERS).values(id=order))
            if fails:
                return False  # closed without a commit
            await session.commit()
            return True

    assert not await effect("m", 1, fails=True)
    assert await effect("m", 2)
    assert not await effect("m", 3)
    assert await effect("M", 4), "ids differ by case"
    assert await shop.committed() == {2, 4}
    async with shop.session() as session:
        assert await first_time(session, "m", consumer="mail")
        with pytest.raises(Invalid, match="ASCII"):
            await first_time(session, "ü")


async def test_of_two_consumers_at_once_one_has_the_effect(served: Database) -> None:
    async with opened(served) as shop:

        async def effect(order: int) -> bool:
            async with shop.session() as session:
                first = await first_time(session, "m")
                if first:
                    await session.execute(insert(ORDERS).values(id=order))
                await session.commit()
                return first

        assert sorted(await asyncio.gather(*(effect(order) for order in range(4)))) == [False, False, False, True]
        assert len(await shop.committed()) == 1


async def test_old_rows_are_forgotten(shop: Shop) -> None:
    async with shop.engine.begin() as connection:
        now = time.time_ns() // 1_000_000
        for id, at_ms in (("old", now - 10_000), ("new", now)):
            await connection.execute(insert(OUTCOMES).values(message=id, outcome="OK", at_ms=at_ms))
            await connection.execute(insert(EFFECTS).values(message=id, consumer="", at_ms=at_ms))
    assert await forget(shop.engine, OUTCOMES, older_s=5) == 1
    assert await forget(shop.engine, EFFECTS, older_s=5) == 1
    assert set(await shop.outcomes()) == {"new"}


# --- programs without an event loop -----------------------------------------------------------------------------------


class Plain:
    """The same shop for a program with plain sessions, whose check-backs a plain engine answers."""

    def __init__(self, shop: Shop, **more: Any) -> None:
        self.shop, self.engine = shop, plain_engine(shop.url, **more)
        self.messages = Transactions(shop.client, self.engine, check_topic=CHECKS, secret=SECRET, check_s=0.001)

    def order(self, session: Session, order: int, do: Callable[[SyncTransaction], object], **more: Any) -> None:
        """An order in a block, and then this."""
        with self.messages.transaction(session, "orders", {"order": order}, **more) as block:
            session.execute(insert(ORDERS).values(id=order))
            do(block)

    def check(self, id: str) -> Answer | None:
        """A check-back comes to another process."""
        body = self.shop.plane.take(CHECKS, id)
        if body is None:
            return None
        other = Transactions(self.shop.client, self.engine, check_topic=CHECKS, secret=SECRET)
        answer = other.answer_sync(signed(id, body), body)
        self.shop.plane.end(CHECKS, id, well=answer.status == 200)
        return answer


@pytest.fixture
async def plainly(shop: Shop) -> AsyncIterator[Plain]:
    made = Plain(shop)
    yield made
    made.engine.dispose()


async def test_a_plain_session_sends_if_and_only_if_it_commits(shop: Shop, plainly: Plain) -> None:
    def fail(_: SyncTransaction) -> None:
        raise LookupError

    def late(session: Session) -> None:
        with plainly.messages.transaction(session, "orders", 1) as block:
            assert plainly.check(block.id) == Answer(200, "ABORT")
            session.execute(insert(ORDERS).values(id=8))

    with Session(plainly.engine) as session:
        plainly.order(session, 1, lambda _: None)
        before = time.time_ns() // 1_000_000
        plainly.order(session, 2, lambda _: session.begin_nested().commit(), in_s=1_800)
        with pytest.raises(LookupError):
            plainly.order(session, 3, fail)
        with pytest.raises(IntegrityError):
            plainly.order(session, 4, lambda _: session.execute(insert(ORDERS).values(id=1)))
        with pytest.raises(Invalid, match="commits at its end"):
            plainly.order(session, 5, lambda _: session.commit())
        with pytest.raises(Invalid, match="ended inside"):
            plainly.order(session, 6, lambda _: session.rollback())
        with pytest.raises(Invalid, match="one message"):
            plainly.order(session, 7, lambda _: plainly.messages.transaction(session, "orders", 1).__enter__())
        with pytest.raises(Refused, match="aborted"):
            late(session)
    assert await shop.committed() == {1, 2}
    first, second = shop.plane.held("orders")
    assert (first.body, first.due_at, second.body) == (b'{"order":1}', None, b'{"order":2}')
    assert second.due_at is not None
    assert before + 1_800_000 <= second.due_at <= time.time_ns() // 1_000_000 + 1_800_000
    assert {each.state for each in shop.plane.held(CHECKS)} == {"cancelled", "done"}


async def test_check_backs_are_answered_by_a_plain_engine(shop: Shop, plainly: Plain) -> None:
    ids = list[str]()

    def prepared(block: SyncTransaction) -> None:
        ids.append(block.id)
        shop.plane.topics.discard("orders")

    with Session(plainly.engine) as session:
        plainly.order(session, 1, prepared)
        shop.plane.topics.add("orders")
        abandoned = plainly.messages.transaction(session, "orders", {"order": 2})
        abandoned.__enter__()
        shop.plane.topics.discard("orders")
    answer = plainly.check(ids[0])
    assert answer is not None
    assert (answer.status, "no topic orders" in answer.text) == (503, True)
    shop.plane.topics.add("orders")
    assert plainly.check(ids[0]) == Answer(200, "OK")
    shop.messages = Transactions(shop.client, plainly.engine, check_topic=CHECKS, secret=SECRET)
    assert await shop.check(abandoned.id) == Answer(200, "ABORT")
    assert [each.id for each in shop.plane.held("orders")] == ids
    assert {word for word, _ in (await shop.outcomes()).values()} == {"OK", "ABORT"}
    await shop.engine.dispose()
    body = shop.plane.held(CHECKS)[0].body
    with pytest.raises(Invalid, match="async"):
        shop.answering(Transactions, ANSWER_S).answer_sync(signed(ids[0], body), body)
    assert shop.messages.answer_sync({}, body).status == 401


async def test_a_plain_session_has_the_effects_of_a_message_once(shop: Shop, plainly: Plain) -> None:
    create_sync(plainly.engine)  # they are there
    for message, order, first in (("m", 1, True), ("m", 2, False), ("M", 3, True)):
        with Session(plainly.engine) as session, session.begin():
            assert first_time_sync(session, message) is first
            if first:
                session.execute(insert(ORDERS).values(id=order))
    assert await shop.committed() == {1, 3}
    assert forget_sync(plainly.engine, EFFECTS, older_s=-60) == 2


# --- calls of this process --------------------------------------------------------------------------------------------


async def test_a_check_back_at_the_process_of_its_handler_asks_no_database(shop: Shop) -> None:
    blocks = list[Transaction]()
    async with shop.session() as session:
        for order, in_s in ((1, None), (2, 60.0)):
            async with shop.messages.transaction(session, "orders", {"order": order}, in_s=in_s) as block:
                await session.execute(insert(ORDERS).values(id=order))
                shop.plane.topics.discard("orders")
            shop.plane.topics.add("orders")
            blocks.append(block)
        shop.plane.away = True
        with pytest.raises(Unavailable):
            await shop.messages.transaction(session, "orders", 3).__aenter__()
        shop.plane.away = False
    (hour,) = shop.messages.calls.hours()
    assert hour == Hour("orders", int(time.time()) // HOUR_S * HOUR_S, calls=3, committed=2, aborted=1) or (
        time.time() % HOUR_S < 60
    )
    shop.plane.topics.add("orders")
    async with shop.engine.begin() as connection:
        await connection.run_sync(OUTCOMES.drop)
    assert await shop.check(blocks[0].id) == Answer(200, "OK")
    answer = await shop.check(blocks[1].id)
    assert answer is not None
    assert answer.status == 503, "a delay counts from the row"
