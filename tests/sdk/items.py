"""The items of a room, one kind at a time."""

import asyncio
from typing import TypeVar

import muster
from tests.waiting import PATIENT_S

_Item = TypeVar("_Item", muster.Message, muster.Command, muster.Gap)


async def next_of(room: muster.Room, kind: type[_Item]) -> _Item:
    """The next message, after any items before it, such as gaps of a gateway that was ended. Raises `TimeoutError`."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            item = await anext(room)
            if isinstance(item, kind):
                return item
