"""Every registry, for the suites that all of them pass."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from control.registry.tree import Tree
from tests.control.registry.services import Embedded, InMemory, Service

SERVICES: dict[str, Callable[[Path], Service]] = {"memory": lambda path: InMemory(), "embedded": Embedded}


@pytest.fixture(params=SERVICES)
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Service]:
    """One that serves."""
    made = SERVICES[request.param](tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def make(service: Service) -> AsyncIterator[Callable[[], Tree]]:
    """Makes clients, and closes them in the end."""
    trees: list[Tree] = []

    def made() -> Tree:
        trees.append(service.tree())
        return trees[-1]

    yield made
    for tree in trees:
        await tree.close()
