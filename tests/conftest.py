"""Every coroutine test runs on uvloop, as the servers do. One ZooKeeper, one Kafka and one of each database serve
all tests of a run.

Hypothesis judges no example by a clock: other work on the machine may delay one.
"""

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from tests.control.registry.zookeeper import ZooKeeper
from tests.interrupt import pytest_configure, pytest_runtest_logfinish
from tests.kafka import Kafka

if TYPE_CHECKING:  # loaded only with a database: SQLAlchemy takes a second
    from tests.databases import Database, MariaDb, PostgreSql, Server

__all__ = ["pytest_configure", "pytest_runtest_logfinish"]

BENCH: Final = Path(__file__).parent / "bench"

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, type[asyncio.AbstractEventLoop]]:
    """The loop that the servers use."""
    return {"uvloop": uvloop.Loop}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measuring tests come last: nothing runs beside them any more."""
    items.sort(key=lambda item: BENCH in item.path.parents)


_UNCLOSED: Final[dict[str, str]] = {}
"""Tests that left a connection or process of uvloop open, and what uvloop said."""


def pytest_warning_recorded(warning_message: warnings.WarningMessage, nodeid: str) -> None:
    """uvloop tells of open handles while it closes the loop, where an exception would stop it for ever."""
    if str(warning_message.message).startswith("unclosed resource"):
        _UNCLOSED[nodeid] = str(warning_message.message)


@pytest.hookimpl(tryfirst=True)  # before pytest writes the results
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Each of them is an error of its test, in the summary and in the results."""
    for nodeid, said in _UNCLOSED.items():
        place = (nodeid.partition("::")[0], None, nodeid)
        report = pytest.TestReport(nodeid, place, {}, "failed", said, "teardown")
        session.config.hook.pytest_runtest_logreport(report=report)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands keep maps of registries in a folder of this run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def zookeeper_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """Not yet started."""
    made = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    yield made
    made.end()


@pytest.fixture
async def zookeeper(zookeeper_of_the_run: ZooKeeper) -> ZooKeeper:
    """A running one, with a path of its own for this test, which may kill it and wipe it."""
    await zookeeper_of_the_run.serve_another_test()
    return zookeeper_of_the_run


@pytest.fixture(scope="session")
def mariadb() -> "Iterator[MariaDb]":
    """A MariaDB for the whole run."""
    from tests.databases import MariaDb

    server = MariaDb()
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgresql() -> "Iterator[PostgreSql]":
    """A PostgreSQL for the whole run."""
    from tests.databases import PostgreSql

    server = PostgreSql()
    yield server
    server.close()


@pytest.fixture(params=["mariadb", "postgresql"])
async def served(request: pytest.FixtureRequest) -> "AsyncIterator[Database]":
    """An empty database of a server."""
    from tests.databases import made

    server: Server = request.getfixturevalue(request.param)
    yield await made(server)
    server.start()


@pytest.fixture(params=["sqlite", "mariadb", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> "Database":
    """An empty database."""
    from tests.databases import File, made

    if request.param == "sqlite":
        return File(tmp_path)
    return await made(request.getfixturevalue(request.param))


@pytest.fixture(scope="session")
def kafka_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Not yet started."""
    made = Kafka(tmp_path_factory.mktemp("kafka"))
    yield made
    made.end()


@pytest.fixture
async def kafka(kafka_of_the_run: Kafka) -> Kafka:
    """A running one, with topics of its own for this test, which may kill it."""
    await kafka_of_the_run.serve_another_test()
    return kafka_of_the_run
