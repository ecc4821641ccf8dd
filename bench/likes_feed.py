"""Pages of a feed for the bench of likes: the likes below them, the question, and its one right answer.

Muster is asked by one command. Redis has a sorted set of likers for each item, by the time of their likes, as its recipes
have, and is asked by a pipeline of three commands for each item.
"""

from collections.abc import Iterator
from typing import Final

from bench.likes_client import PING, PONG, Pipeline, command

ITEMS: Final = 1_000
NEWEST: Final = 3
STANDING: Final = 50
"""Most likers of an item; each has one at least."""
VIEWER: Final = 7
USERS: Final = range(1_000_000, 1_000_000 + STANDING)


def _item(number: int) -> bytes:
    return b"post:%d" % number


def _likers(number: int) -> list[int]:
    """In the order of their likes; the viewer likes every other item, before all others."""
    others = list(USERS[: 1 + number % STANDING])
    return [VIEWER, *others] if number % 2 else others


def likes(muster: bool) -> Iterator[Pipeline]:
    """All likes, as Muster or Redis is told them."""
    for number in range(ITEMS):
        item, likers = _item(number), _likers(number)
        sent = b"".join(
            command(b"SETBIT", item, b"%d" % user, b"1") if muster else command(b"ZADD", item, b"%d" % at, b"%d" % user)
            for at, user in enumerate(likers)
        )
        yield Pipeline(sent + PING, len(likers), 0)


def question(muster: bool) -> bytes:
    """The page."""
    if muster:
        return command(b"LIKE.FEED", b"%d" % VIEWER, b"%d" % NEWEST, *map(_item, range(ITEMS)))
    return b"".join(
        command(b"ZCARD", item)
        + command(b"ZSCORE", item, b"%d" % VIEWER)
        + command(b"ZREVRANGE", item, b"0", b"%d" % (NEWEST - 1))
        for item in map(_item, range(ITEMS))
    )


def answer(muster: bool) -> bytes:
    """The answer to `question` and `PING`."""
    return (b"*%d\r\n" % ITEMS if muster else b"") + b"".join(_entry(number, muster) for number in range(ITEMS)) + PONG


def _entry(number: int, muster: bool) -> bytes:
    likers = _likers(number)
    newest = [b"%d" % user for user in likers[::-1][:NEWEST]]
    shown = b"*%d\r\n%b" % (len(newest), b"".join(b"$%d\r\n%b\r\n" % (len(user), user) for user in newest))
    if muster:
        return b"*3\r\n:%d\r\n:%d\r\n%b" % (len(likers), VIEWER in likers, shown)
    score = b"$1\r\n0\r\n" if VIEWER in likers else b"$-1\r\n"
    return b":%d\r\n%b%b" % (len(likers), score, shown)
