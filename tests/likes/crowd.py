"""Clients that like and take back on several nodes while these die and partitions move, and a model that judges them.

The model is a plain dictionary: what was acknowledged last for each like. A change without an answer may have been done or
not; it counts neither way until somebody asks. Each client has users of its own, so every answer has one right value.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Final

from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.likes.client import FeedEntry, Likes
from muster_server.systems.likes.reach import Reach
from tests.waiting import PATIENT_S

ITEMS: Final = tuple(b"share:%d" % number for number in range(40))
BOARDS: Final = tuple(b"game:%d" % number for number in range(8))
USERS: Final = 12
"""Of one client."""
Like = tuple[bytes, int]


class Crowd:
    """Likes while `running` lasts. `longest_s`: the longest time without an answer for one item."""

    def __init__(self, doors: Sequence[tuple[str, int]], random: Random, clients: int = 4) -> None:
        self.doors, self.random, self._clients = doors, random, clients
        self.told: dict[Like, bool] = {}
        self.open = set[Like]()
        self.scores: dict[tuple[bytes, bytes], set[float]] = {}
        """The scores that a member of a leaderboard may have: one, unless a raise had no answer."""
        self.acknowledged = self.refused = 0
        self.longest_s = 0.0
        self._answered: dict[bytes, float] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Until the block ends; an answer that contradicts the model is raised there."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for mine in range(self._clients):
                group.create_task(self._run(mine, stop))
            try:
                yield
            finally:
                stop.set()

    async def _run(self, mine: int, stop: asyncio.Event) -> None:
        loop, random = asyncio.get_running_loop(), Random(self.random.random())
        async with Likes(Reach(self.doors)) as likes:
            while not stop.is_set():
                if random.random() < 0.25:
                    await self._raise(likes, (random.choice(BOARDS), b"%d-%d" % (mine, random.randrange(5))), random)
                item, user, bit = random.choice(ITEMS), mine * USERS + random.randrange(USERS), random.random() < 0.6
                like, began = (item, user), loop.time()
                try:
                    was = await likes.put(item, user, bit)
                except StoreError:
                    self.refused += 1
                    self.open.add(like)
                    continue
                if like not in self.open:
                    assert self.told.get(like, False) == was, f"{like} was {was}, an earlier answer said otherwise"
                self.open.discard(like)
                self.told[like] = bit
                self.acknowledged += 1
                if random.random() < 0.3:
                    with contextlib.suppress(StoreError):
                        assert await likes.likes(item, user) == bit, f"{like}: a stale answer"
                if random.random() < 0.1:
                    with contextlib.suppress(StoreError):
                        self._judge(user, await likes.feed(ITEMS, user, 0))
                self.longest_s = max(self.longest_s, loop.time() - max(began, self._answered.get(item, began)))
                self._answered[item] = loop.time()

    async def _raise(self, likes: Likes, key: tuple[bytes, bytes], random: Random) -> None:
        """Raise the score of one of this client's members."""
        by = float(random.randrange(1, 9))
        before = self.scores.get(key, {0.0})
        try:
            score = await likes.leaderboards.add(*key, by)
        except StoreError:
            self.refused += 1
            self.scores[key] = before | {score + by for score in before}
            return
        assert score - by in before, f"{key}: {score} after one of {before} and {by}"
        self.scores[key] = {score}
        self.acknowledged += 1

    def _judge(self, viewer: int, page: Sequence[FeedEntry]) -> None:
        """Each entry is of its item, and has the viewer's last acknowledged like."""
        assert len(page) == len(ITEMS)
        for item, entry in zip(ITEMS, page, strict=True):
            if (like := (item, viewer)) not in self.open:
                assert entry.likes == self.told.get(like, False), f"{like}: a stale entry of a feed"

    async def until(self, acknowledged: int) -> None:
        """Wait for as many further answers."""
        wanted = self.acknowledged + acknowledged
        async with asyncio.timeout(PATIENT_S):
            while self.acknowledged < wanted:  # noqa: ASYNC110 - clients tell no one
                await asyncio.sleep(0.01)

    async def check(self) -> None:
        """Each acknowledged like is there, once, and rankings have the same counts."""
        async with Likes(Reach(self.doors)) as likes:
            for like in self.open:
                self.told[like] = await likes.likes(*like)
            self.open.clear()
            lost = [like for like, bit in self.told.items() if await likes.likes(*like) != bit]
            assert not lost
            wanted = {item: sum(bit for (of, _), bit in self.told.items() if of == item) for item in ITEMS}
            assert dict(zip(ITEMS, await likes.counts(ITEMS), strict=True)) == wanted
            for viewer in range(2):
                page = await likes.feed(ITEMS, viewer, 3)
                self._judge(viewer, page)
                assert dict(zip(ITEMS, (entry.count for entry in page), strict=True)) == wanted
                for item, entry in zip(ITEMS, page, strict=True):
                    assert len(set(entry.newest)) == len(entry.newest) == min(3, wanted[item])
                    assert all(self.told[item, user] for user in entry.newest)
            ranked = sorted(((float(count), item) for item, count in wanted.items() if count), reverse=True)
            assert await likes.top("share", 0, len(ITEMS)) == [(item, count) for count, item in ranked]
            for board in BOARDS:
                found = await likes.leaderboards.top(board, 0, 1_000)
                assert found == sorted(found, key=lambda each: (each[1], each[0]), reverse=True)
                scores = dict(found)
                for (of, member), may in self.scores.items():
                    if of == board:
                        score = scores.pop(member, 0.0)
                        assert score in may, f"{board!r} {member!r}: {score} is none of {may}"
                        self.scores[of, member] = {score}
                assert not scores, "members that nobody added"
