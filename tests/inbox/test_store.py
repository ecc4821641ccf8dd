"""The store of inboxes in each database, beside a model of lists and sets; and what it must not do."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal

import pytest

from muster_server.plane.ownership.errors import Full
from muster_server.systems.inbox.records import Limits, Told
from muster_server.systems.inbox.shapes import (
    ALL,
    COUNT_MAX,
    Broadcast,
    Choice,
    Choose,
    Count,
    Counts,
    Cursor,
    Join,
    Mark,
    New,
    Noted,
    Numbered,
    Read,
)
from tests.reference.inbox import Inboxes

if TYPE_CHECKING:
    from muster_server.systems.inbox.database.store import SqlStore
    from tests.databases import Database

FAR = 1 << 50
USERS = (7, 1 << 63, (1 << 64) - 1)


def opened(database: "Database", name: str = "one", **limits: Any) -> "SqlStore":
    from muster_server.plane.database.url import location
    from muster_server.systems.inbox.database.store import SqlStore

    return SqlStore(location(database.url), name, Limits(**limits))


@pytest.fixture
async def store(database: "Database") -> "AsyncIterator[SqlStore]":
    made = opened(database)
    yield made
    await made.close()


async def ids(store: "SqlStore", user: int, **asked: Any) -> list[str]:
    return [entry.id for entry in (await store.read(Read(user, **asked), 0)).entries]


async def test_numbers_have_no_gap_and_the_same_id_is_the_same_entry(store: "SqlStore") -> None:
    one = New("like", b'"a"', id="x")
    told: list[Told] = []
    said = await store.notify([(7, one), (8, one), (7, New("like", b'"b"')), (7, one)], 1, told)
    assert said == [Noted(1, "new"), Noted(1, "new"), Noted(2, "new"), Noted(1, "same")]
    assert [(each.user, each.seq) for each in told] == [(7, 1), (8, 1), (7, 2)]
    assert await store.notify([(7, one), (7, New("like", b'"c"', id="x"))], 2) == [
        Noted(1, "same"),
        Noted(1, "conflict"),
    ]
    assert await ids(store, 7) == ["2", "1"]


async def test_a_group_grows_and_moves_and_its_ids_stay_known(store: "SqlStore") -> None:
    one, two = New("like", b"1", "song:7", "ann", "a"), New("like", b"2", "song:7", "bo", "b")
    assert await store.notify([(7, one), (7, New("reply", b"0")), (7, two)], 1) == [
        Noted(1, "new"),
        Noted(2, "new"),
        Noted(3, "grown"),
    ]
    await store.mark(Mark(7, "read", Cursor(3, 0)), 1)
    assert await store.notify([(7, one), (7, two), (7, New("like", b"3", "song:7", "cy"))], 2) == [
        Noted(1, "same"),
        Noted(3, "same"),
        Noted(4, "grown"),
    ]
    page = await store.read(Read(7, after=Cursor(2, 0)), 2)
    assert [(each.id, each.count, each.actor, each.data, each.read) for each in page.entries] == [
        ("4", 3, "cy", b"3", False)
    ]
    assert (await store.count(Count(7), 2)).unread == {"like": 1}


async def test_a_broadcast_is_one_row_for_all_and_begins_where_a_user_joined(store: "SqlStore") -> None:
    news = New("news", b'"n"')
    assert await store.broadcast(Broadcast(ALL, news, FAR), 1) == Numbered(1, "new")
    await store.join(Join(ALL, [8]))  # registered now
    await store.join(Join("field:corn", [7]))
    assert await store.broadcast(Broadcast("field:corn", news, FAR), 2) == Numbered(2, "new")
    await store.join(Join("field:corn", [7, 8]))  # once more for one of them
    assert await store.broadcast(Broadcast("field:corn", news, 5), 3) == Numbered(3, "new")
    assert await ids(store, 7) == ["b3", "b2", "b1"]
    assert await ids(store, 8) == ["b3"]
    assert await ids(store, 9) == ["b1"]
    assert [each.id for each in (await store.read(Read(7), 5)).entries] == ["b2", "b1"]  # one has ended
    await store.join(Join("field:corn", [7], leave=True))
    assert await ids(store, 7) == ["b1"]
    assert (await store.totals(0)).users == 2


async def test_the_same_id_is_the_same_broadcast(store: "SqlStore") -> None:
    asked = Broadcast(ALL, New("news", b"1", id="x"), FAR)
    assert await store.broadcast(asked, 1) == Numbered(1, "new")
    assert await store.broadcast(asked, 2) == Numbered(1, "same")
    assert await store.broadcast(Broadcast("a", asked.new, FAR), 2) == Numbered(1, "conflict")


async def test_a_page_merges_own_entries_and_broadcasts_by_time_without_loss(store: "SqlStore") -> None:
    for at in range(1, 21):
        if at % 3:
            await store.notify([(7, New("like", b"1"))], at)
        else:
            await store.broadcast(Broadcast(ALL, New("news", b"1"), FAR), at)
    whole = await store.read(Read(7, limit=50), 30)
    assert [each.at for each in whole.entries] == list(range(20, 0, -1))
    back: list[str] = []
    before = None
    while True:
        page = await store.read(Read(7, before=before, limit=3), 30)
        back += [each.id for each in page.entries]
        before = page.end
        if not page.more:
            break
    assert back == [each.id for each in whole.entries]
    ahead: list[str] = []
    after = Cursor()
    while True:
        page = await store.read(Read(7, after=after, limit=3), 30)
        ahead += [each.id for each in page.entries]
        after = page.end
        if not page.more:
            break
    assert ahead == back[::-1]
    assert after == page.now == whole.now
    assert [each.kind for each in (await store.read(Read(7, kind="news", limit=50), 30)).entries] == ["news"] * 6


async def test_a_clock_that_was_set_back_hides_no_entry(store: "SqlStore") -> None:
    await store.notify([(7, New("like", b"1"))], 100)
    await store.broadcast(Broadcast(ALL, New("news", b"1"), FAR), 90)
    page = await store.read(Read(7, limit=1), 100)
    await store.notify([(7, New("like", b"2"))], 10)
    rest = await store.read(Read(7, after=page.now), 100)
    assert [each.id for each in rest.entries] == ["2"]
    assert await ids(store, 7, before=page.end) == ["b1"]


async def test_a_cursor_ahead_of_the_inbox_reads_it_from_the_beginning(store: "SqlStore") -> None:
    await store.notify([(7, New("like", b"1"))], 1)
    page = await store.read(Read(7, after=Cursor(1 << 40, 1 << 40)), 2)
    assert [each.id for each in page.entries] == ["1"]
    assert page.end == Cursor(1, 0)
    await store.mark(Mark(7, "read", Cursor(1 << 40, 1 << 40)), 2)
    await store.notify([(7, New("like", b"2"))], 3)
    assert (await store.count(Count(7), 3)).unread == {"like": 1}  # a mark ahead covers nothing to come


async def test_an_inbox_keeps_its_newest_entries(database: "Database") -> None:
    store = opened(database, entries_max=100)
    await store.notify([(7, New("like", b"1"))] * 1_000, 1)
    page = await store.read(Read(7, limit=200), 1)
    assert [int(each.id) for each in page.entries] == list(range(1_000, 900, -1))
    assert store.dropped == 900
    await store.close()


async def test_counts_stop_at_their_limit(store: "SqlStore") -> None:
    await store.notify([(7, New("like", b"1"))] * 150, 1)
    assert await store.count(Count(7), 1) == Counts({"like": COUNT_MAX}, {"like": COUNT_MAX})
    assert await store.unread([7, 8], 1) == {7: COUNT_MAX}


async def test_unread_entries_are_counted_behind_many_that_were_read(store: "SqlStore") -> None:
    await store.notify([(user, New("like", b"1")) for user in (7, 8) for _ in range(400)], 1)
    assert await store.unread([7, 8], 1) == {7: COUNT_MAX, 8: COUNT_MAX}
    for first in (51, 251):  # the newest 350 are read one by one
        await store.mark(Mark(7, "read", entries=[str(seq) for seq in range(first, min(first + 200, 401))]), 1)
    await store.mark(Mark(8, "read", Cursor(397, 0)), 1)
    assert await store.unread([7, 8], 1) == {7: 50, 8: 3}
    for user, count in ((7, 50), (8, 3)):
        assert (await store.count(Count(user), 1)).unread == {"like": count}


async def test_settings_turn_kinds_off_but_not_those_that_are_required(database: "Database") -> None:
    store = opened(database, required=frozenset({"login"}))
    await store.choose(
        Choose(7, {"like": Choice(inbox=False), "login": Choice(inbox=False), "reply": Choice(push=False)})
    )
    told: list[Told] = []
    said = await store.notify([(7, New(kind, b"1")) for kind in ("like", "login", "reply")], 1, told)
    assert said == [Noted(0, "off"), Noted(1, "new"), Noted(2, "new")]
    assert [each.push for each in told] == [True, False]
    await store.broadcast(Broadcast(ALL, New("like", b"1"), FAR), 1)
    assert (await store.count(Count(7), 1)).unread == {"login": 1, "reply": 1}
    assert (await store.read(Read(7), 1)).hidden == ["like"]
    assert (await store.choose(Choose(7, {"like": Choice()}))).kinds.keys() == {"login", "reply"}
    assert sorted(await ids(store, 7)) == ["1", "2", "b1"]
    with pytest.raises(Full, match="limit 64"):
        await store.choose(Choose(7, {f"k{number}": Choice(push=False) for number in range(65)}))
    await store.close()


async def test_a_mail_is_due_after_a_while_unless_it_was_read(database: "Database") -> None:
    store = opened(database, mails=True, mail="unless_read", mail_wait_ms=600)
    await store.choose(Choose(8, {"like": Choice(mail="never"), "login": Choice(mail="at_once")}))
    await store.notify([(7, New("like", b"1", "song")), (7, New("reply", b"1")), (8, New("like", b"1"))], 1_000)
    await store.notify([(8, New("login", b"1"))], 1_000)
    assert [(each.user, each.entry.id) for each in await store.due(1_000, 10)] == [(8, "2")]
    await store.mailed(await store.due(1_000, 10))
    await store.mark(Mark(7, "read", entries=["2"]), 1_100)
    await store.notify([(7, New("like", b"2", "song"))], 1_500)  # it grows, and its mail is not put off
    assert await store.due(1_599, 10) == []
    (one,) = await store.due(1_600, 10)
    assert (one.user, one.entry.id, one.way) == (7, "3", "unless_read")
    assert (await store.totals(1_700)).mails_overdue_s == pytest.approx(0.1)
    await store.mailed([one])
    assert await store.due(10_000, 10) == []
    assert (await store.totals(1_700)).mails == 0
    await store.close()


async def test_old_entries_ids_and_broadcasts_are_dropped(store: "SqlStore") -> None:
    await store.notify([(7, New("like", b"1", id="x"))], 1)
    await store.broadcast(Broadcast(ALL, New("news", b"1", id="x"), 2), 1)
    await store.mark(Mark(7, "read", entries=["b1"]), 1)
    assert await store.sweep(100, 10, 1_000, 50) == 1
    assert await store.notify([(7, New("like", b"1", id="x"))], 100) == [Noted(1, "same")]
    await store.broadcast(Broadcast(ALL, New("news", b"2"), FAR), 100)
    await store.sweep(2_000, 10_000, 1_000, 50)
    assert await store.notify([(7, New("like", b"1", id="x"))], 2_000) == [Noted(2, "new")]
    assert (await store.totals(0)).broadcasts == 1


async def test_two_nodes_write_to_one_inbox_without_a_gap(database: "Database") -> None:
    first, second = opened(database), opened(database)
    said = await asyncio.gather(
        *(
            store.notify([(user, New("like", b"1")) for user in (8, 7)], 1)
            for store in (first, second)
            for _ in range(20)
        )
    )
    for place in range(2):
        assert sorted(each[place].seq for each in said) == list(range(1, 41))
    told = await asyncio.gather(
        *(store.broadcast(Broadcast(ALL, New("n", b"1"), FAR), 1) for store in (first, second) for _ in range(10))
    )
    assert sorted(each.number for each in told) == list(range(1, 21))
    await first.close()
    await second.close()


async def test_instances_share_a_database_and_nothing_else(database: "Database") -> None:
    first, second = opened(database), opened(database, "other")
    await first.notify([(7, New("like", b"1"))], 1)
    await first.broadcast(Broadcast(ALL, New("n", b"1"), FAR), 1)
    assert await ids(second, 7) == []
    assert await second.count(Count(7), 1) == Counts({}, {})
    await first.close()
    await second.close()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 30))])
async def test_every_answer_is_that_of_the_model(store: "SqlStore", seed: int) -> None:
    dice, model = random.Random(seed), Inboxes()
    kinds, audiences = ("like", "reply", "news"), (ALL, "corn", "wheat")
    clock = itertools.count(1)
    for step_number in range(200 if seed else 60):
        now, user = next(clock), dice.choice(USERS)
        step = dice.randrange(9)
        if step < 3:
            some = [
                (
                    dice.choice(USERS),
                    New(
                        dice.choice(kinds),
                        b"%d" % dice.randrange(3),
                        dice.choice(("", "", "g", "h")),
                        dice.choice(("", "ann")),
                        dice.choice(("", "", "", "x", "y", "z")),
                    ),
                )
                for _ in range(dice.randrange(1, 6))
            ]
            said = await store.notify(some, now)
            assert [(each.seq, each.outcome) for each in said] == [model.notify(*each, now) for each in some]
        elif step == 3:
            new = New(dice.choice(kinds), b"1", id=dice.choice(("", "", "p", "q")))
            audience, until = dice.choice(audiences), now + dice.choice((5, 1_000))
            told = await store.broadcast(Broadcast(audience, new, until), now)
            assert (told.number, told.outcome) == model.broadcast(audience, new, until, now)
        elif step == 4:
            audience = dice.choice(audiences)
            leave = audience != ALL and dice.random() < 0.4
            await store.join(Join(audience, [user], leave))
            model.join(audience, user, leave=leave)
        elif step == 5:
            kind, off = dice.choice(kinds), dice.random() < 0.3
            await store.choose(Choose(user, {kind: Choice(inbox=False if off else None)}))
            (model.person(user).off.add if off else model.person(user).off.discard)(kind)
        elif step == 6:
            person = model.person(user)
            seq, number = dice.randint(0, person.last), dice.randint(0, len(model.broadcasts))
            verb: Literal["read", "seen"] = "read" if dice.random() < 0.5 else "seen"
            kind = dice.choice(("", *kinds))
            await store.mark(Mark(user, verb, Cursor(seq, number), kind), now)
            model.mark(user, verb, seq, number, kind)
        elif step == 7:
            seen = [item.id for item in (*model.person(user).items, *model.visible(user, now))]
            chosen = dice.choice([*seen, "99", "b99"])
            await store.mark(Mark(user, "read", entries=[chosen]), now)
            model.mark_one(user, chosen, now)
        for each in USERS if step_number % 10 == 0 else (user,):
            assert await store.count(Count(each), now) == Counts(model.unread(each, now), model.unseen(each, now))
        totals = await store.unread(USERS, now)
        known = {user: min(COUNT_MAX, sum(model.unread(user, now).values())) for user in totals}
        assert totals == known
        person = model.person(user)
        page = await store.read(Read(user, after=Cursor(), limit=200), now)
        expected = sorted((*person.items, *model.visible(user, now)), key=lambda item: (item.at, bool(item.audience)))
        assert [(each.id, each.count, each.data, each.read) for each in page.entries] == [
            (item.id, item.count, item.new.data, item.id in person.read) for item in expected
        ]


ROWS: dict[str, tuple[str, str, Any]] = {
    "data that is not UTF-8": ("muster_inbox", "data", b"\xff"),
    "no data": ("muster_inbox", "data", b""),
    "data over several lines": ("muster_inbox", "data", b"[1,\n2]"),
    "a kind that is none": ("muster_inbox", "kind", "BAD KIND"),
    "an actor that forges a line": ("muster_inbox", "actor", "a\nb"),
    "a time before 1970": ("muster_inbox", "at_ms", -5),
    "a count below one": ("muster_inbox", "count", -5),
    "a broadcast that is not UTF-8": ("muster_inbox_broadcasts", "data", b"\xff"),
    "a broadcast's kind": ("muster_inbox_broadcasts", "kind", "BAD KIND"),
    "settings that are not JSON": ("muster_inbox_users", "settings", "{"),
    "settings of another form": ("muster_inbox_users", "settings", '{"like": {"x": 1}}'),
}
TYPES: dict[str, tuple[str, str, Any]] = {
    "data as text": ("muster_inbox", "data", "text"),
    "a time as text": ("muster_inbox", "at_ms", "x"),
    "an actor as bytes": ("muster_inbox", "actor", b"\xff"),
    "a broadcast's kind as bytes": ("muster_inbox_broadcasts", "kind", b"\xff"),
    "a number as text": ("muster_inbox_users", "last_seq", "x"),
    "a broadcast's number as text": ("muster_inbox_users", "since", "x"),
}
"""Only SQLite takes these."""


@pytest.mark.parametrize("row", [*ROWS, *TYPES])
async def test_a_row_that_is_wrong_hides_nothing_else(database: "Database", store: "SqlStore", row: str) -> None:
    from sqlalchemy import text

    if row in TYPES and not database.url.startswith("sqlite"):
        pytest.skip("this database keeps the types of its columns")
    table, column, value = (ROWS | TYPES)[row]
    like = New("like", b"1")
    await store.notify([(7, like), (8, like)], 1)
    for data in (b"2", b"3"):
        await store.broadcast(Broadcast("all", New("news", data), FAR), 1)
    where = "number = 1" if table.endswith("broadcasts") else "user_id = 7"
    async with store._database.transaction(writes=True) as connection:
        quote = "`" if database.url.startswith("mysql") else '"'
        changed = text(f"UPDATE {table} SET {quote}{column}{quote} = :value WHERE {where}")
        await connection.execute(changed, {"value": value})
    assert await store.notify([(7, like), (8, like)], 1) == [Noted(2, "new"), Noted(2, "new")]
    hidden = {"muster_inbox": "1", "muster_inbox_broadcasts": "b1", "muster_inbox_users": ""}[table]
    for user in (7, 8):
        mine = {"b1"} if hidden == "b1" else {hidden} if user == 7 else set[str]()
        assert set(await ids(store, user)) == {"1", "2", "b1", "b2"} - mine
        assert set(await ids(store, user, after=Cursor(), limit=1)) <= {"1", "2", "b1", "b2"} - mine
        assert (await store.count(Count(user), 0)).unread["like"] in {1, 2}
        assert (await store.unread([user], 0))[user] >= 2
    await store.choose(Choose(8, {"like": Choice(push=False)}))
    if row != "a number as text":  # that one was corrected by the entry
        ((name, why),) = store.unreadable.items()
        assert name.startswith(table)
        assert why.startswith(column)


async def test_pages_go_on_behind_rows_that_are_wrong(store: "SqlStore") -> None:
    from sqlalchemy import text

    await store.notify([(7, New("like", b"1")) for _ in range(9)], 1)
    async with store._database.transaction(writes=True) as connection:
        await connection.execute(text("UPDATE muster_inbox SET actor = '\n' WHERE seq IN (3, 4, 5, 9)"))
    for forward in True, False:
        found: list[str] = []
        asked = Read(7, limit=2, after=Cursor()) if forward else Read(7, limit=2)
        while True:
            page = await store.read(asked, 0)
            found += [each.id for each in page.entries]
            if not page.more:
                break
            asked = Read(7, limit=2, after=page.end) if forward else Read(7, limit=2, before=page.end)
        assert sorted(found) == ["1", "2", "6", "7", "8"]


async def test_a_number_behind_the_entries_is_corrected(store: "SqlStore") -> None:
    """As after a table of users was restored alone."""
    from sqlalchemy import text

    like = New("like", b"1")
    await store.notify([(7, like), (7, like), (8, like)], 1)
    async with store._database.transaction(writes=True) as connection:
        await connection.execute(text("UPDATE muster_inbox_users SET last_seq = 0 WHERE user_id = 7"))
    assert await store.notify([(8, like), (7, like)], 1) == [Noted(2, "new"), Noted(3, "new")]
    assert await ids(store, 7) == ["3", "2", "1"]


async def test_a_mail_of_a_row_that_is_wrong_keeps_no_other_one_back(database: "Database") -> None:
    from sqlalchemy import text

    store = opened(database, mail="at_once", mails=True)
    try:
        await store.notify([(7, New("like", b"1")), (8, New("like", b"1"))], 1)
        async with store._database.transaction(writes=True) as connection:
            await connection.execute(text("UPDATE muster_inbox SET actor = '\n' WHERE user_id = 7"))
        assert [each.user for each in await store.due(1_000, 10)] == [8]
        assert [each.user for each in await store.due(1_000, 1)] == [8]
    finally:
        await store.close()
