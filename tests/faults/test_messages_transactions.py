"""Transactional messages beside real processes: the example of the page, and check-backs of handlers that died."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from muster.checks import Answer
from muster.database.rows import EFFECTS, OUTCOMES, create
from muster.database.transactions import Transactions
from muster.effects import Effects
from muster.errors import Unavailable
from muster.messages import Messages
from tests.documents import ROOT, fenced
from tests.faults.hooks import Hooks, hooks
from tests.faults.instance import Instance, configuration
from tests.faults.test_http import make_key
from tests.waiting import until, until_asked

PAGE: Final = (ROOT / "docs" / "messages.md").read_text()
CHECKS: Final = "shop-checks"


class Base(DeclarativeBase):
    """The tables of the example."""


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class Shipment(Base):
    __tablename__ = "shipments"
    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int]


class Dies(Transactions):
    """A handler that dies after its commit says nothing more."""

    def send(self, *_: Any) -> Any:
        raise Unavailable("dead")


@dataclass
class Payment:
    """At the bank of the example."""

    paid: bool


class Bank:
    """Payments by key; the answer to one of order 2 is lost, and order 3 has none."""

    def __init__(self) -> None:
        self.payments: dict[str, Payment] = {}

    async def pay(self, order: int, key: str) -> None:
        if order < 3:
            self.payments[key] = Payment(paid=True)
        if order > 1:
            raise TimeoutError(key)

    async def find(self, key: str) -> Payment | None:
        return self.payments.get(key)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Instance, Hooks, str]]:
    """An instance with topic `orders`, its target, and a key that may all."""
    path: Path = tmp_path_factory.mktemp("transactions")
    systems = {"enabled": "messages,http"}
    instance = Instance(path, configuration(database={"url": "none"}, probes={"every_ms": 0}, systems=systems))
    with hooks() as server, instance.running():
        done = instance.ran("topic", "create", "orders", "--callback", f"{server.url}/hook")
        assert done.returncode == 0, done.stderr
        yield instance, server, make_key(instance)


@asynccontextmanager
async def application(app: Any, listening: socket.socket) -> AsyncIterator[None]:
    """Serve it while the block lasts."""
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error", access_log=False))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await until(lambda: server.started)
        yield
    finally:
        server.should_exit = True
        await running


async def test_the_example_and_check_backs_of_dead_handlers(
    served: tuple[Instance, Hooks, str], tmp_path: Path
) -> None:
    instance, server, key = served
    bind = instance.process("http").bind
    assert isinstance(bind, tuple)
    listening = socket.create_server(("127.0.0.1", 0))
    callback = f"http://127.0.0.1:{listening.getsockname()[1]}/muster/checks"
    made = instance.ran("topic", "create", CHECKS, "--callback", callback, "--retries", "200ms,200ms,1s,1s")
    assert made.returncode == 0, made.stderr
    secret = made.stdout.decode().split()[0]
    url = f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"
    names: dict[str, Any] = {
        "DATABASE": url,
        "PLAIN_DATABASE": url.replace("+aiosqlite", ""),
        "FACE": f"http://{bind[0]}:{bind[1]}",
        "KEY": key,
        "SECRET": secret,
        "Order": Order,
        "Shipment": Shipment,
    }
    for each in fenced(PAGE, "python"):
        if "muster.database" in each:
            exec(each, names)
    engine: AsyncEngine = names["engine"]
    await create(engine)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    client: Messages = names["client"]
    with client:
        async with application(names["messages"], listening):
            await names["order"](1)
            held = client.get("orders", (await outcomes(engine))[0][0])
            assert held is not None
            assert (json.loads(held.body), held.state) == ({"order": 1}, "scheduled")

            dies = Dies(client, engine, check_topic=CHECKS, secret=secret, check_s=0.2)
            async with AsyncSession(engine) as session:
                async with dies.transaction(session, "orders", {"order": 2}) as committed:
                    session.add(Order(id=2))
                assert committed.sent is None
                uncommitted = dies.transaction(session, "orders", {"order": 3})
                await uncommitted.__aenter__()
                session.add(Order(id=3))
            await until(lambda: server.of(committed.id))
            assert server.of(committed.id)[0].body == b'{"order":2}'

            def ended() -> bool:
                found = [client.get(CHECKS, each.id) for each in (committed, uncommitted)]
                return [each.state for each in found if each] == ["done", "done"]

            await until_asked(ended)
        rows = dict(await outcomes(engine))
        assert (rows.pop(committed.id), rows.pop(uncommitted.id)) == ("OK", "ABORT")
        assert list(rows.values()) == ["OK"]
        assert server.of(uncommitted.id) == []

        for _ in range(2):  # it comes twice
            await names["received"](committed.id, 2)
        async with AsyncSession(engine) as session:
            assert list(await session.scalars(select(Order.id))) == [1, 2]
            assert list(await session.scalars(select(Shipment.order))) == [2]
            assert list(await session.scalars(select(EFFECTS.c.message))) == [committed.id]

        names["plain_order"](4)
        names["plain_received"](committed.id, 2)
        names["plain_received"]("another", 4)
        assert names["plain_check"]({}, b"")[0] == 401
        names["plain_engine"].dispose()
        async with AsyncSession(engine) as session:
            assert list(await session.scalars(select(Order.id))) == [1, 2, 4]
            assert list(await session.scalars(select(Shipment.order))) == [2, 4]
        id = next(id for id, _ in await outcomes(engine) if id not in {*rows, committed.id, uncommitted.id})
        held = client.get("orders", id)
        assert held is not None
        assert json.loads(held.body) == {"order": 4}
    await engine.dispose()


async def test_check_backs_about_effects_outside_a_database(
    served: tuple[Instance, Hooks, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paid; paid, and the answer is lost; unknown until the check-backs are dead letters, which are asked again."""
    instance, server, key = served
    bind = instance.process("http").bind
    assert isinstance(bind, tuple)
    listening = socket.create_server(("127.0.0.1", 0))
    callback = f"http://127.0.0.1:{listening.getsockname()[1]}/muster/checks"
    for topic, words in (("pay-checks", [callback, "--retries", "200ms,200ms"]), ("paid", [f"{server.url}/hook"])):
        made = instance.ran("topic", "create", topic, "--callback", *words)
        assert made.returncode == 0, made.stderr
        if topic == "pay-checks":
            secret = made.stdout.decode().split()[0]
    client, bank = Messages(f"http://{bind[0]}:{bind[1]}", key=key), Bank()
    names: dict[str, Any] = {"client": client, "bank": bank, "PAY_SECRET": secret}
    (example,) = [each for each in fenced(PAGE, "python") if "muster.effects" in each]
    exec(example.replace("secret=PAY_SECRET", "secret=PAY_SECRET, check_s=0.2"), names)
    effects: Effects = names["effects"]
    asked = list[Answer]()
    original = effects.answer

    async def answer(*question: Any) -> Answer:
        asked.append(await original(*question))
        return asked[-1]

    monkeypatch.setattr(effects, "answer", answer)
    with client:
        async with application(effects, listening):
            await names["pay"](1)
            lost = list[str]()
            for order in (2, 3):
                with pytest.raises(TimeoutError) as raised:
                    await names["pay"](order)
                lost.append(str(raised.value))

            def state(id: str) -> str:
                found = client.get("pay-checks", id)
                return "" if found is None else found.state

            await until(lambda: server.of(lost[0]))
            assert server.of(lost[0])[0].body == b'{"order":2}'
            await until_asked(lambda: [state(id) for id in lost] == ["done", "dead"])
            unknown = Answer(503, "the outcome of the effect is not known")
            assert [each for each in asked if each.status == 503] == [unknown] * 3, "counted when it was asked"
            bank.payments[lost[1]] = Payment(paid=True)
            done = instance.ran("delay", "dead", "replay", lost[1], "--topic", "pay-checks")
            assert done.returncode == 0, done.stderr
            await until(lambda: server.of(lost[1]))
            await until_asked(lambda: state(lost[1]) == "done")
        assert [server.of(id)[0].body for id in bank.payments] == [b'{"order":1}', b'{"order":2}', b'{"order":3}']
        assert all(len(server.of(id)) == 1 for id in bank.payments)


async def outcomes(engine: AsyncEngine) -> list[tuple[str, str]]:
    """All rows, the oldest first."""
    async with engine.connect() as connection:
        found = await connection.execute(select(OUTCOMES.c.message, OUTCOMES.c.outcome).order_by(OUTCOMES.c.at_ms))
        return [(message, outcome) for message, outcome in found]
