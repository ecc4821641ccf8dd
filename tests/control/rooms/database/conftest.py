"""Every database, for the suite that all of them pass."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.control.rooms.database.services import Database, File, MariaDb, PostgreSql, Server, made


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    """A MariaDB for the whole run."""
    server = MariaDb()
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSql]:
    """A PostgreSQL for the whole run."""
    server = PostgreSql()
    yield server
    server.close()


@pytest.fixture(params=["mariadb", "postgresql"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """An empty database of a server."""
    server: Server = request.getfixturevalue(request.param)
    yield await made(server)
    server.start()


@pytest.fixture(params=["sqlite", "mariadb", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database."""
    if request.param == "sqlite":
        return File(tmp_path)
    return await made(request.getfixturevalue(request.param))
