"""The subscriptions of a reader: one to each shard however many watch, and a watch that comes back misses nothing."""

import asyncio
import contextlib
import itertools
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import structlog

from muster_server.plane.log import Batch
from muster_server.plane.ownership.errors import Away
from muster_server.systems.presence import feeds
from muster_server.systems.presence.feeds import Feed, Watching, missed
from muster_server.systems.presence.relay import LATE_S, Relay
from muster_server.systems.presence.store import Entry, Shard

PATIENT_S = 60.0


class Stream:
    """A shard's stream in memory."""

    def __init__(self, shard: int = 0, shards: int = 1) -> None:
        self.name, self.shard, self.shards = f"shard {shard}", shard, shards
        self.entries: deque[Entry] = deque()
        self.readers = self.readers_max = 0
        self.away = False
        self._woken = asyncio.Event()
        self._ms = itertools.count(round(time.time() * 1_000) - 30_000)

    def tell(self, *changes: tuple[int, str]) -> None:
        """Append an entry."""
        records = [json.dumps({"user": str(user), "id": name}).encode() for user, name in changes]
        self.entries.append(Entry(f"{next(self._ms)}-0", Batch.of(records)))
        self.wake()

    def wake(self) -> None:
        """Have readers look."""
        self._woken.set()
        self._woken = asyncio.Event()

    async def recent(self, changes_max: int) -> tuple[list[Entry], bool]:
        """As `Shard.recent`."""
        if self.away:
            raise Away("the store does not answer")
        found: deque[Entry] = deque()
        for entry in reversed(self.entries):
            if sum(each.told.count for each in found) >= changes_max:
                return list(found), False
            found.appendleft(entry)
        return list(found), True

    async def coming(self, after: str, wait_s: float) -> list[Entry]:
        """As `Shard.coming`."""
        self.readers += 1
        self.readers_max = max(self.readers, self.readers_max)
        try:
            while True:
                if self.away:
                    raise Away("the store does not answer")
                woken = self._woken
                if found := [entry for entry in self.entries if _order(entry.place) > _order(after)]:
                    return found[:16]
                await woken.wait()
        finally:
            self.readers -= 1


def _order(place: str) -> tuple[int, int]:
    ms, _, number = place.partition("-")
    return int(ms), int(number)


