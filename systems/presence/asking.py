"""The online readers as others ask them: commands, the HTTP face, other roles.

Owns who is asked: a reader that answered goes first; one that is away, or that refuses a shard, is passed over for one of
another site. Must not know what is done with an answer.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from muster_server.plane.calls import CallError, Peer
from muster_server.systems.presence.questions import Found, Ping, Pong, ShardStats, Stats, Told, Watch, Who

ROLE: Final = "online-reader"
USER_MAX: Final = (1 << 64) - 1
ANSWER_S: Final = 2.0
ELSEWHERE: Final = frozenset({"away", "late", "stale", "store", "busy"})
"""Codes with which another reader may answer."""
AWAY: Final = "no online reader runs"
A = TypeVar("A")
Address = tuple[str, int]
Look = Callable[[], Sequence[Address]]
"""Where readers are now."""


class Readers:
    """Asks until `close`. `key`: `plane.calls.key_of` of the cluster's secret. All calls raise `CallError`."""

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
        """Look users up, at one site or at any. `lost`: also devices that went with their gateway of late."""
        return await self._ask(Who(list(users), lost), Found, site)

    async def stats(self) -> list[ShardStats]:
        """How all shards of all sites stand, as far as their readers answer. Raises `CallError` where none does."""
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
        self, users: Sequence[int], site: int | None = None, *, state: bool = False, after: str = ""
    ) -> AsyncGenerator[Told]:
        """Changes of these users as they come; an empty one, first and each second, says that the watch is open. `state`,
        `after`: as `Watch`."""
        why = CallError("away", AWAY)
        question = Watch(list(users), state, after)
        for address in await self._order(site):
            opened = False
            stream = self._peer(address).stream(question, Told)
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
        """The readers to ask, one after the other. Raises `CallError` if none is of that site."""
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
