"""Jobs by tag over every store: what they count is what is there, whatever happens between two pages."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from muster.clock import now_ms
from muster_server.systems.messages import admin_service
from muster_server.systems.messages.admin_service import AdminService
from muster_server.systems.messages.center_service import CenterService
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.schedule import NewChange, Reply, Schedule
from muster_server.systems.messages.shapes import (
    EVER,
    Envelope,
    Found,
    Query,
    Send,
    TagChanged,
    TagPage,
    Which,
    has_tag,
)
from muster_server.systems.messages.topics import NewTopic, TopicsFile
from tests.messages.conftest import Made

HOUR_MS = 3_600_000


class Center(CenterService):
    """Lists a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._lists, self._lists_waiting = asyncio.Semaphore(1), 0


class Link:
    """Changes a schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    async def change(self, topic: int, changes: Sequence[NewChange]) -> list[Reply]:
        return await self._schedule.change(changes)


class Admin(AdminService):
    """The jobs of an admin beside a schedule."""

    def __init__(self, schedule: Schedule, topics: TopicsFile) -> None:
        self.topics = topics
        self._lister = Center(schedule)
        self._center = Link(schedule)  # type: ignore[assignment]
        self._by_tag = dict.fromkeys(("count", "cancel", "move"), 0)

    async def _found(self, which: Which) -> Found:
        return await self._lister._list(which)

    async def job(self, page: TagPage, between: Any = None) -> TagChanged:
        """All pages of a job, and the sums of their counts."""
        sums = [0, 0, 0, 0]
        while True:
            said = await self._tag_page(page)
            sums = [a + b for a, b in zip(sums, (said.looked, said.matching, said.done, said.late), strict=True)]
            if not said.next:
                looked, matching, done, late = sums
                return TagChanged(looked, matching, done, late, said.until, "")
            page = msgspec.structs.replace(page, until=said.until, after=said.next)
            if between is not None:
                await between()


class World:
    """A schedule with one topic, and what each message has."""

    def __init__(self, schedule: Schedule, made: Made) -> None:
        topics = TopicsFile(made.folder / "topics", 10)
        (made.folder / "topics").mkdir()
        topics.open()
        self.topic = topics.create(NewTopic(name="orders", callback="https://shop.example/hook")).number
        self.schedule, self.admin = schedule, Admin(schedule, topics)
        self.tags: dict[int, tuple[str, ...]] = {}

    async def insert(self, number: int, due_at: int, *tags: str, accepted_at: int = 0) -> None:
        envelope = Envelope(str(number), "", "text/plain", accepted_at, b"summer", "", tags)
        ((said, *_),) = await self.schedule.insert([(number, self.topic, due_at, None, envelope.packed())])
        assert said == "inserted"
        self.tags[number] = tags

    async def states(self) -> dict[int, tuple[str, int]]:
        """State and due time of each message."""
        found = await self.schedule.get(list(self.tags))
        return {each[1][0]: (each[1][5], each[1][2]) for each in found if each[0] == "found"}


@pytest.fixture
async def world(made: Made) -> World:
    return World(await made.open(), made)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_service, "LIMIT_MAX", 7)


async def test_messages_with_a_tag_are_counted_and_listed(world: World) -> None:
    far = now_ms() + HOUR_MS
    for number in range(1, 41):
        tags = ("summer",) if number % 4 == 0 else ("winter", "late") if number % 4 == 1 else ()
        await world.insert(number, far + number, *tags)
    said = await world.admin.job(TagPage("orders", "summer", "count"))
    assert (said.looked, said.matching, said.done, said.late) == (40, 10, 0, 0)
    assert (await world.admin.job(TagPage("orders", "late", "count"))).matching == 10
    assert (await world.admin.job(TagPage("orders", "lat", "count"))).matching == 0
    seen, after = [], ""
    while True:
        page = await world.admin._list(Query("orders", 0, EVER, ["scheduled"], 3, after, "summer"))
        assert len(page.messages) <= 3
        assert all(each.tags == ("summer",) for each in page.messages)
        seen += [int(each.id) for each in page.messages]
        after = page.next
        if not after:
            break
    assert seen == list(range(4, 41, 4))


@pytest.mark.parametrize("seed", range(3))
async def test_a_job_cancels_what_was_there_when_it_began_and_nothing_else(world: World, seed: int) -> None:
    dice = random.Random(seed)
    far = now_ms() + HOUR_MS
    for number in range(1, 81):
        await world.insert(number, far + dice.randrange(1_000), *dice.sample(["a", "b", "c"], dice.randrange(3)))
    before = dict(world.tags)
    late: set[int] = set()

    async def between() -> None:
        number = 100 + len(world.tags)
        await world.insert(number, far + dice.randrange(1_000), "a", accepted_at=now_ms() + HOUR_MS)
        victim = dice.randrange(1, 81)
        if (await world.states())[victim][0] == "scheduled":
            late.add(victim)
        await world.schedule.change([(victim, "cancel", None, None)])

    said = await world.admin.job(TagPage("orders", "a", "cancel"), between)
    states = await world.states()
    for number, tags in world.tags.items():
        gone = "a" in before.get(number, ()) or number in late
        assert (states[number][0] == "cancelled") == gone, (number, tags)
    there = {number for number, tags in before.items() if "a" in tags}
    assert said.done == len(there - late)
    assert said.matching == said.done + said.late
    again = await world.admin.job(TagPage("orders", "a", "cancel", 0, said.until))
    assert (again.matching, again.done) == (0, 0)


async def test_a_job_moves_each_message_once_and_can_be_repeated(world: World) -> None:
    far = now_ms() + HOUR_MS
    for number in range(1, 31):
        await world.insert(number, far + number * 1_000, *["a"] * (number % 2))
    for to in (far + 15_500, far + 90_000, far - 90_000):
        said = await world.admin.job(TagPage("orders", "a", "move", to))
        assert (said.matching, said.done, said.late) == (15, 15, 0)
        again = await world.admin.job(TagPage("orders", "a", "move", to))
        assert (again.matching, again.done, again.late) == (0, 0, 0)
        states = await world.states()
        assert {states[number][1] for number in range(1, 31, 2)} == {to}
        assert [states[number][1] for number in range(2, 31, 2)] == [far + n * 1_000 for n in range(2, 31, 2)]
    assert world.admin._by_tag["move"] == 45
    with pytest.raises(Refusal):
        await world.admin.job(TagPage("orders", "a", "move", 1 << 52))
    with pytest.raises(Refusal):
        await world.admin.job(TagPage("nothing", "a", "count"))
    with pytest.raises(Refusal):
        await world.admin._tag_page(TagPage("orders", "a", "count", 0, 0, "x"))


def test_an_envelope_without_tags_is_as_before() -> None:
    plain, keyed = Envelope("a", "", "k", 1, b"summer"), Envelope("a", "", "k", 1, b"b", "key")
    assert len(msgspec.msgpack.decode(plain.packed())) == 5
    assert len(msgspec.msgpack.decode(keyed.packed())) == 6
    tagged = Envelope("a", "", "k", 1, b"b", "", ("summer", "x"))
    assert msgspec.msgpack.decode(tagged.packed(), type=Envelope) == tagged
    assert has_tag(tagged.packed(), "summer")
    assert not has_tag(plain.packed(), "summer")
    assert not has_tag(tagged.packed(), "k")


@pytest.mark.parametrize("tags", [("",), ("a b",), ("a,b",), ("-",), ("x" * 65,), tuple("abcdefghi")])
def test_tags_that_are_none_are_refused(tags: tuple[str, ...]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"body": b"", "tags": tags}, Send)
