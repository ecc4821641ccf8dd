"""Bugs of the fleet's processes, put back one at a time: the test that is named goes red.

Those of its parts are in `test_planted.py`.
"""

import asyncio
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import update

from muster_server.plane.database.owned import OwnedRow
from muster_server.systems.fleet import replay
from muster_server.systems.fleet.database.store import SqlStore
from muster_server.systems.fleet.dispatcher import Dispatcher
from muster_server.systems.fleet.leading import Leading
from muster_server.systems.fleet.picks import Picks
from muster_server.systems.fleet.presence import Presence
from muster_server.systems.fleet.records import Lead, RunRow
from muster_server.systems.fleet.sessions import Batch, Waiting
from tests.fleet import test_dispatcher, test_picks, test_scheduler, test_sessions
from tests.fleet.test_planted import red
from tests.fleet.test_scheduler import House, house
from tests.waiting import PLANTED_S

__all__ = ["house"]


async def goes_red(test: Any, *arguments: Any) -> None:
    """The test fails, or does not end."""
    with pytest.raises((AssertionError, KeyError, TimeoutError, ExceptionGroup)):
        async with asyncio.timeout(PLANTED_S):
            await test(*arguments)


async def test_a_lead_that_is_not_fenced_is_found(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_to_all(self: OwnedRow, connection: Any, epoch: int, *conditions: Any, **values: Any) -> None:
        await connection.execute(update(self._table).where(self._here).values(epoch=epoch, **values))

    monkeypatch.setattr(OwnedRow, "lock", open_to_all)
    await goes_red(test_scheduler.test_of_two_that_believe_to_lead_one_works, house)


async def test_a_last_minute_that_is_not_kept_is_found(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = SqlStore.claim

    async def forgetful(self: SqlStore, seen: Lead | None, holder: str) -> Lead | None:
        taken = await claim(self, seen, holder)
        return taken and Lead(taken.epoch, taken.beat, taken.holder, 0)

    monkeypatch.setattr(SqlStore, "claim", forgetful)
    await goes_red(test_scheduler.test_minutes_that_no_scheduler_saw_are_told_as_missed, house)


async def test_clients_that_are_asked_before_they_are_written_are_found(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lead dies between asking and writing: the next one picks anew, and clients of both draws work."""
    put = Leading._put

    async def late(self: Leading, row: RunRow) -> None:
        if row.state != "running":
            await put(self, row)

    monkeypatch.setattr(Leading, "_put", late)
    await goes_red(test_scheduler.test_no_client_is_asked_before_it_is_written, house)


async def test_a_run_that_is_asked_from_the_beginning_is_found(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Dispatcher.begin

    def again(self: Dispatcher, *arguments: Any, **more: Any) -> None:
        begin(self, *arguments, **more | {"done": ()})

    monkeypatch.setattr(Dispatcher, "begin", again)
    await goes_red(test_scheduler.test_a_run_of_a_lead_that_died_is_taken_up_and_no_client_does_it_twice, house)


def test_an_owner_that_begins_a_round_of_its_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(self: Picks, name: str, numbers: NDArray[np.uint32], round_: int, of_round: int, cost: float) -> None:
        self._give(numbers, cost)

    monkeypatch.setattr(Picks, "follow", deaf)
    with red():
        test_picks.test_another_owner_goes_on_with_the_round_whatever_numbers_it_gives()


def test_a_number_that_is_given_on_with_its_weight_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Picks, "forget", lambda self, number: None)
    fleet = test_dispatcher.Fleet()
    for number in range(10):
        fleet.hello(f"c{number}")
    with red():
        test_dispatcher.test_a_forgotten_client_leaves_index_picks_and_leases_together(fleet)


def test_a_state_of_a_draw_without_its_busy_clients_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = replay.kept

    def without(wanted: int, deck: Any, members: Any, tired: Any, barred: Any, *more: Any) -> Any:
        return kept(wanted, deck, members, tired, np.zeros_like(barred), *more)

    monkeypatch.setattr(replay, "kept", without)
    with red():
        test_picks.test_a_draw_comes_out_again_from_what_is_kept_of_it()


def test_a_batch_that_is_put_back_over_later_news_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def over(self: Waiting, batch: Batch) -> None:
        self._sessions = {**self._sessions, **batch.sessions}
        self._events.extendleft(reversed(batch.events))
        self._counts.update(batch.counts)

    monkeypatch.setattr(Waiting, "put_back", over)
    with red():
        test_sessions.test_what_was_not_written_comes_before_what_came_meanwhile()


def test_a_beat_that_brings_a_stranger_in_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    beat = Presence._beat

    def trusting(self: Presence, now_ms: int, client: str, said: Any) -> None:
        self._leases.renew(now_ms, client, said.epoch)
        beat(self, now_ms, client, said)

    monkeypatch.setattr(Presence, "_beat", trusting)
    with red():
        test_dispatcher.test_a_beat_of_a_client_that_said_no_hello_leaves_nothing_behind(test_dispatcher.Fleet())
