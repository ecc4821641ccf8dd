"""A typed client of likes nodes, over Redis's protocol: for the commands, and for the routes over HTTP.

Owns which command answers which question. Knows neither words nor routes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import TimeoutError as Late

from control.likes.reach import NEWEST, Away, Denied, Full, LikesError, Reach

WAIT_S: Final = 5.0
RANKING: Final = b"rank"


@dataclass(frozen=True, slots=True)
class Ranked:
    """An item's place in one ranking: 0 is the top."""

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


class Likes:
    """A client of one node, with a pool of connections; `async with` closes it. Raises `LikesError`."""

    def __init__(self, reach: Reach, *, connections: int = 16) -> None:
        tls: dict[str, Any] = {}
        if reach.ca_file:  # the node shows exactly this one, whatever name it has
            tls = {"ssl": True, "ssl_ca_certs": reach.ca_file, "ssl_check_hostname": False}
        self._redis = Redis(
            host=reach.host,
            port=reach.port,
            username=reach.user,
            password=reach.password,
            max_connections=connections,
            socket_timeout=WAIT_S,
            socket_connect_timeout=WAIT_S,
            retry=Retry(NoBackoff(), 0),  # a change that was not answered may have been made
            **tls,
        )

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
        await self._redis.aclose()

    async def put(self, item: bytes, user: int, likes: bool) -> bool:
        """Like, or take it back; whether the user liked the item before. It is durable once this returns."""
        return bool(await self._ask("SETBIT", item, user, int(likes)))

    async def put_all(self, changes: Sequence[tuple[bytes, int, bool]]) -> list[bool | LikesError]:
        """Many at once, in this order; each with its answer."""
        return [
            said if isinstance(said, LikesError) else bool(said)
            for said in await self._ask_all([("SETBIT", item, user, int(likes)) for item, user, likes in changes])
        ]

    async def likes(self, item: bytes, user: int) -> bool:
        """Whether the user likes the item."""
        return bool(await self._ask("GETBIT", item, user))

    async def counts(self, items: Sequence[bytes]) -> list[int]:
        """How many like each item."""
        return [int(_raised(said)) for said in await self._ask_all([("BITCOUNT", item) for item in items])]

    async def show(self, item: bytes, newest: int = 10) -> Shown:
        """Count, newest likers, places in the rankings, worth of the windows."""
        count, likers, fields, trends = map(
            _raised,
            await self._ask_all(
                [("BITCOUNT", item), ("LIKE.NEWEST", item, newest), ("LIKE.FIELDSOF", item), ("LIKE.TREND", item)]
            ),
        )
        rankings = [RANKING, *(RANKING + b":" + field for field in fields)]
        asked = [(word, key, item) for key in rankings for word in ("ZREVRANK", "ZSCORE")]
        places = list(map(_raised, await self._ask_all([*asked, *(("ZCARD", key) for key in rankings)])))
        ranks = [
            Ranked(_text(key[len(RANKING) + 1 :]), int(place), int(of), float(score))
            for key, place, score, of in zip(
                rankings, places[0 : len(asked) : 2], places[1 : len(asked) : 2], places[len(asked) :], strict=True
            )
            if place is not None
        ]
        pairs = trends.items() if isinstance(trends, dict) else zip(trends[::2], trends[1::2], strict=True)
        return Shown(
            int(count), [int(user) for user in likers], ranks, {_text(name): float(said) for name, said in pairs}
        )

    async def likers(self, item: bytes, start: int, limit: int) -> list[int]:
        """Users who like the item, in an order that stays."""
        return [int(user) for user in await self._ask("LIKE.LIKERS", item, start, limit)]

    async def newest(self, item: bytes, limit: int) -> list[int]:
        """The newest of them, newest first."""
        return [int(user) for user in await self._ask("LIKE.NEWEST", item, min(limit, NEWEST))]

    async def both(self, items: Sequence[bytes]) -> list[int]:
        """Users who like all of these, at most `PAGE`."""
        return [int(user) for user in await self._ask("LIKE.BOTH", *items)]

    async def items(self, user: int, start: int, limit: int) -> list[bytes]:
        """What a user likes, newest first."""
        return list(await self._ask("LIKE.ITEMS", user, start, limit))

    async def top(self, field: str, start: int, limit: int, window: str = "") -> list[tuple[bytes, float]]:
        """Items of a ranking with their scores, best first. An empty field: of all items."""
        key = RANKING + (b":" + _bytes(field) if field else b"") + (b"@" + window.encode() if window else b"")
        said = await self._ask("ZREVRANGE", key, start, start + limit - 1, "WITHSCORES")
        pairs = said if said and isinstance(said[0], (list, tuple)) else zip(said[::2], said[1::2], strict=True)
        return [(bytes(item), float(score)) for item, score in pairs]

    async def put_fields(self, item: bytes, fields: Sequence[str]) -> None:
        """Rank the item in these fields too, beside the one that its kind names."""
        await self._ask("LIKE.FIELDS", item, *map(_bytes, fields))

    async def _ask(self, *words: Any) -> Any:
        (said,) = await self._ask_all([words])
        return _raised(said)

    async def _ask_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                said: list[Any] = await pipe.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            raise _translated(error) from None
        return [_translated(each) if isinstance(each, Exception) else each for each in said]


def _raised(said: Any) -> Any:
    if isinstance(said, LikesError):
        raise said
    return said


def _translated(error: Exception) -> LikesError:
    text = str(error)
    if isinstance(error, AuthenticationError) or text.startswith(("NOAUTH", "WRONGPASS")):
        return Denied(text)
    if isinstance(error, (Unreachable, Late, OSError)):
        return Away(text)
    if isinstance(error, ResponseError) and text.startswith(("MISCONF", "CLUSTERDOWN")):
        return Full(text)
    return LikesError(text)


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode(errors="surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
