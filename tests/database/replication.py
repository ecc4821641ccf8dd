"""A primary and two replicas of it as processes: one is late, one prompt. Also a relay that delivers bytes late.

The servers serve all tests of a run; each test has a database of its own, which the replicas have too.
"""

import asyncio
import itertools
import threading
from collections.abc import Sequence
from typing import Final, Protocol

from tests.databases import MariaDb, PostgreSql, Served, Server, ask, made
from tests.ports import free_ports
from tests.waiting import PATIENT_S

LATE_S: Final = 0.2
_IDS: Final = itertools.count(1)


class Relay:
    """Passes connections on to a port; bytes from there come `late_s` later. In a thread with a loop of its own."""

    def __init__(self, to: int, late_s: float) -> None:
        (self.port,) = free_ports(1)
        self._to, self._late_s = to, late_s
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._ready = threading.Event()
        self._writers = set[asyncio.StreamWriter]()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENT_S)

    def close(self) -> None:
        """End it and its connections."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", self.port)
        self._ready.set()
        await self._ended.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # the loop closes their sockets

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
            self._writers.add(back)
            await asyncio.gather(self._copy(reader, back, 0.0), self._copy(there, writer, self._late_s))
        except OSError:
            writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late_s: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            while some := await reader.read(1 << 16):
                loop.call_later(late_s, writer.write, some)
        finally:
            loop.call_later(late_s, writer.transport.abort)


class Replicated(Protocol):
    """A primary with replicas."""

    primary: Server
    replicas: Sequence[Server]

    async def started(self) -> None:
        """All of them serve, and replicate."""

    async def stop_applying(self, replica: Server) -> None:
        """This replica takes the log, and applies nothing."""

    async def go_on_applying(self, replica: Server) -> None:
        """It applies again."""

    def close(self) -> None:
        """Kill all, and delete their data."""


class MariaDbs:
    """MariaDB, row by row, by global transaction ids. The late replica reads its log through a relay."""

    def __init__(self) -> None:
        self.primary = MariaDb("--log-bin=log", "--server-id=1", "--binlog-format=ROW", "--gtid-strict-mode=ON")
        self.replicas = [
            MariaDb(
                f"--server-id={number}",
                "--read-only=ON",
                "--gtid-strict-mode=ON",
                "--slave-net-timeout=60",
                like=self.primary,
            )
            for number in (2, 3)
        ]
        self._relay: Relay | None = None

    async def started(self) -> None:
        self.primary.start()
        if self._relay is None:
            self._relay = Relay(self.primary.port, LATE_S)
            await ask(_root(self.primary), "GRANT REPLICATION SLAVE ON *.* TO 'replica'@'%' IDENTIFIED BY 'replica'")
            for replica, port in zip(self.replicas, (self._relay.port, self.primary.port), strict=True):
                replica.start()
                where = f"MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='replica', MASTER_PASSWORD='replica'"
                how = "MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1"
                await ask(_root(replica), f"CHANGE MASTER TO {where}, {how}", "START SLAVE")
        for replica in self.replicas:
            replica.start()

    async def stop_applying(self, replica: Server) -> None:
        await ask(_root(replica), "STOP SLAVE SQL_THREAD")

    async def go_on_applying(self, replica: Server) -> None:
        await ask(_root(replica), "START SLAVE SQL_THREAD")

    def close(self) -> None:
        for server in (*self.replicas, self.primary):
            server.close()
        if self._relay is not None:
            self._relay.close()


class PostgreSqls:
    """PostgreSQL, by streaming. The late replica applies each commit so much later."""

    def __init__(self) -> None:
        self.primary = PostgreSql("wal_level=replica", "max_wal_senders=8")
        self.replicas: list[PostgreSql] = []

    async def started(self) -> None:
        self.primary.start()
        if not self.replicas:
            await ask(_owner(self.primary), "SELECT 1")
            late = f"recovery_min_apply_delay={round(LATE_S * 1_000)}"
            soon = "wal_retrieve_retry_interval=100"
            self.replicas = [PostgreSql(late, soon, of=self.primary), PostgreSql(soon, of=self.primary)]
        for replica in self.replicas:
            replica.start()

    async def stop_applying(self, replica: Server) -> None:
        await ask(_owner(replica), "SELECT pg_wal_replay_pause()")

    async def go_on_applying(self, replica: Server) -> None:
        await ask(_owner(replica), "SELECT pg_wal_replay_resume()")

    def close(self) -> None:
        for server in (*self.replicas, self.primary):
            server.close()


async def databases(replicated: Replicated) -> list[Served]:
    """A new database of the primary, and the same one at each replica: they have it."""
    await replicated.started()
    first = await made(replicated.primary)
    found = [first, *(Served(replica, first.name) for replica in replicated.replicas)]
    await ask(driven(first.url), "CREATE TABLE pairs (id BIGINT PRIMARY KEY, value BIGINT)")
    async with asyncio.timeout(PATIENT_S):
        for each in found[1:]:
            while not await _has_it(each):  # noqa: ASYNC110 - another process applies it
                await asyncio.sleep(0.02)
    return found


def driven(url: str) -> str:
    """The URL with an async driver."""
    return url.replace("mysql://", "mysql+asyncmy://").replace("postgresql://", "postgresql+asyncpg://")


def driven_sync(url: str) -> str:
    """The URL with a driver without async."""
    return url.replace("mysql://", "mysql+pymysql://").replace("postgresql://", "postgresql+psycopg://")


async def _has_it(each: Served) -> bool:
    try:
        await ask(driven(each.url), "SELECT id FROM pairs")
    except Exception as error:
        if any(word in str(error) for word in ("Unknown", "denied", "exist", "password")):
            return False
        raise
    return True


def _root(server: Server) -> str:
    return f"mysql+asyncmy://root@127.0.0.1:{server.port}/mysql"


def _owner(server: Server) -> str:
    return f"postgresql+asyncpg://owner@127.0.0.1:{server.port}/postgres"
