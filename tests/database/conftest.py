"""Replicated servers for all tests of a run."""

from collections.abc import Iterator

import pytest

from tests.database.replication import MariaDbs, PostgreSqls, Replicated


@pytest.fixture(scope="session")
def mariadbs() -> Iterator[MariaDbs]:
    """MariaDB with two replicas."""
    servers = MariaDbs()
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def postgresqls() -> Iterator[PostgreSqls]:
    """PostgreSQL with two replicas."""
    servers = PostgreSqls()
    yield servers
    servers.close()


@pytest.fixture(params=["mariadbs", "postgresqls"])
async def replicated(request: pytest.FixtureRequest) -> Replicated:
    """Each of them, which serve."""
    servers: Replicated = request.getfixturevalue(request.param)
    await servers.started()
    return servers
