"""A room that is read by a user who may read it, and not see what was before."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import muster
from muster_server.systems.rooms.http.feeds import Feed


class Room:
    """Nothing comes."""

    class history:
        messages, whole = 0, False

    async def batches(self) -> AsyncIterator[list[Any]]:
        await asyncio.Event().wait()
        yield []

    def leave(self) -> None:
        """It has nothing."""


class Session:
    """Its gateway refuses history, or all."""

    users = 0

    def __init__(self, *refused: int) -> None:
        self.refused, self.asked = refused, list[int]()

    async def reader(self) -> "Session":
        return self

    async def left(self, reader: "Session") -> None:
        """It stays."""

    def failed(self, error: muster.MusterError) -> None:
        """It is not ended."""

    async def join(self, room: str, history: int) -> Room:
        self.asked.append(history)
        if history in self.refused:
            raise muster.Refused(room, "not_allowed")
        return Room()


async def test_without_the_right_to_history_a_room_is_read_from_now_on() -> None:
    session: Any = Session(100)
    feed = Feed("sports:final", session, 100, 1 << 20)
    await asyncio.wait_for(feed.joined, 60)
    assert (session.asked, feed.history) == ([100, 0], False)
    await feed.close()


async def test_without_the_right_to_read_it_is_refused() -> None:
    session: Any = Session(100, 0)
    feed = Feed("sports:final", session, 100, 1 << 20)
    with pytest.raises(muster.Refused):
        await asyncio.wait_for(feed.joined, 60)
    assert session.asked == [100, 0]
    await feed.close()
