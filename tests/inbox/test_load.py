"""The load of inboxes against a real node: a faultless run has no fault, and each planted one is found."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster_server.control.errors import UserError
from muster_server.control.load.generator import Share
from muster_server.plane.calls import key_of
from muster_server.systems.inbox.load import InboxGenerator, InboxLoad
from muster_server.systems.inbox.shapes import Entry
from tests.inbox.conftest import SECRET, Rig
from tests.waiting import PATIENT_S


def load(rig: Rig, key: bytes = key_of(SECRET)) -> InboxLoad:
    return InboxLoad(nodes=[rig.bind], key=key, first=100, users=7, rate=200.0, size=20, for_s=0.5, ramp_s=0.0)


async def driven(generator: InboxGenerator) -> dict[str, int]:
    """The counts of a whole run."""
    try:
        assert "7 users, 200 entries/s" in await generator.open()
        made = await generator.advance(PATIENT_S)
        assert made.complete
        return dict(made.counts)
    finally:
        await generator.close()


async def test_a_run_finds_every_entry_once_and_the_counts_right(rig: Rig) -> None:
    for run in ("a", "b"):  # the entries of an earlier run are not counted
        counts = await driven(InboxGenerator(load(rig), Share(run=run)))
        assert (counts["sent"], counts["done"], counts["repeated"], counts["read_again"]) == (100, 100, 10, 100)
        assert {name: counts[name] for name in InboxGenerator.wrong} == dict.fromkeys(InboxGenerator.wrong, 0)


def lost(file: sqlite3.Connection) -> None:
    file.execute("DELETE FROM muster_inbox WHERE user_id = 103 AND seq = 2")


def twice(file: sqlite3.Connection) -> None:
    columns = "instance, user_id, kind, grp, actor, count, at_ms, is_read, data"
    file.execute(
        f"INSERT INTO muster_inbox (seq, {columns}) SELECT 1000, {columns} FROM muster_inbox WHERE user_id = 103 AND seq = 2"
    )
    file.execute("UPDATE muster_inbox_users SET last_seq = 1000 WHERE user_id = 103")


@pytest.mark.parametrize(("name", "plant"), [("lost", lost), ("twice", twice)])
async def test_a_lost_and_a_doubled_entry_are_found(
    rig: Rig, tmp_path: Path, name: str, plant: Callable[[sqlite3.Connection], Any]
) -> None:
    class Planted(InboxGenerator):
        async def _check(self) -> Any:
            with sqlite3.connect(tmp_path / "inbox.db") as file:
                plant(file)
            file.close()
            return await super()._check()

    counts = await driven(Planted(load(rig), Share(run="a")))
    assert {each: counts[each] for each in InboxGenerator.wrong} == dict.fromkeys(InboxGenerator.wrong, 0) | {name: 1}


async def test_a_count_that_is_not_its_recount_is_found(rig: Rig) -> None:
    class Planted(InboxGenerator):
        async def _entries(self, user: int) -> list[Entry]:
            found = await super()._entries(user)
            return found[:-1] if user == 103 else found

    counts = await driven(Planted(load(rig), Share(run="a")))
    assert counts["miscounted"] == 1


async def test_a_node_that_is_away_and_a_wrong_secret_are_one_line(rig: Rig) -> None:
    with pytest.raises(UserError):
        await driven(InboxGenerator(load(rig, b"x" * 32), Share(run="a")))
