"""The services that each process of the portal uses: its databases, the cache, and Muster.

Owns the connections. It must not know pages.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final
from urllib.parse import quote

import httpx2
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

import muster
from muster.cache import Cache, where
from muster.database import rows
from muster.database.replicas import POSITION, Replicas
from muster.database.standings import UNKNOWN
from muster.database.transactions import Transactions
from muster.inbox import AsyncInbox
from muster.messages import AsyncMessages, Messages

from .ledger import Accounts
from .settings import Settings
from .tables import Base, Ledger

SECONDS: Final = 10.0
"""Limit of a question to Muster."""
seen: Final = ContextVar("seen", default=UNKNOWN)
"""The position in the database's log that the sender of this request has seen. A task has no sender: it reads at the
primary, since a replica may not have the rows yet that the task is about."""


def engine_of(url: str) -> AsyncEngine:
    """An engine for a URL with a driver."""
    if url.startswith("sqlite"):
        return create_async_engine(url, connect_args={"timeout": 30})
    options: dict[str, Any] = {"isolation_level": "READ COMMITTED"} if url.startswith("mysql") else {}
    return create_async_engine(url, pool_pre_ping=True, pool_size=10, max_overflow=10, **options)


class Services:
    """All connections of a process. Open it by `opened`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine = engine_of(settings.database_url)
        self.ledger_engine = engine_of(settings.ledger_url)
        self.replicas = [engine_of(url) for url in settings.replica_urls]
        self.ledger = Accounts(self.ledger_engine)
        self.database = Replicas(self.engine, self.replicas)
        self.cache = Cache(settings.redis_url, name="portal")
        self.inbox = AsyncInbox(settings.http_url, key=settings.key)
        self.messages = AsyncMessages(settings.http_url, key=settings.key)
        self._checked = Messages(settings.http_url, key=settings.key)
        self.transactions = Transactions(
            self._checked, self.engine, check_topic="portal-checks", secret=settings.check_secret
        )
        self.http = httpx2.AsyncClient(
            base_url=settings.http_url, headers={"x-api-key": settings.key}, timeout=SECONDS, trust_env=False
        )
        self.rooms: muster.Client

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncSession]:
        """A session on the primary, which commits at its end. Reads of the same request see what it wrote."""
        async with self.database.writing(expire_on_commit=False) as session:
            yield session
        if session.info[POSITION]:
            seen.set(self.database.newest(seen.get(), session.info[POSITION]))

    def reading(self) -> AbstractAsyncContextManager[AsyncSession]:
        """A session that only reads, on a replica that has what the sender of the request has seen."""
        return self.database.reading(seen.get(), expire_on_commit=False)

    @asynccontextmanager
    async def loading(self) -> AsyncIterator[AsyncSession]:
        """A session for a load of the cache, which says whether a replica will do."""
        async with self.writing() if where.primary else self.reading() as session:
            yield session

    # --- questions over HTTP that the library has no client for ------------------------------------------------------

    async def ask(self, method: str, path: str, **more: Any) -> Any:
        """Ask the HTTP face. Raises `httpx2.HTTPError`."""
        answer = await self.http.request(method, f"/api/v1/{path}", **more)
        answer.raise_for_status()
        return answer.json()

    async def like(self, kind: str, item: int, user: int, *, likes: bool) -> dict[str, Any]:
        """Change a like; the answer has `before` and `count`, and is durable."""
        said: dict[str, Any] = await self.ask("PUT" if likes else "DELETE", f"likes/{kind}/{item}/{user}")
        return said

    async def liked(self, kind: str, item: int, user: int) -> dict[str, Any]:
        """Return whether a user likes an item, and its number of likes."""
        said: dict[str, Any] = await self.ask("GET", f"likes/{kind}/{item}/{user}")
        return said

    async def likes_of(self, user: int, kind: str) -> list[int]:
        """Ids of the items of a kind that a user likes, the newest first."""
        said = await self.ask("GET", f"users/{user}/likes", params={"limit": 100})
        pairs = (item.partition(":") for item in said["items"])
        return [int(id) for found, _, id in pairs if found == kind]

    async def top(self, kind: str, *, window: str = "24h", limit: int = 10) -> list[int]:
        """Ids of the items of a kind with the most likes, newer ones counting more."""
        said = await self.ask("GET", f"ranks/{quote(kind, safe='')}", params={"limit": limit, "window": window})
        return [int(each["item"].partition(":")[2]) for each in said["items"]]

    async def online(self, users: Sequence[int]) -> set[int]:
        """Return the users, out of up to 1,000, that have a page open."""
        if not users:
            return set()
        said = await self.ask("POST", "presence", json={"users": [str(user) for user in users]})
        return {int(each["user"]) for each in said["users"] if each["devices"]}

    async def tell(self, user: int, what: dict[str, Any]) -> None:
        """Tell a user's open pages something that need not arrive."""
        with contextlib.suppress(httpx2.HTTPError):
            said = {"users": [str(user)], "data": json.dumps(what)}
            await self.http.post("/api/v1/send", json=said)


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Services]:
    """All connections, while the block lasts."""
    async with AsyncExitStack() as stack:
        made = Services(settings)
        stack.callback(made._checked.close)
        for engine in made.engine, made.ledger_engine, *made.replicas:
            stack.push_async_callback(engine.dispose)
        for each in made.database, made.cache, made.inbox, made.messages, made.http:
            await stack.enter_async_context(each)
        made.rooms = await stack.enter_async_context(muster.connect(settings.instance, gateways=[]))
        yield made


async def create(settings: Settings) -> None:
    """Make the tables that are missing."""
    await create_in(settings.database_url, Base.metadata, rows.METADATA)
    await create_in(settings.ledger_url, Ledger.metadata)


async def create_in(url: str, *tables: MetaData) -> None:
    """The same in one database."""
    engine = engine_of(url)
    async with engine.begin() as connection:
        for each in tables:
            await connection.run_sync(each.create_all)
    if url.startswith("sqlite"):
        async with engine.connect() as connection:  # readers do not wait for a writer
            await connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    await engine.dispose()
