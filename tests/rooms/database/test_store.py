"""One suite for all databases: written rows are there, newer reports win in any order, and every failure is one
line."""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable

import pytest

from muster_server.plane.database.errors import DatabaseError, Refused, Unavailable
from muster_server.plane.database.url import location
from muster_server.systems.rooms.database.records import (
    EPOCH_MAX,
    NODE_MAX,
    ROOM_MAX,
    VERSION_MAX,
    Ended,
    Membership,
    Partition,
)
from muster_server.systems.rooms.database.schema import TABLE, VERSION_TABLE
from muster_server.systems.rooms.database.store import LEFT_S, Store
from tests.databases import PASSWORD, QUOTED, Database, Served, plain
from tests.waiting import PATIENT_S


def open_store(database: Database, **more: object) -> Store:
    return Store(location(database.url), "muster", **more)  # type: ignore[arg-type]


def said(room: int, version: int = 1, *, gateway: int = 1, epoch: int = 1, present: bool = True) -> Membership:
    return Membership(gateway, epoch, room, room ^ ROOM_MAX, version, present)


async def loaded(store: Store, partition: Partition | None = None, page: int = 3) -> list[Membership]:
    return [each async for rows in store.load(partition or Partition(), page) for each in rows]


async def again(action: Callable[[], Awaitable[object]], error: type[DatabaseError]) -> None:
    """Until it raises no more."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            try:
                await action()
                return
            except error:
                await asyncio.sleep(0.02)


async def test_what_is_put_is_loaded_by_partition_in_pages_once(database: Database) -> None:
    dice = random.Random(1)
    rooms = [0, 1, 1 << 63, ROOM_MAX, *(dice.getrandbits(64) for _ in range(40))]
    put = [said(room, gateway=gateway) for room in rooms for gateway in (1, 2)]
    put.append(Membership(NODE_MAX, EPOCH_MAX, ROOM_MAX, 0, VERSION_MAX, True))
    async with open_store(database) as store:
        await store.write(put)
        assert set(await loaded(store)) == set(put)
        for count in (2, 4, 256):
            parts = [await loaded(store, Partition(count, index)) for index in range(count)]
            assert all(each.room % count == index for index, part in enumerate(parts) for each in part)
            assert sum(map(len, parts)) == len(put)
    async with open_store(database) as store:
        assert len(await loaded(store, page=1_000)) == len(put), "another program finds the same"


async def test_clusters_do_not_see_each_other(database: Database) -> None:
    async with open_store(database) as store, Store(location(database.url), "other") as other:
        await store.write([said(5)])
        await other.write([said(6), Ended(1, 0, Partition())])
        await other.write([Ended(1, 9, Partition())])
        assert (await loaded(store), await loaded(other)) == ([said(5)], [])


async def test_words_in_any_order_leave_the_newest(database: Database) -> None:
    """In any batches, of any gateway, any number of times (I-2)."""
    ages = [(epoch, version) for epoch in (1, 2) for version in range(1, 7)]
    words = [
        said(room, version, gateway=gateway, epoch=epoch, present=(room + gateway + epoch + version) % 3 != 0)
        for room in range(4)
        for gateway in (1, 2)
        for epoch, version in ages[: len(ages) - room - gateway]
    ]
    newest = {each.key: each for each in sorted(words, key=lambda each: each.age)}
    wanted = sorted(repr(each) for each in newest.values() if each.present)
    for seed in range(4):
        dice = random.Random(seed)
        told = words * 2
        dice.shuffle(told)
        async with (
            Store(location(database.url), f"seed-{seed}") as one,
            Store(location(database.url), f"seed-{seed}") as two,
        ):
            while told:
                size = dice.randint(1, 12)
                batch, told = told[:size], told[size:]
                await dice.choice((one, two)).write(batch)
            assert sorted(map(repr, await loaded(one))) == wanted


async def test_two_who_write_the_same_at_once_both_get_through(database: Database) -> None:
    async def tell(store: Store, seed: int) -> None:
        dice = random.Random(seed)
        for version in range(1, 16):
            rooms = dice.sample(range(60), 40)
            await store.write([said(room, version, present=version == 15 or dice.random() < 0.5) for room in rooms])
        await store.write([said(room, 20) for room in range(60)])

    async with open_store(database) as one, open_store(database) as two:
        await asyncio.gather(tell(one, 1), tell(two, 2))
        assert len(await loaded(one)) == 60


async def test_a_life_that_ended_is_forgotten_and_no_other(database: Database) -> None:
    async with open_store(database) as store:
        old = [said(room, epoch=1) for room in range(1_100)]
        new, other = said(2_000, epoch=2), said(1, gateway=2)
        await store.write([*old, new, other])
        await store.write([Ended(1, 1, Partition()), said(3_000, epoch=2)])
        assert {each.key for each in await loaded(store)} == {new.key, other.key, (1, 3_000)}
        await store.write([Ended(1, 2, Partition()), said(4_000, epoch=2)])
        assert {each.key for each in await loaded(store)} == {other.key, (1, 4_000)}, "ends come before words"


async def test_what_ends_for_one_partition_stays_in_the_others(database: Database) -> None:
    """A gateway that routers of one partition have lost lives on at those of another."""
    async with open_store(database) as store:
        await store.write([said(room) for room in range(8)])
        await store.write([Ended(1, 1, Partition(4, 1))])
        assert {each.room for each in await loaded(store)} == {0, 2, 3, 4, 6, 7}
        await store.write([Ended(1, 1, Partition(2, 1))])
        assert {each.room for each in await loaded(store)} == {0, 2, 4, 6}


async def test_what_was_left_goes_after_a_while_and_till_then_no_older_word_counts(database: Database) -> None:
    clock = 1_000.0
    async with open_store(database, now=lambda: clock) as store:
        await store.write([said(1, 5, present=False), said(2)])
        clock += LEFT_S
        await store.prune()
        await store.write([said(1, 4)])
        assert [each.room for each in await loaded(store)] == [2]
        clock += 2
        await store.prune()
        await store.write([said(1, 4)])
        assert sorted(each.room for each in await loaded(store)) == [1, 2]


async def test_a_database_that_lost_everything_is_made_anew(database: Database) -> None:
    async with open_store(database) as store:
        await store.write([said(1)])
        await plain(database.url, f"DROP TABLE {TABLE}", f"DROP TABLE {VERSION_TABLE}")
        with pytest.raises(Unavailable):
            await store.write([said(2)])
        await store.write([said(2)])
        assert await loaded(store) == [said(2)]


async def test_many_who_open_an_empty_database_at_once_all_find_it_ready(database: Database) -> None:
    stores = [open_store(database) for _ in range(4)]
    try:
        await asyncio.gather(*(again(store.open, Unavailable) for store in stores))
        await asyncio.gather(*(store.write([said(number)]) for number, store in enumerate(stores)))
        assert len(await loaded(stores[0])) == 4
    finally:
        for store in stores:
            await store.close()


async def test_a_server_that_was_killed_is_written_again_when_it_is_back(served: Served) -> None:
    async with open_store(served) as store:
        await store.write([said(1)])
        served.kill()
        with pytest.raises(Unavailable) as away:
            await store.write([said(2)])
        assert "\n" not in str(away.value)
        assert PASSWORD not in str(away.value)
        with pytest.raises(Unavailable):
            await loaded(store)
        served.start()
        await again(lambda: store.write([said(2), said(1)]), Unavailable)
        assert sorted(each.room for each in await loaded(store)) == [1, 2], "what was written before is still there"


async def test_a_server_that_stands_still_holds_nobody_up_for_ever(served: Served) -> None:
    async with open_store(served, call_s=0.5) as store:
        await again(store.open, Unavailable)
        served.stand_still()
        try:
            with pytest.raises(Unavailable, match="no answer in time"):
                await store.write([said(1)])
        finally:
            served.go_on()
        await again(lambda: store.write([said(1)]), Unavailable)
    async with open_store(served) as store:
        assert len(await loaded(store)) == 1


@pytest.mark.parametrize(
    ("was", "becomes"), [(f":{QUOTED}@", ":wr0ng@"), (f":{QUOTED}@", "@")], ids=["wrong password", "no password"]
)
async def test_a_wrong_password_is_refused_in_one_line(served: Served, was: str, becomes: str) -> None:
    async with Store(location(served.url.replace(was, becomes)), "muster") as store:
        with pytest.raises(DatabaseError) as refused:
            await store.open()
    line = str(refused.value)
    assert re.search("denied|authentication", line)
    assert served.name not in line, "answers and logs show no user"
    assert "wr0ng" not in line
    assert "\n" not in line
    if becomes == ":wr0ng@":
        assert isinstance(refused.value, Refused)


async def test_a_database_that_is_missing_is_refused_in_one_line(served: Served) -> None:
    head, _, _ = served.url.rpartition("/")
    async with Store(location(f"{head}/{served.name}_missing"), "muster") as store:
        with pytest.raises(Refused, match=r"database \*\*\*") as refused:
            await store.open()
    assert served.name not in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_who_may_not_change_the_schema_may_still_use_it(served: Served) -> None:
    async with open_store(served) as store:
        await store.open()
    reader = f"{served.name}_reader"
    await served.grant(reader, "SELECT, INSERT, UPDATE, DELETE")
    async with Store(location(served.url.replace(f"{served.name}:", f"{reader}:")), "muster") as store:
        await store.write([said(1)])
        assert await loaded(store) == [said(1)]


async def test_a_load_goes_on_while_others_write(database: Database) -> None:
    async with open_store(database) as store, open_store(database) as other:
        await store.write([said(room) for room in range(50)])
        seen: list[Membership] = []
        async for page in store.load(Partition(), page=5):
            seen += page
            await other.write([said(room + 100, len(seen)) for room in range(20)])
        assert {each.room for each in seen} >= set(range(50))
        assert len({each.key for each in seen}) == len(seen), "nothing twice"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Membership(-1, 1, 1, 1, 1, True),
        lambda: Membership(1, EPOCH_MAX + 1, 1, 1, 1, True),
        lambda: Membership(1, 1, ROOM_MAX + 1, 1, 1, True),
        lambda: Membership(1, 1, 1, 1, VERSION_MAX + 1, True),
        lambda: Ended(NODE_MAX + 1, 1, Partition()),
        lambda: Partition(3, 0),
        lambda: Partition(512, 0),
        lambda: Partition(2, 2),
    ],
)
def test_numbers_that_no_column_holds_are_not_made(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"not|power|out of range"):
        wrong()
