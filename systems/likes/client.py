"""A typed client of likes nodes, over Redis's protocol: for the commands, and for the routes over HTTP.

Owns the Redis commands of each call, and how the answers of several nodes are merged. Knows neither subcommands nor
HTTP.
"""

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self

from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.likes.erasure import Erasures
from muster_server.systems.likes.leaderboards import Leaderboards, scored
from muster_server.systems.likes.reach import FEED, FEED_NEWEST, NEWEST, PAGE, Reach
from muster_server.systems.likes.routes import Routes, raised

RANKING: Final = b"rank"


@dataclass(frozen=True, slots=True)
class Ranked:
    """An item's rank in one ranking: 0 is the top."""

    field: str
    place: int
    of: int
    score: float


@dataclass(frozen=True, slots=True)
class Shown:
    """An item: its count, newest likers, ranks and trends."""

    count: int
    newest: list[int]
    ranks: list[Ranked]
    trends: dict[str, float]


@dataclass(frozen=True, slots=True)
class Liked:
    """An item that a user likes. `at_s`: the second of the like since 1970; None: a version that kept no times made it,
    or the like was rebuilt from the database's row."""

    item: bytes
    at_s: int | None


@dataclass(frozen=True, slots=True)
class FeedEntry:
    """What a viewer sees beside one item of a feed. `likes`: whether the viewer likes it; None without a viewer."""

    count: int
    likes: bool | None
    newest: list[int]


