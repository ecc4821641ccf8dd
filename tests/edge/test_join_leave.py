"""Joins and leaves at a real edge, as an unchanged SDK tells them: of members of other gateways too."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import muster
from tests.edge import sdks
from tests.edge.role import Role, role
from tests.edge.watcher import Watcher, watching
from tests.waiting import PATIENT_S

ROOM = "arrivals:one"


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Role]:
    sdks.need("js")
    with role(tmp_path, "edge") as serving:
        yield serving


def told(watcher: Watcher) -> list[tuple[str, str]]:
    """The joins and leaves so far."""
    return [(each["event"], each["user"]) for each in watcher.events[ROOM] if each["event"] in ("join", "leave")]


async def test_members_of_a_gateway_come_and_leave_before_a_client_of_an_edge(edge: Role) -> None:
    folder = edge.instance.folder.path
    async with asyncio.timeout(PATIENT_S), watching(edge.url, edge.token(7), [ROOM]) as watcher:
        await watcher.until(lambda: told(watcher) == [("join", "7")])
        async with muster.connect(folder, token=edge.token(11)) as client, client.join(ROOM):
            await watcher.until(lambda: told(watcher)[1:] == [("join", "11")])
        await watcher.until(lambda: told(watcher)[2:] == [("leave", "11")])
