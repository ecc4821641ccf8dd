"""Every registry, for the suites that all of them pass."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from muster_server.control.registry.tree import Tree
from tests.control.registry.services import SESSION_S, Embedded, InMemory, Service
from tests.control.registry.zookeeper import ZooKeeper


@pytest.fixture(params=["memory", "embedded", "zookeeper"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Service]:
    """A running one without content."""
    if request.param == "zookeeper":
        zookeeper: ZooKeeper = request.getfixturevalue("zookeeper_of_the_run")
        await zookeeper.serve_another_test()
        yield zookeeper
        return
    made: Service = InMemory() if request.param == "memory" else Embedded(tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def make(service: Service) -> AsyncIterator[Callable[..., Tree]]:
    """Makes clients, and closes them in the end."""
    trees: list[Tree] = []

    def made(session_s: float = SESSION_S) -> Tree:
        trees.append(service.tree(session_s))
        return trees[-1]

    yield made
    for tree in trees:
        await tree.close()
