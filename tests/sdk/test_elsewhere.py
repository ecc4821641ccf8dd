"""A client and its rooms belong to one process, thread and loop: elsewhere each call raises, and touches nothing shared."""

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import pytest

import muster
import muster.testing
from tests.waiting import PATIENT_S

THEIRS = "belongs to the loop and the thread that opened it"
FORKED = "belongs to the process that opened it"


def at_once(work: Coroutine[Any, Any, object]) -> None:
    """Run what waits for nothing, without a loop."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


def in_a_child(client: muster.Client, room: muster.Room) -> None:
    shared = len(os.listdir("/proc/self/fd"))
    assert shared < len(os.listdir(f"/proc/{os.getppid()}/fd")), "its own descriptors are closed"
    for work in (client.publish("r", b"x"), client.flush(), client.command("r", b"x"), room.__anext__()):
        with pytest.raises(muster.Invalid, match=FORKED):
            at_once(work)
    with pytest.raises(muster.Invalid, match=FORKED):
        client.publish_nowait("r", b"x")
    at_once(room.__aexit__(None, None, None))
    at_once(client.__aexit__(None, None, None))
    assert client.closed


async def test_a_forked_child_raises_and_its_parent_hears_on(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        await client.publish("r", b"before")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                in_a_child(client, room)
                code = 0
            except BaseException as error:
                os.write(2, f"{error!r}\n".encode())
            finally:
                os._exit(code)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status == 0
        await client.publish("r", b"after")
        got = [(await asyncio.wait_for(anext(room), PATIENT_S)).data for _ in range(2)]  # type: ignore[union-attr]
        assert got == [b"before", b"after"]


async def test_a_room_is_read_and_left_only_where_its_client_was_opened(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        for data in (b"1", b"2", b"3"):
            await client.publish("r", data)
        await anext(room)

        async def read() -> None:
            await anext(room)

        with pytest.raises(muster.Invalid, match=THEIRS):
            await asyncio.to_thread(asyncio.run, read())
        with pytest.raises(muster.Invalid, match=THEIRS):
            await asyncio.to_thread(room.leave)
        assert (await anext(room)).data == b"2"  # type: ignore[union-attr]
