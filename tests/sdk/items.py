"""What a room gives, one kind of it at a time."""

import asyncio
from typing import TypeVar

import muster

_Item = TypeVar("_Item", muster.Message, muster.Command, muster.Gap)


async def next_of(room: muster.Room, kind: type[_Item]) -> _Item:
    """Behind whatever else comes before it, as gaps of what a gateway had when it was ended. Raises `TimeoutError`."""
    async with asyncio.timeout(30):
        while True:
            item = await anext(room)
            if isinstance(item, kind):
                return item
