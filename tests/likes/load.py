"""Clients that toggle likes while a node is killed, and the check that nothing answered was lost or counted twice."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.redis_server import client_of

CLIENTS: Final = 4
BOARD: Final = "game:7"
ITEMS: Final = tuple(f"share:{number}" for number in range(20))


def client(host: str, port: int) -> Redis:
    """A client that tries nothing twice."""
    return client_of(port, host=host)


class Load:
    """Toggles from several clients; keeps what was acknowledged, and what may have been done."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.told: dict[tuple[str, int], int] = {}
        self.open: set[tuple[str, int]] = set()
        self.scores: dict[str, float] = {}
        self.raised: set[str] = set()
        """Members whose score was perhaps raised by one more."""
        self.acknowledged = 0

    async def until_killed(self, host: str, port: int, kill: Callable[[], object]) -> None:
        """Run until a client has had enough answers, then kill the node under the others."""
        enough = asyncio.Event()
        clients = [asyncio.create_task(self._run(host, port, mine, enough)) for mine in range(CLIENTS)]
        await enough.wait()
        kill()
        await asyncio.gather(*clients)

    async def _run(self, host: str, port: int, mine: int, enough: asyncio.Event) -> None:
        """One client, with likes that no other client touches."""
        left = self.random.randrange(20, 100)
        try:
            async with client(host, port) as redis:
                while True:
                    likes = [
                        ((self.random.choice(ITEMS), mine * 1_000 + self.random.randrange(25)), bit)
                        for bit in self.random.choices((0, 1), k=8)
                    ]
                    self.open |= {like for like, _ in likes}
                    member = f"{mine}-{self.random.randrange(9)}"
                    self.raised.add(member)
                    async with redis.pipeline(transaction=False) as pipe:
                        for (item, user), bit in likes:
                            pipe.setbit(item, user, bit)
                        pipe.zincrby(BOARD, 1, member)
                        *answers, score = await pipe.execute()
                    assert score == self.scores.get(member, 0) + 1, "a raise was lost or made twice"
                    self.scores[member] = score
                    self.raised.discard(member)
                    for (like, bit), was in zip(likes, answers, strict=True):
                        assert self.told.get(like, was) == was, "an answer contradicts an earlier one"
                        self.told[like] = bit
                    self.open -= {like for like, _ in likes}
                    self.acknowledged += len(likes)
                    left -= 1
                    if left == 0:
                        enough.set()
        except (RedisError, OSError):
            enough.set()

    async def check(self, host: str, port: int) -> None:
        """What was acknowledged is there, once, and rankings have the same counts."""
        async with client(host, port) as redis:
            for like in self.open:  # it may have been done or not: the node knows
                self.told[like] = await redis.getbit(*like)
            self.open.clear()
            async with redis.pipeline(transaction=False) as pipe:
                for item, user in self.told:
                    pipe.getbit(item, user)
                for item in ITEMS:
                    pipe.bitcount(item)
                for item in ITEMS:
                    pipe.zscore("rank", item)
                answers = await pipe.execute()
            await self._check_scores(redis)
        there, counts = answers[: len(self.told)], answers[len(self.told) :]
        lost = [like for (like, bit), found in zip(self.told.items(), there, strict=True) if found != bit]
        assert not lost
        wanted = [sum(bit for (of, _), bit in self.told.items() if of == item) for item in ITEMS]
        assert counts[: len(ITEMS)] == wanted
        assert [int(score or 0) for score in counts[len(ITEMS) :]] == wanted

    async def _check_scores(self, redis: Redis) -> None:
        """Each acknowledged raise is there, once, and the order is that of the scores."""
        for member in self.raised:
            score = await redis.zscore(BOARD, member) or 0.0
            assert score - self.scores.get(member, 0.0) in (0.0, 1.0)
            self.scores[member] = score
        self.raised.clear()
        self.scores = {member: score for member, score in self.scores.items() if score}
        wanted = sorted(((score, member.encode()) for member, score in self.scores.items()), reverse=True)
        found: list[Any] = await redis.zrevrange(BOARD, 0, -1, withscores=True)
        assert [(score, bytes(member)) for member, score in found] == wanted
