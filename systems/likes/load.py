"""The load of likes: users like items and take likes back by an open schedule; at the end every item is counted again."""

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from muster_server.control.load.generator import Share, Slice
from muster_server.control.load.openloop import OpenLoop
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.likes.reach import Reach

if TYPE_CHECKING:
    from muster_server.systems.likes.client import Likes

BACK_SHARE: Final = 0.1
"""Share of the changes that take a like back."""
COUNTED_AT_ONCE: Final = 500
CONNECTIONS: Final = 64


class LikesLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Changes over a number of items, each by a user who has not changed that item before, or takes that back."""

    doors: Sequence[tuple[str, int]]
    user: str | None
    password: str | None
    ca_file: str
    items: int
    rate: float
    for_s: float
    ramp_s: float

    def generator(self, share: Share) -> "LikesGenerator":
        """The generator of one host."""
        return LikesGenerator(self, share)


class LikesGenerator:
    """One host's changes. Its items are its own, so their counts can be checked."""

    sent = "sent"
    done = "done"
    wrong = ("failed", "missing", "surplus")

    def __init__(self, load: LikesLoad, share: Share) -> None:
        self._load, self._share = load, share
        self._client: Likes | None = None
        self._items = [
            f"load-{share.run}-{share.index}:{number}".encode() for number in range(max(1, share.part(load.items)))
        ]
        self._sure = [0] * len(self._items)
        """Likes of each item whose change was answered."""
        self._unsure = [0] * len(self._items)
        """Changes of each item without an answer: they may be there."""
        self._liked: list[list[int]] = [[] for _ in self._items]
        self._random = random.Random(share.index)
        self._loop = OpenLoop(self._change, share.rate(load.rate), load.for_s, load.ramp_s)
        self._lanes = asyncio.Semaphore(CONNECTIONS)
        self._checked: dict[str, int] | None = None

    async def open(self) -> str:
        """Connect, and count one item to see that nodes answer."""
        from muster_server.systems.likes.cli.commands import refused_in_one_line
        from muster_server.systems.likes.client import Likes

        load = self._load
        self._client = Likes(Reach(load.doors, load.user, load.password, load.ca_file), connections=CONNECTIONS)
        with refused_in_one_line():
            await self._client.counts(self._items[:1])
        return f"{len(self._items):,} items, {self._share.rate(load.rate):,g} changes/s"

    async def advance(self, seconds: float) -> Slice:
        """Send changes; after the last one, count all items."""
        made = await self._loop.advance(seconds)
        if made.complete and self._checked is None:
            self._checked = await self._check()
        return msgspec.structs.replace(made, counts={**made.counts, **(self._checked or {})})

    async def close(self) -> None:
        """Give up what has no answer."""
        await self._loop.close()
        if self._client is not None:
            await self._client.close()

    async def _change(self, number: int) -> str | None:
        assert self._client is not None
        at = number % len(self._items)
        liked = self._liked[at]
        back = bool(liked) and self._random.random() < BACK_SHARE
        user = liked.pop() if back else number + 1
        try:
            async with self._lanes:
                await self._client.put(self._items[at], user, not back)
        except StoreError as error:
            self._unsure[at] += 1
            return type(error).__name__.lower()
        self._sure[at] += -1 if back else 1
        if not back:
            liked.append(user)
        return None

    async def _check(self) -> dict[str, int]:
        """Likes that were answered and are not there, and likes that nobody sent."""
        assert self._client is not None
        missing = surplus = 0
        for at in range(0, len(self._items), COUNTED_AT_ONCE):
            try:
                counts = await self._client.counts(self._items[at : at + COUNTED_AT_ONCE])
            except StoreError:
                return {"not_counted": len(self._items) - at, "missing": missing, "surplus": surplus}
            for item, count in enumerate(counts, at):
                missing += max(0, self._sure[item] - self._unsure[item] - count)
                surplus += max(0, count - self._sure[item] - self._unsure[item])
        return {"counted": len(self._items), "missing": missing, "surplus": surplus}


SETTINGS: Final = LikesLoad