class Likes:
    """A client of all nodes, with a pool of connections to each; `async with` closes it. Raises `StoreError`."""

    def __init__(self, reach: Reach, *, connections: int = 16) -> None:
        self._routes = Routes(reach, connections)
        self.leaderboards = Leaderboards(self._routes)
        self.erasures = Erasures(self._routes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._routes.close()

    async def put(self, item: bytes, user: int, likes: bool) -> bool:
        """Add or remove a like; returns whether the user liked the item before. The change is durable once this
        returns."""
        (said,) = await self.put_all([(item, user, likes)])
        return bool(raised(said))

    async def put_all(self, changes: Sequence[tuple[bytes, int, bool]]) -> list[bool | StoreError]:
        """Make many changes, in this order; returns an answer for each."""
        return [
            said if isinstance(said, StoreError) else bool(said)
            for said in await self._routes.ask(
                [("SETBIT", item, user, int(likes)) for item, user, likes in changes], changes=True
            )
        ]

    async def likes(self, item: bytes, user: int) -> bool:
        """Whether the user likes the item."""
        return bool(await self._ask("GETBIT", item, user))

    async def counts(self, items: Sequence[bytes]) -> list[int]:
        """The number of likes of each item."""
        return [int(raised(said)) for said in await self._ask_all([("BITCOUNT", item) for item in items])]

    async def feed(self, items: Sequence[bytes], viewer: int | None = None, newest: int = 3) -> list[FeedEntry]:
        """A page of a feed in one call: the entry of each of up to 1,000 items, with at most 10 newest likers.

        Each partition has one command for its items. The page is whole, or a `StoreError` is raised.
        """
        if len(items) > FEED or not 0 <= newest <= FEED_NEWEST:
            raise StoreError(
                f"a page of a feed has up to {FEED:,} items with 0 to {FEED_NEWEST} newest likers each, not "
                f"{len(items):,} with {newest}; ask for several pages, or for newest likers item by item"
            )
        if not items:
            return []
        parts = await self._routes.parts(items)
        head = ("LIKE.FEED", "-" if viewer is None else viewer, newest)
        asked = [(*head, *(items[place] for place in part)) for part in parts]
        said = await self._routes.ask(asked, keys=[items[part[0]] for part in parts])
        entries: list[Any] = [None] * len(items)
        for part, answers in zip(parts, map(raised, said), strict=True):
            for place, (count, likes, users) in zip(part, answers, strict=True):
                entries[place] = FeedEntry(count, None if likes is None else bool(likes), [int(user) for user in users])
        return entries

    async def show(self, item: bytes, newest: int = 10) -> Shown:
        """Count, newest likers, ranks, and the values of the windows."""
        count, likers, fields, trends = map(
            raised,
            await self._ask_all(
                [("BITCOUNT", item), ("LIKE.NEWEST", item, newest), ("LIKE.FIELDSOF", item), ("LIKE.TREND", item)]
            ),
        )
        rankings = [RANKING, *(RANKING + b":" + field for field in fields)]
        ranks = await (self._ranks(item, rankings) if await self._routes.alone() else self._places(item, rankings))
        pairs = trends.items() if isinstance(trends, dict) else zip(trends[::2], trends[1::2], strict=True)
        return Shown(
            int(count), [int(user) for user in likers], ranks, {_text(name): float(said) for name, said in pairs}
        )

    async def _ranks(self, item: bytes, rankings: Sequence[bytes]) -> list[Ranked]:
        """An item's ranks if one node has all items."""
        asked = [(word, key, item) for key in rankings for word in ("ZREVRANK", "ZSCORE")]
        said = list(map(raised, await self._ask_all([*asked, *(("ZCARD", key) for key in rankings)])))
        return [
            Ranked(_field(key), int(place), int(of), float(score))
            for key, place, score, of in zip(
                rankings, said[0 : len(asked) : 2], said[1 : len(asked) : 2], said[len(asked) :], strict=True
            )
            if place is not None
        ]

    async def _places(self, item: bytes, rankings: Sequence[bytes]) -> list[Ranked]:
        """The same over all nodes: each counts its own items above this one."""
        (count,) = await self.counts([item])
        if not count:
            return []
        said = await asyncio.gather(*(self._routes.everywhere(("LIKE.ABOVE", key, count, item)) for key in rankings))
        ranks: list[Ranked] = []
        for key, answers in zip(rankings, said, strict=True):
            pairs = [(int(above), int(of)) for above, of in map(raised, answers)]
            above, of = (sum(each) for each in zip(*pairs, strict=True))
            ranks.append(Ranked(_field(key), above, of, float(count)))
        return ranks

    async def likers(self, item: bytes, start: int, limit: int) -> list[int]:
        """Users who like the item, in a stable order."""
        return [int(user) for user in await self._ask("LIKE.LIKERS", item, start, limit)]

    async def newest(self, item: bytes, limit: int) -> list[int]:
        """The newest likers, newest first."""
        return [int(user) for user in await self._ask("LIKE.NEWEST", item, min(limit, NEWEST))]

    async def both(self, items: Sequence[bytes]) -> list[int]:
        """Users who like all of these, at most `PAGE`.

        Over several nodes: the likers of the item with the fewest likes, each checked at the other nodes.
        """
        if await self._routes.alone():
            return [int(user) for user in await self._ask("LIKE.BOTH", *items)]
        counts = await self.counts(items)
        fewest, *others = sorted(items, key=lambda item: counts[items.index(item)])
        found: list[int] = []
        start = 0
        while len(found) < PAGE and (page := await self.likers(fewest, start, PAGE)):
            start += len(page)
            asked = [("GETBIT", other, user) for user in page for other in others]
            said = list(map(raised, await self._ask_all(asked)))
            found += [user for at, user in enumerate(page) if all(said[at * len(others) : (at + 1) * len(others)])]
        return found[:PAGE]

    async def items(self, user: int, start: int, limit: int) -> list[Liked]:
        """The items that a user likes with the times of the likes, newest first."""
        if await self._routes.alone():
            return _liked(await self._ask("LIKE.ITEMS", user, start, limit, "WITHTIMES"))
        said = await self._routes.everywhere(("LIKE.ITEMS", user, 0, start + limit, "WITHTIMES"))
        pages = [_liked(raised(each)) for each in said]
        merged = heapq.merge(*pages, key=lambda each: each.at_s or 0, reverse=True)
        return list(islice(merged, start, start + limit))

    async def top(self, field: str, start: int, limit: int, window: str = "") -> list[tuple[bytes, float]]:
        """Items of a ranking with their scores, best first. Empty field: all items."""
        key = RANKING + (b":" + _bytes(field) if field else b"") + (b"@" + window.encode() if window else b"")
        last = start + limit - 1
        if await self._routes.alone():
            return scored(await self._ask("ZREVRANGE", key, start, last, "WITHSCORES"))
        said = [scored(raised(each)) for each in await self._routes.everywhere(("LIKE.TOP", key, 0, last))]
        merged = sorted(((score, item) for each in said for item, score in each), reverse=True)
        return [(item, score) for score, item in merged[start : start + limit]]

    async def put_fields(self, item: bytes, fields: Sequence[str]) -> None:
        """Rank the item in these fields too, besides the field of its kind."""
        (said,) = await self._routes.ask([("LIKE.FIELDS", item, *map(_bytes, fields))], changes=True)
        raised(said)

    async def _ask(self, *words: Any) -> Any:
        (said,) = await self._ask_all([words])
        return raised(said)

    async def _ask_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        return await self._routes.ask(commands)


def _liked(said: Any) -> list[Liked]:
    return [Liked(bytes(item), None if at_s is None else int(at_s)) for item, at_s in said]


def _field(ranking: bytes) -> str:
    return _text(ranking[len(RANKING) + 1 :])


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode(errors="surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