async def _missed(made: list[Feed], watching: Watching, after: str, wanted: set[str]) -> list[feeds.Recent]:
    """What a watch has missed, once these are among it."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            found = missed(made, watching.users, after)
            if found is not None and wanted <= {each.id for each in found}:
                return found
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def following(*streams: Stream) -> AsyncIterator[list[Feed]]:
    """The feeds of these streams."""
    made = [Feed(cast(Shard, stream)) for stream in streams]
    try:
        yield made
    finally:
        for feed in made:
            await feed.close()


async def joined(made: list[Feed], *users: int) -> Watching:
    """A watch that is open."""
    watching = Watching(frozenset(users))
    for feed in made:
        await feed.join(watching)
    return watching


async def names(watching: Watching, count: int) -> list[str]:
    """The ids of the next changes."""
    found = [await watching.next(PATIENT_S) for _ in range(count)]
    return [each.id if each is not None else "none" for each in found]


async def test_a_thousand_watches_share_one_subscription_and_hear_of_their_own_users() -> None:
    stream = Stream()
    async with following(stream) as made:
        watches = [await joined(made, user % 10) for user in range(1_000)]
        stream.tell((3, "3-a"), (4, "4-a"))
        stream.tell((3, "3-b"))
        for user, watching in enumerate(watches):
            wanted = {3: ["3-a", "3-b"], 4: ["4-a"]}.get(user % 10, [])
            assert await names(watching, len(wanted)) == wanted
            assert await watching.next(0) is None
        assert stream.readers_max == 1
        for watching in watches[5:]:
            made[0].leave(watching)
        stream.tell((3, "3-c"))
        assert await names(watches[3], 1) == ["3-c"]
        assert await watches[13].next(0) is None, "it was closed"


async def test_a_watch_that_comes_back_gets_what_it_missed_in_every_shard() -> None:
    one, two = Stream(0, 2), Stream(1, 2)
    async with following(one, two) as made:
        first = await joined(made, 2, 3)
        one.tell((2, "2-a"))
        two.tell((3, "3-a"))
        assert sorted(await names(first, 2)) == ["2-a", "3-a"]
        for feed in made:
            feed.leave(first)
        one.tell((2, "2-b"), (4, "4-b"))
        two.tell((3, "3-b"))
        again = await joined(made, 2, 3)
        found = await _missed(made, again, "2-a", {"2-b", "3-b"})
        told = [each.id for each in found]
        assert set(told) <= {"2-b", "3-a", "3-b"}, (
            "of its own users; what another shard told at that time may come twice"
        )
        assert missed(made, again.users, "9-z") is None, "of no known change"


async def test_a_watch_resumes_from_what_the_store_has_where_its_reader_is_another_one() -> None:
    stream = Stream()
    for number in range(5):
        stream.tell((7, f"7-{number}"))
    async with following(stream) as made:
        watching = await joined(made, 7)
        assert [each.id for each in missed(made, watching.users, "7-2") or []] == ["7-3", "7-4"]
        assert await watching.next(0) is None, "a new watch hears of later changes alone"


async def test_what_is_kept_for_watches_that_come_back_is_bounded() -> None:
    stream = Stream()
    async with following(stream) as made:
        watching = await joined(made, 1)
        for number in range(feeds.RECENT_MAX // 100 + 2):
            stream.tell(*((7, f"7-{number}-{each}") for each in range(100)))
        stream.tell((1, "last"))
        assert await names(watching, 1) == ["last"]
        assert len(made[0]._recent) == len(made[0]._numbers) == feeds.RECENT_MAX
        assert missed(made, watching.users, "7-0-0") is None, "it is gone"
        assert missed(made, watching.users, "last") == []


async def test_a_watch_that_does_not_read_is_cut_off_and_others_are_not() -> None:
    stream = Stream()
    async with following(stream) as made:
        slow, quick = await joined(made, 7), await joined(made, 7)
        for number in range(feeds.WAITING_MAX // 100 + 2):
            told = [f"{number}-{each}" for each in range(100)]
            stream.tell(*((7, each) for each in told))
            assert await names(quick, 100) == told
        assert slow.slow
        assert not quick.slow


async def test_a_store_that_goes_ends_its_watches_and_the_next_one_begins_anew() -> None:
    stream = Stream()
    async with following(stream) as made:
        watching = await joined(made, 7)
        stream.away = True
        stream.wake()
        assert await watching.next(PATIENT_S) is None
        assert isinstance(watching.failed, Away)
        with pytest.raises(Away):
            await joined(made, 7)
        stream.away = False
        again = await joined(made, 7)
        stream.tell((7, "later"))
        assert await names(again, 1) == ["later"]


def test_the_head_of_a_change_is_all_that_a_feed_reads() -> None:
    record: dict[str, Any] = {"user": "7", "device": "a", "state": "online", "id": "1-2-3-4", "more": [1]}
    (found,) = feeds._changes(Entry("5-0", Batch.of([json.dumps(record).encode()])))
    assert (found.user, found.id, found.at_ms, json.loads(found.record)) == (7, "1-2-3-4", 5, record)


async def test_a_relay_whose_log_takes_nothing_says_so_and_one_that_keeps_up_says_nothing() -> None:
    relay = Relay(cast(Shard, Stream()), cast(Any, None), "presence-site1-of1", 0, structlog.get_logger())
    assert relay.why == "starting"
    relay._why = ""
    relay.oldest_s = LATE_S - 1
    assert relay.why == ""
    relay.oldest_s = 12.4
    assert relay.why == "the log has accepted no change for 12 s"
    relay._why = "kafka://one:9092: no broker answers"
    assert relay.why == "kafka://one:9092: no broker answers", "the log's own words come first"
    assert relay.notes(84) == ["84 changes wait for the log: kafka://one:9092: no broker answers"]
    assert relay.notes(0) == []
