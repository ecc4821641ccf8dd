"""Every coroutine test runs on uvloop, as the servers do. One ZooKeeper serves all tests of a run.

Hypothesis judges no example by a clock: other work on the machine may delay one.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from tests.control.registry.zookeeper import ZooKeeper

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
