"""Calls to the online readers from commands, the HTTP face and other roles.

Owns the choice of the reader: the one that answered last goes first; one that does not answer, or that refuses a shard,
is skipped for one of another site. Must not know what callers do with an answer.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from muster_server.plane.calls import CallError, Peer
from muster_server.systems.presence.questions import (
    FollowStatuses,
    Found,
    Ping,
    Pong,
    SetStatus,
    ShardStats,
    Stats,
    StatusesFound,
    StatusesOf,
    StatusRecords,
    StatusSet,
    Update,
    Watch,
    Who,
)
from muster_server.systems.presence.status import NewStatus, Status

ROLE: Final = "online-reader"
USER_MAX: Final = (1 << 64) - 1
ANSWER_S: Final = 2.0
ELSEWHERE: Final = frozenset({"away", "late", "stale", "store", "busy"})
"""Error codes after which another reader may answer."""
AWAY: Final = "no online reader runs"
A = TypeVar("A")
Address = tuple[str, int]
Look = Callable[[], Sequence[Address]]
"""Returns the current addresses of the readers."""


def addresses(snapshot: Any) -> list[Address]:
    """The readers of a map of all nodes (`Context.snapshot`); none before the first map."""
    nodes = [] if snapshot is None else snapshot.of(ROLE)
    return [each.client for each in nodes if each.client is not None and each.state == "running"]


class Readers:
    """Asks readers until `close`. `key`: `plane.calls.key_of` of the cluster's secret. All calls raise `CallError`."""

    def __init__(self, look: Look, key: bytes) -> None:
        self._look, self._key = look, key
        self._peers: dict[Address, Peer] = {}
        self._sites: dict[Address, int] = {}
        self._good: Address | None = None
        """The reader that answered last."""

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))

    async def who(self, users: Sequence[int], site: int | None = None, *, lost: bool = False) -> Found:
        """Look users up, at one site or at any. `lost`: also devices whose gateway was lost recently."""
        return await self._ask(Who(list(users), lost), Found, site)

    async def statuses(self, users: Sequence[int], site: int | None = None) -> dict[int, Status]:
        """The statuses of those users that have one, as they are: an invisible user is named so."""
        try:
            return (await self._ask(StatusesOf(list(users)), StatusesFound, site)).statuses
        except CallError as error:
            if error.code != "question":
                raise
            return {}  # readers of release 0.2 know no statuses

    async def set_status(self, user: int, status: NewStatus) -> Status | None:
        """Set the status of a user; returns it as it stands now. Every site has it within moments."""
        return (await self._ask(SetStatus(user, status), StatusSet, None)).status

    async def follow_statuses(self, site: int) -> AsyncGenerator[StatusRecords]:
        """All statuses of a site, and then each that changes; an empty answer once per second."""
        for address in await self._order(site):
            async with contextlib.aclosing(self._peer(address).stream(FollowStatuses(), StatusRecords)) as stream:
                async for told in stream:
                    yield told
            return

    async def stats(self) -> list[ShardStats]:
        """The state of all shards of all sites, as far as their readers answer. Raises `CallError` if none does."""
        asked = [self._peer(address).ask(Stats(), list[ShardStats], 2 * ANSWER_S) for address in self._look()]
        found: dict[tuple[int, int, int], ShardStats] = {}
        why = CallError("away", AWAY)
        for said in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(said, CallError):
                why = said
            elif isinstance(said, BaseException):
                raise said
            else:
                found |= {(each.site, each.shards, each.shard): each for each in said}
        if not found:
            raise why
        return [found[place] for place in sorted(found)]

    async def watch(
        self,
        users: Sequence[int],
        site: int | None = None,
        *,
        state: bool = False,
        after: str = "",
        statuses: bool = False,
        own: int | None = None,
    ) -> AsyncGenerator[Update]:
        """Changes of these users as they arrive; an empty one, first and once per second, shows that the watch is open.
        `state`, `after`, `statuses`, `own`: as in `Watch`."""
        why = CallError("away", AWAY)
        question = Watch(list(users), state, after, statuses, -1 if own is None else own)
        for address in await self._order(site):
            opened = False
            stream = self._peer(address).stream(question, Update)
            try:
                async for told in stream:
                    opened = True
                    yield told
                return
            except CallError as error:
                if opened or error.code not in ELSEWHERE:
                    raise
                why = error
            finally:
                await stream.aclose()
        raise why

    async def _ask(self, question: msgspec.Struct, answer: type[A], site: int | None) -> A:
        why = CallError("away", AWAY)
        for address in await self._order(site):
            try:
                said = await self._peer(address).ask(question, answer, ANSWER_S)
            except CallError as error:
                if error.code not in ELSEWHERE:
                    raise
                why = error if why.code in {"away", "late"} else why
                continue
            self._good = address
            return said
        raise why

    async def _order(self, site: int | None) -> list[Address]:
        """The readers to ask, one after the other. Raises `CallError` if no reader belongs to that site."""
        now = list(self._look())
        for gone in self._peers.keys() - set(now):
            await self._peers.pop(gone).close()
            self._sites.pop(gone, None)
        if site is None:
            return sorted(now, key=lambda address: address != self._good)
        mine = [address for address in now if await self._site(address) == site]
        if not mine:
            raise CallError("away", f"no online reader of site {site} answers")
        return mine

    async def _site(self, address: Address) -> int:
        """The site of a reader; 0: it does not answer."""
        if address not in self._sites:
            try:
                self._sites[address] = (await self._peer(address).ask(Ping(), Pong, ANSWER_S)).site
            except CallError:
                return 0
        return self._sites[address]

    def _peer(self, address: Address) -> Peer:
        return self._peers.setdefault(address, Peer(address, self._key))
