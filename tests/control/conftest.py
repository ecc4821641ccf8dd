"""Fixtures shared by the tests of commands and of growth."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from muster_server.control.cluster.growth import Coordinator
from tests.control.command import Command
from tests.control.fleet import Fallible, Fleet, Make, directory
from tests.fakes.memory import Memory
from tests.waiting import PATIENT_S, until


@pytest.fixture
def muster(tmp_path: Path) -> Command:
    return Command(tmp_path / "instance")


@pytest.fixture
def fleet_class() -> type[Fleet]:
    return Fleet


@pytest.fixture
def tree_class() -> type[Fallible]:
    """The registry's nodes, for coordinators."""
    return Fallible


@pytest.fixture
async def fleet(fleet_class: type[Fleet]) -> AsyncIterator[Fleet]:
    """One of each role."""
    made = fleet_class(Memory())
    for number, role in enumerate(("router", "broker", "gateway", "proxy"), 1):
        await made.begin(number, role)
    await until(lambda: all(len(player.states()) == 4 for player in made.players.values()))
    yield made
    await made.close()


@pytest.fixture
async def make(fleet: Fleet, tree_class: type[Fallible]) -> AsyncIterator[Make]:
    """Makes coordinators, each with a tree of its own."""
    async with contextlib.AsyncExitStack() as stack:
        made = [
            (tree, await stack.enter_async_context(directory(tree)))
            for tree in [tree_class(fleet.memory) for _ in "1234"]
        ]

        def coordinator(**options: Any) -> Coordinator:
            tree, opened = made.pop()
            tree.before = options.pop("before", tree.before)
            tree.lost_answers = options.pop("lost_answers", 0)
            tell = options.pop("tell", lambda report: None)
            hosts = options.pop("hosts", fleet)
            chosen = {"grace_s": 0.05, "patience_s": PATIENT_S, "look_s": 0.01} | options
            made_one = Coordinator(tree, opened, fleet.role, hosts, **chosen)
            made_one.tell = tell
            return made_one

        yield coordinator
