"""Holes of the control plane put back one at a time, as one function each: the named test goes red.

The others of this kind are in `core/planted`, whose `README.md` lists all.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import true

from muster_server.control.cluster.growth import Coordinator
from muster_server.control.registry import view
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.places import Count, Growth, Node, read_count
from muster_server.control.registry.tree import Check
from muster_server.control.registry.view import View
from muster_server.plane.database import dialects
from muster_server.systems.rooms.database.records import Change, Membership
from muster_server.systems.rooms.database.writer import Writer
from tests.control.cluster import test_growth
from tests.control.fleet import Fleet, Make
from tests.control.registry import test_view
from tests.databases import File
from tests.rooms.database import test_store, test_writer
from tests.waiting import until

Plant = Callable[[Any, str, Any], None]
SOON_S = 2.0


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Puts a hole back for this test. Waits that the hole makes vain are short."""

    async def soon(condition: Callable[[], object], seconds: float = SOON_S) -> None:
        await until(condition, min(seconds, SOON_S))

    monkeypatch.setattr(test_growth, "until", soon)
    monkeypatch.setattr(test_growth, "PATIENT_S", SOON_S)
    return monkeypatch.setattr


@contextmanager
def red() -> Iterator[None]:
    """The test fails."""
    with pytest.raises((AssertionError, TimeoutError, pytest.fail.Exception)):
        yield


def without(what: str) -> Callable[[Coordinator, Count, Growth], list[str]]:
    """The nodes waited for, without those with this reason."""
    waits = Coordinator._waits

    def holed(self: Coordinator, count: Count, growth: Growth) -> list[str]:
        return [line for line in waits(self, count, growth) if not line.endswith(what)]

    return holed


async def test_h10_a_step_that_follows_before_everyone_is_done_with_the_last_one(
    fleet: Fleet, make: Make, plant: Plant
) -> None:
    plant(Coordinator, "_waits", without("to settle"))
    with red():
        await test_growth.test_whoever_has_not_settled_is_waited_for_at_every_step(fleet, make, 1)


async def test_h10_a_step_that_follows_before_everyone_has_heard_of_the_last_one(
    fleet: Fleet, make: Make, plant: Plant
) -> None:
    plant(Coordinator, "_waits", without("to learn of it"))
    with red():
        await test_growth.test_who_is_registered_and_does_not_hear_holds_it_up_and_is_named_until_it_is_gone(
            fleet, make
        )


async def test_h10_a_coordinator_that_writes_over_what_another_one_wrote(
    fleet: Fleet, make: Make, plant: Plant
) -> None:
    write = Coordinator._write

    async def unconditional(
        self: Coordinator, before: Count, version: int, after: Count, *, checked: bool = False
    ) -> bool:
        entry = await self._tree.get(self._path)
        return await write(self, before, version if entry is None else entry.version, after, checked=checked)

    plant(Coordinator, "_write", unconditional)
    with red():
        hasty = partial(make, patience_s=SOON_S)
        await test_growth.test_one_that_stood_still_can_write_nothing_over_what_came_meanwhile(fleet, hasty)


async def test_h15_a_step_that_does_not_rest_on_the_replicas_it_needs(fleet: Fleet, make: Make, plant: Plant) -> None:
    checks = Directory.checks

    def holed(self: Directory, of: str, first: int) -> list[Check]:
        return [each for each in checks(self, of, first) if "partition1" not in each.path]

    plant(Directory, "checks", holed)
    with red():
        await test_growth.test_a_replica_that_dies_before_the_switch_is_written_prevents_it(fleet, make)


async def written(test: Callable[..., Awaitable[None]]) -> None:
    """Run a test of the writer."""
    writers: list[Writer] = []

    def make(store: Any, **more: Any) -> Writer:
        writers.append(Writer(store, structlog.get_logger(), **{"delay_s": 0.005, **more}))
        writers[-1].start()
        return writers[-1]

    try:
        await test(test_writer.Fake(), make)
    finally:
        for writer in writers:
            await writer.close(0)


async def test_h11_a_word_that_takes_the_place_of_a_newer_one_on_its_way_to_the_database(plant: Plant) -> None:
    put = Writer.put

    def holed(self: Writer, change: Change) -> None:
        if isinstance(change, Membership):
            self._waiting.pop(change.key, None)
        put(self, change)

    plant(Writer, "put", holed)
    with red():
        await written(test_writer.test_of_words_on_one_key_only_the_newest_waits)


async def test_h11_a_row_that_is_written_over_by_an_older_word(plant: Plant, tmp_path: Path) -> None:
    plant(dialects, "_newer", lambda table, new, order: true())
    with red():
        await test_store.test_words_in_any_order_leave_the_newest(File(tmp_path))


async def test_h14_what_waits_has_no_bound(plant: Plant) -> None:
    init = Writer.__init__

    def holed(self: Writer, *parts: Any, **more: Any) -> None:
        init(self, *parts, **more | {"waiting_max": 1 << 40})

    plant(Writer, "__init__", holed)
    with red():
        await written(test_writer.test_what_there_is_no_place_for_is_dropped_counted_and_said)


@pytest.fixture
def seen() -> View:
    return View(structlog.get_logger(), epoch=6)


def test_h12_an_old_reading_that_counts_after_a_newer_one(plant: Plant, seen: View) -> None:
    plant(view, "read_count", lambda data, before: read_count(data))
    with red():
        test_view.test_a_growth_that_cannot_be_is_said_and_the_last_good_map_stays(
            seen, [], test_view.SWITCHED, test_view.PREPARED, "serial number 4 after 5"
        )


def test_h21_a_process_that_started_again_and_is_taken_for_its_earlier_life(plant: Plant, seen: View) -> None:
    def holed(self: View, found: Mapping[str, Node], refused: dict[str, str]) -> dict[int, Node]:
        chosen: dict[int, Node] = {}
        for node in found.values():
            chosen.setdefault(node.node, node)
        return chosen

    plant(View, "_numbered", holed)
    with red():
        test_view.test_of_one_number_the_highest_epoch_counts(seen, [])
