"""Changes wait in a bounded place while the database is away, the newest for each key, and arrive in the end."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from muster_server.plane.database.errors import Unavailable
from muster_server.plane.database.url import location
from muster_server.systems.rooms.database.records import Change, Ended, Membership, Partition
from muster_server.systems.rooms.database.store import Store
from muster_server.systems.rooms.database.writer import Writer
from tests.databases import Database
from tests.waiting import PATIENT_S, until

LOG = structlog.get_logger()


class Fake:
    """A database that a test takes away."""

    where = "fake://db"

    def __init__(self) -> None:
        self.batches: list[Sequence[Change]] = []
        self.away = self.stuck = False
        self.defect: Exception | None = None
        self.prunes_badly = False
        self.tried = self.pruned = 0
        self.go = asyncio.Event()

    @property
    def written(self) -> list[Change]:
        return [each for batch in self.batches for each in batch]

    async def open(self) -> None:
        await self.write(())

    async def prune(self) -> None:
        self.pruned += 1
        if self.prunes_badly:
            raise Unavailable("fake://db: away")

    async def write(self, changes: Sequence[Change]) -> None:
        self.tried += 1
        if self.stuck:
            await self.go.wait()
        if self.away:
            raise Unavailable("fake://db: away")
        if self.defect is not None:
            raise self.defect
        if changes:
            self.batches.append(list(changes))


@pytest.fixture
def fake() -> Fake:
    """A running one."""
    return Fake()


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Writer]]:
    """Makes writers that run, and ends them."""
    writers: list[Writer] = []

    def made(store: Any, **more: Any) -> Writer:
        writers.append(Writer(store, LOG, **{"delay_s": 0.005, **more}))
        writers[-1].start()
        return writers[-1]

    yield made
    for writer in writers:
        await writer.close(0)


def said(room: int, version: int = 1, *, gateway: int = 1, epoch: int = 1, present: bool = True) -> Membership:
    return Membership(gateway, epoch, room, 0, version, present)


async def test_changes_are_written_in_batches_the_oldest_first(fake: Fake, make: Callable[..., Writer]) -> None:
    writer = make(fake, batch=10)
    for room in range(25):
        writer.put(said(room))
    await until(lambda: writer.written == 25)
    assert fake.written == [said(room) for room in range(25)]
    assert [len(batch) for batch in fake.batches] == [10, 10, 5]
    assert (writer.waiting, writer.connected, writer.dropped) == (0, True, 0)


async def test_of_words_on_one_key_only_the_newest_waits(fake: Fake, make: Callable[..., Writer]) -> None:
    fake.away = True
    writer = make(fake)
    for version in (3, 9, 4):
        writer.put(said(1, version))
    writer.put(said(1, 2, epoch=2))
    writer.put(said(1, 99))
    assert writer.waiting == 1
    fake.away = False
    await until(lambda: writer.written == 1)
    assert fake.written == [said(1, 2, epoch=2)]


async def test_a_word_that_comes_while_the_one_before_is_being_written_is_written_too(
    fake: Fake, make: Callable[..., Writer]
) -> None:
    fake.stuck = True
    writer = make(fake)
    await until(lambda: fake.tried == 1)
    fake.go.set()
    writer.put(said(1, 1))
    fake.go.clear()
    await until(lambda: fake.tried == 2)
    writer.put(said(1, 2))
    fake.go.set()
    await until(lambda: not writer.waiting)
    assert fake.written == [said(1, 1), said(1, 2)]


async def test_the_end_of_a_life_takes_what_waits_of_it_and_comes_first(
    fake: Fake, make: Callable[..., Writer]
) -> None:
    fake.away = True
    writer = make(fake)
    writer.put(said(1))
    writer.put(said(2, gateway=2))
    writer.put(Ended(1, 1, Partition()))
    writer.put(said(3, epoch=2))
    writer.put(said(4, epoch=1))
    fake.away = False
    await until(lambda: not writer.waiting)
    assert fake.written == [Ended(1, 1, Partition()), said(2, gateway=2), said(3, epoch=2), said(4)]


async def test_what_there_is_no_place_for_is_dropped_counted_and_said(fake: Fake, make: Callable[..., Writer]) -> None:
    fake.away = True
    with capture_logs() as lines:
        writer = make(fake, waiting_max=10)
        for room in range(15):
            writer.put(said(room))
        writer.put(said(3, 2))
        assert (writer.waiting, writer.dropped) == (10, 5)
        await until(lambda: writer.error)
        fake.away = False
        await until(lambda: not writer.waiting)
    assert said(3, 2) in fake.written, "what waits already is kept up to date"
    warnings = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert warnings.count("too many changes wait for the database; dropping further ones") == 1
    assert next(line for line in lines if "warm start lacks" in line["event"])["dropped"] == 5


async def test_a_store_that_fails_otherwise_is_said_and_tried_again(fake: Fake, make: Callable[..., Writer]) -> None:
    fake.defect = ValueError("a defect")
    writer = make(fake)
    writer.put(said(1))
    await until(lambda: writer.error == "ValueError: a defect")
    assert (writer.connected, writer.waiting) == (False, 1)
    fake.defect = None
    await until(lambda: writer.written == 1)
    assert (writer.connected, writer.error) == (True, "")


async def test_a_database_that_is_away_is_said_once_and_tried_less_and_less(
    fake: Fake, make: Callable[..., Writer]
) -> None:
    fake.away = True
    with capture_logs() as lines:
        writer = make(fake)
        writer.put(said(1))
        await until(lambda: writer.failed >= 4)
        assert writer.error == "fake://db: away"
        fake.away = False
        await until(lambda: writer.connected)
    assert [line["event"] for line in lines] == [
        "cannot write to the database; changes wait",
        "writing to the database again",
    ]
    assert fake.tried < 12


async def test_closing_writes_what_waits(fake: Fake) -> None:
    writer = Writer(fake, LOG, delay_s=60, batch=4)
    writer.start()
    for room in range(10):
        writer.put(said(room))
    await writer.close(10)
    assert len(fake.written) == 10


@pytest.mark.parametrize("trouble", ["away", "stuck"])
async def test_closing_ends_in_time_and_says_what_was_not_written(fake: Fake, trouble: str) -> None:
    setattr(fake, trouble, True)
    with capture_logs() as lines:
        writer = Writer(fake, LOG)
        writer.start()
        writer.put(said(1))
        await asyncio.wait_for(writer.close(0.1), PATIENT_S)
    assert lines[-1]["event"] == "some changes were not written in time"
    assert lines[-1]["waiting"] == 1
    assert fake.tried < 20, "it does not spin"


async def test_what_was_left_is_pruned_now_and_then(fake: Fake, make: Callable[..., Writer]) -> None:
    make(fake, prune_s=0.01)
    await until(lambda: fake.pruned >= 2)


async def test_a_database_that_comes_back_after_the_start_is_found_though_nothing_changes(
    fake: Fake, make: Callable[..., Writer]
) -> None:
    fake.away = True
    writer = make(fake)
    await until(lambda: writer.failed >= 4)
    assert fake.tried < 12, "it does not spin"
    fake.away = False
    await until(lambda: writer.connected)
    assert (writer.error, writer.written) == ("", 0)


async def test_after_a_prune_that_failed_the_database_is_found_again_though_nothing_changes(
    fake: Fake, make: Callable[..., Writer]
) -> None:
    fake.prunes_badly = True
    writer = make(fake, prune_s=0.01)
    await until(lambda: writer.failed)
    fake.prunes_badly = False
    await until(lambda: writer.connected and fake.pruned > writer.failed)


async def test_nothing_is_lost_or_undone_where_the_server_is_killed_under_load(
    served: Database, make: Callable[..., Writer]
) -> None:
    dice = random.Random(7)
    newest: dict[tuple[int, int], Membership] = {}
    async with Store(location(served.url), "muster") as store:
        writer = make(store, batch=50)

        def tell(count: int) -> None:
            for _ in range(count):
                room, gateway = dice.randrange(300), dice.randrange(1, 4)
                known = newest.get((gateway, room))
                change = said(room, known.version + 1 if known else 1, gateway=gateway, present=dice.random() < 0.6)
                newest[change.key] = change
                writer.put(change)

        for trouble in (served.kill, served.stand_still, served.kill):
            tell(300)
            already = writer.written
            await until(lambda already=already: writer.written > already, PATIENT_S)  # type: ignore[misc]
            tell(300)
            trouble()
            tell(300)
            if trouble == served.kill:
                await until(lambda: not writer.connected, PATIENT_S)
                tell(300)
                served.start()
            else:
                served.go_on()
        await until(lambda: not writer.waiting, PATIENT_S)
        kept = {each.key: each async for page in store.load(Partition()) for each in page}
        await writer.close(10)
    assert writer.dropped == 0
    assert kept == {key: each for key, each in newest.items() if each.present}
