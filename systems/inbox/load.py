"""The load of inboxes: entries by an open schedule; at the end every inbox is read again.

Each host has users and a kind of its own, so what it reads is what it wrote. One entry in ten is sent a second time with
the same id, as after a lost answer. An entry that was answered must be there once, and the unread count must be what a
recount of the entries says, before and after a part of them is marked.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from muster_server.control.errors import UNAVAILABLE, UserError
from muster_server.control.load.generator import Share, Slice
from muster_server.control.load.openloop import OpenLoop
from muster_server.plane.calls import CallError
from muster_server.systems.inbox.asking import Inboxes
from muster_server.systems.inbox.shapes import (
    COUNT_MAX,
    PAGE_MAX,
    Count,
    Counts,
    Cursor,
    Done,
    Entry,
    Mark,
    New,
    Noted,
    Notify,
    Page,
    Read,
)

REPEAT_EVERY: Final = 10
"""Each entry of this number is sent twice."""
READ_AT_ONCE: Final = 16
CHECK_TRIES: Final = 5
AGAIN_S: Final = 0.5
KINDS: Final = "load-{}-{}"


class InboxLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Entries for users in turn."""

    nodes: Sequence[tuple[str, int]]
    key: bytes
    """Proves the cluster's secret to its nodes."""
    first: int
    users: int
    rate: float
    size: int
    for_s: float
    ramp_s: float

    def generator(self, share: Share) -> "InboxGenerator":
        """The generator of one host."""
        return InboxGenerator(self, share)


class InboxGenerator:
    """The entries that one host sends."""

    sent = "sent"
    done = "done"
    wrong = ("failed", "lost", "twice", "miscounted")

    def __init__(self, load: InboxLoad, share: Share) -> None:
        self._load, self._share = load, share
        self._kind = KINDS.format(share.run, share.index)
        self._inboxes = Inboxes(lambda: load.nodes, load.key)
        first = load.first + load.users * share.index // share.of
        self._users = range(first, first + max(1, share.part(load.users)))
        self._sure: dict[int, set[int]] = {user: set() for user in self._users}
        """The numbers of the entries that were answered."""
        self._repeated = 0
        self._loop = OpenLoop(self._notify, share.rate(load.rate), load.for_s, load.ramp_s)
        self._checked: Counter[str] | None = None

    async def open(self) -> str:
        """Count one inbox, to see that nodes answer."""
        try:
            await self._inboxes.ask(Count(self._users[0]), Counts)
        except CallError as error:
            raise UserError(str(error), UNAVAILABLE) from None
        return f"{len(self._users):,} users, {self._share.rate(self._load.rate):,g} entries/s, kind {self._kind}"

    async def advance(self, seconds: float) -> Slice:
        """Put entries in; after the last one, read all inboxes."""
        made = await self._loop.advance(seconds)
        if made.complete and self._checked is None:
            self._checked = await self._check()
        counts = {**made.counts, "repeated": self._repeated, **(self._checked or {})}
        return msgspec.structs.replace(made, counts=counts)

    async def close(self) -> None:
        """Give up what has no answer."""
        await self._loop.close()
        await self._inboxes.close()

    async def _notify(self, number: int) -> str | None:
        user = self._users[number % len(self._users)]
        body = msgspec.json.encode({"number": number, "text": "." * self._load.size})
        asked = Notify([user], New(self._kind, body, id=f"{self._kind}:{number}"))
        try:
            for _ in range(2 if number % REPEAT_EVERY == 0 else 1):
                (said,) = await self._inboxes.ask(asked, tuple[Noted])
                if said.outcome not in {"new", "same"}:
                    return said.outcome
        except CallError as error:
            return error.code
        self._sure[user].add(number)
        self._repeated += number % REPEAT_EVERY == 0
        return None

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _check(self) -> Counter[str]:
        """The entries that are missing or there twice, and the inboxes whose count is not their recount."""
        found: Counter[str] = Counter(read_again=0, lost=0, twice=0, miscounted=0)
        places = asyncio.Semaphore(READ_AT_ONCE)

        async def examine(user: int) -> None:
            async with places:
                found.update(await self._examined(user))

        await asyncio.gather(*map(examine, self._users))
        return found

    async def _examined(self, user: int) -> dict[str, int]:
        for _ in range(CHECK_TRIES):
            try:
                return await self._read_again(user)
            except CallError:  # a node that was just killed
                await asyncio.sleep(AGAIN_S)
        return {"failed": 1, "not_read": 1}

    async def _read_again(self, user: int) -> dict[str, int]:
        entries = await self._entries(user)
        there = Counter(msgspec.json.decode(each.data)["number"] for each in entries)
        miscounted = await self._is_miscounted(user, entries)
        if entries:
            middle = int(entries[len(entries) // 2].id)
            await self._inboxes.ask(Mark(user, "read", Cursor(middle, 0), self._kind), Done)
            miscounted = await self._is_miscounted(user, await self._entries(user)) or miscounted
        return {
            "read_again": len(entries),
            "lost": len(self._sure[user] - there.keys()),
            "twice": sum(count - 1 for count in there.values()),
            "miscounted": int(miscounted),
        }

    async def _is_miscounted(self, user: int, entries: Sequence[Entry]) -> bool:
        counts = await self._inboxes.ask(Count(user), Counts)
        return counts.unread.get(self._kind, 0) != min(COUNT_MAX, sum(not each.read for each in entries))

    async def _entries(self, user: int) -> list[Entry]:
        """All entries of the run, in order."""
        found: list[Entry] = []
        after = Cursor()
        while True:
            page = await self._inboxes.ask(Read(user, after=after, kind=self._kind, limit=PAGE_MAX), Page)
            found += page.entries
            after = page.end
            if not page.more:
                return found


SETTINGS: Final = InboxLoad
