"""Transactional messages beside real processes: the example of the page, and check-backs of handlers that died."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from muster.database.rows import EFFECTS, OUTCOMES, create
from muster.database.transactions import Transactions
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

    async def send(self, *_: Any) -> Any:
        raise Unavailable("dead")


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
            await until(lambda: server.of(committed.id), 20)
            assert server.of(committed.id)[0].body == b'{"order":2}'

            def ended() -> bool:
                found = [client.get(CHECKS, each.id) for each in (committed, uncommitted)]
                return [each.state for each in found if each] == ["done", "done"]

            await until_asked(ended, 20)
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
    await engine.dispose()


async def outcomes(engine: AsyncEngine) -> list[tuple[str, str]]:
    """All rows, the oldest first."""
    async with engine.connect() as connection:
        found = await connection.execute(select(OUTCOMES.c.message, OUTCOMES.c.outcome).order_by(OUTCOMES.c.at_ms))
        return [(message, outcome) for message, outcome in found]
