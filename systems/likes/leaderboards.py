"""Leaderboards of likes nodes, over Redis's protocol: for the commands, and for the routes over HTTP.

Owns the Redis commands of each call. A leaderboard is on the node of its key's slot, so each call asks one node. Knows
neither subcommands nor HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.likes.reach import MEMBERS, Only
from muster_server.systems.likes.routes import Routes, raised

_CONDITIONS: Final[dict[Only, tuple[str, ...]]] = {
    "": (),
    "new": ("NX",),
    "existing": ("XX",),
    "greater": ("GT",),
    "less": ("LT",),
}


@dataclass(frozen=True, slots=True)
class Standing:
    """A member's score, and its rank among `of` members: 0 is the top."""

    score: float
    rank: int
    of: int


class Leaderboards:
    """All leaderboards. A key is that of an item or of a leaderboard, never both. Raises `StoreError`."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    async def put(self, name: bytes, scores: Sequence[tuple[bytes, float]], only: Only = "") -> int:
        """Set the scores of up to 500 members; returns how many are new or have another score. They are durable once
        this returns, all or none of them."""
        if not scores:
            return 0
        if len(scores) > MEMBERS:
            raise StoreError(f"too many members in a call: {len(scores):,} (limit {MEMBERS}); use several calls")
        pairs = [word for member, score in scores for word in (score, member)]
        return int(await self._change("ZADD", name, *_CONDITIONS[only], "CH", *pairs))

    async def add(self, name: bytes, member: bytes, by: float) -> float:
        """Raise a member's score, or lower it by a negative number; a new member begins at 0. Returns the new score.

        A call without an answer may have been carried out: the same call again raises the score again.
        """
        return float(await self._change("ZINCRBY", name, by, member))

    async def remove(self, name: bytes, members: Sequence[bytes]) -> int:
        """Remove members; returns how many were there."""
        return int(await self._change("ZREM", name, *members)) if members else 0

    async def delete(self, name: bytes) -> bool:
        """Remove all members and the settings; returns whether there was a member."""
        await self.size(name)  # raises for an item, whose likes `DEL` would take
        return bool(await self._change("DEL", name))

    async def put_ties(self, name: bytes, *, by_time: bool) -> None:
        """Set what decides between equal scores: the time at which a member got its score, the first one above, or its
        name, the greater one above. It may be set before the first score."""
        await self._change("LIKE.TIES", name, "TIME" if by_time else "NAME")

    async def by_time(self, name: bytes) -> bool:
        """Return whether the time decides between equal scores."""
        (said,) = await self._ask(("LIKE.TIESOF", name))
        return said in (b"TIME", "TIME")

    async def size(self, name: bytes) -> int:
        """The number of members."""
        (said,) = await self._ask(("ZCARD", name))
        return int(said)

    async def standing(self, name: bytes, member: bytes, window: str = "", *, lowest: bool = False) -> Standing | None:
        """A member's score and rank; None: it is not there. `lowest`: the lowest score has rank 0."""
        key = windowed(name, window)
        word = "ZRANK" if lowest else "ZREVRANK"
        rank, score, of = await self._ask((word, key, member), ("ZSCORE", key, member), ("ZCARD", key), key=name)
        return None if rank is None or score is None else Standing(float(score), int(rank), int(of))

    async def top(
        self, name: bytes, start: int, limit: int, window: str = "", *, lowest: bool = False
    ) -> list[tuple[bytes, float]]:
        """Members with their scores from rank `start` on, at most 10,000, the highest score first. `lowest`: the lowest
        first. By a window, points gained lately count more."""
        key, last = windowed(name, window), start + limit - 1
        if limit < 1:
            return []
        word = "ZRANGE" if lowest else "ZREVRANGE"
        (said,) = await self._ask((word, key, start, last, "WITHSCORES"), key=name)
        return scored(said)

    async def _change(self, *words: Any) -> Any:
        (said,) = await self._routes.ask([words], changes=True)
        return raised(said)

    async def _ask(self, *commands: Sequence[Any], key: bytes | None = None) -> list[Any]:
        keys = None if key is None else [key] * len(commands)
        return [raised(said) for said in await self._routes.ask(commands, keys=keys)]


def windowed(name: bytes, window: str) -> bytes:
    """The key of a leaderboard by a window; empty: by its scores."""
    return name + b"@" + window.encode() if window else name


def scored(said: Any) -> list[tuple[bytes, float]]:
    """Parse an answer with scores, in either version of the protocol."""
    pairs = said if said and isinstance(said[0], (list, tuple)) else zip(said[::2], said[1::2], strict=True)
    return [(bytes(member), float(score)) for member, score in pairs]
