"""Ends of clients by an unchanged SDK at a real edge: a user that is revoked, and a client that dies before its receipt."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import muster
from tests.edge import sdks
from tests.edge.role import Role, role
from tests.edge.watcher import watching
from tests.strikes import standing_still
from tests.waiting import PATIENT_S

ROOM: Final = "ends:one"
REVOKED: Final = 3_507
EXPIRES_S: Final = 1.0


@pytest.fixture
def revoked(tmp_path: Path) -> Path:
    file = tmp_path / "revoked"
    file.touch()
    return file


@pytest.fixture
def edge(tmp_path: Path, revoked: Path) -> Iterator[Role]:
    sdks.need("js")
    with role(tmp_path / "instance", "edge", cluster={"revoked_file": str(revoked)}) as serving:
        yield serving


def revoke(edge: Role, file: Path, line: str) -> None:
    """Revoke a user or a token."""
    file.write_text(f"{line}\n")
    os.kill(edge.instance.record().pid, signal.SIGHUP)


async def test_a_revoked_user_is_sent_away_for_good_and_others_stay(edge: Role, revoked: Path) -> None:
    async with (
        asyncio.timeout(PATIENT_S),
        watching(edge.url, edge.token(7), [ROOM]) as goes,
        watching(edge.url, edge.token(8), [ROOM]) as stays,
        muster.connect(edge.instance.folder.path, gateways=[]) as client,
    ):
        revoke(edge, revoked, "user 7")
        await goes.until(lambda: [event for event in goes.events[""] if event["event"] == "disconnected"])
        (end,) = (event for event in goes.events[""] if event["event"] == "disconnected")
        assert end["code"] == REVOKED
        await client.publish(ROOM, b"1")
        await stays.until(lambda: stays.seen(ROOM) == [1])
        assert goes.seen(ROOM) == []


async def test_a_client_that_dies_between_a_command_and_its_pong_has_not_had_it(edge: Role) -> None:
    async with (
        asyncio.timeout(PATIENT_S),
        watching(edge.url, edge.token(7), [ROOM]) as dies,
        watching(edge.url, edge.token(8), [ROOM]),
        muster.connect(edge.instance.folder.path, gateways=[]) as client,
    ):
        with standing_still(dies.pid):
            told = asyncio.create_task(client.command(ROOM, b"1", expires=EXPIRES_S))
            await asyncio.sleep(EXPIRES_S / 2)  # its bytes are in the socket of a client that cannot take them
            os.kill(dies.pid, signal.SIGKILL)
        outcome = await told
    assert isinstance(outcome, muster.Delivered | muster.Expired)
    assert outcome.members == 1
