"""Restarts, slow readers and losses, as a program sees them."""

import asyncio
import json
import os
from pathlib import Path

import pytest

import muster
import muster.testing
from muster.instance import start_time
from tests.waiting import PATIENT_S, until

LOSSY: list[muster.Fault] = [
    ("out", None, 0.05, 0.02, 0.0, 0.02, 2, 0, 2, 3.0),  # in bursts
    ("in", None, 0.05, 0.02, 0.0, 0.02, 2, 0, 2),
]


async def read_until(room: muster.Room, last: bytes) -> list[muster.Item]:
    """All items up to the message `last`."""
    items: list[muster.Item] = []
    async with asyncio.timeout(PATIENT_S):
        async for item in room:
            items.append(item)
            if isinstance(item, muster.Message) and item.data == last:
                return items
    raise AssertionError("the room ended")


def data(items: list[muster.Item]) -> list[bytes]:
    return [item.data for item in items if isinstance(item, muster.Message)]


def describe(instance: muster.testing.Instance, folder: Path) -> None:
    """Write the files by which clients find an instance in its folder."""
    (folder / "token").write_bytes(instance.token)
    endpoints = {
        kind: [{"host": host, "port": port, "public_key": key} for host, port, key in servers]
        for kind, servers in (("gateways", instance.gateways), ("proxies", instance.proxies))
    }
    process = {"pid": os.getpid(), "started": start_time(os.getpid()), "token_file": str(folder / "token")}
    (folder / "instance.json").write_text(json.dumps(process | endpoints))


async def flood(client: muster.Client, count: int, size: int = 0) -> None:
    for number in range(count):
        while not client.publish_nowait("r", b"%d" % number + bytes(size)):
            await client.writable("r")
    await client.flush()


async def test_a_restarted_gateway_is_found_again_and_nothing_is_missed(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        for number in range(10):
            await client.publish("r", b"%d" % number)
        assert data(await read_until(room, b"9")) == [b"%d" % number for number in range(10)]
        address.stop("gateway")
        for number in range(10, 20):
            await client.publish("r", b"%d" % number)
        address.start("gateway")
        await client.publish("r", b"20")
        assert data(await read_until(room, b"20")) == [b"%d" % number for number in range(10, 21)]
        assert client.stats()["sessions_lost"] >= 1


async def test_an_instance_that_took_the_place_of_another_is_found_by_its_folder(tmp_path: Path) -> None:
    async with muster.testing.instance() as first:
        describe(first, tmp_path)
        client = await muster.connect(tmp_path)
        room = await client.join("r")
        await client.publish("r", b"before")
        assert data(await read_until(room, b"before")) == [b"before"]
    (tmp_path / "instance.json").write_text("{}")
    async with muster.testing.instance() as second:  # with other ports, keys and another token
        await until(lambda: client.stats()["sessions_lost"] >= 2)
        second.restart("broker")  # whose epoch is later than the first one's, as after any start
        describe(second, tmp_path)
        async with asyncio.timeout(PATIENT_S):
            await client.publish("r", b"after")
            gap, *items = await read_until(room, b"after")
        assert isinstance(gap, muster.Gap), "what the first may have taken along is announced"
        assert data(items) == [b"after"]
        await client.close()


async def test_a_later_join_goes_on_after_what_was_read_not_after_what_came(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        async with client.join("r") as room:
            await asyncio.gather(*(client.publish("r", b"%d" % number) for number in range(100)))
            await until(lambda: room.stats()["delivered"] == 100)
            for _ in range(40):
                last = await anext(room)
            positions = room.positions
        assert isinstance(last, muster.Message)
        assert last.data == b"39"
        assert room.positions == positions
    async with muster.connect(address) as client, client.join("r", positions=positions) as room:
        assert data(await read_until(room, b"99")) == [b"%d" % number for number in range(40, 100)]


async def test_positions_between_the_chunks_of_a_message_bring_it_again(address: muster.testing.Instance) -> None:
    seen: set[bytes] = set()
    async with muster.connect(address) as client, client.join("r") as room:
        await client.publish("r", b"first")
        assert data(await read_until(room, b"first")) == [b"first"]
        publishing = asyncio.create_task(client.publish("r", bytes(65_536)))
        while not publishing.done():
            seen.add(room.positions)
            await asyncio.sleep(0)
        await until(lambda: room.stats()["delivered"] == 2)
        seen.add(room.positions)
        await client.publish("r", b"last")
    assert len(seen) == 1
    async with muster.connect(address) as client, client.join("r", positions=seen.pop()) as room:
        assert data(await read_until(room, b"last")) == [bytes(65_536), b"last"]


async def test_what_a_dead_owner_took_along_is_announced(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        await client.publish("r", b"before")
        assert data(await read_until(room, b"before")) == [b"before"]
        address.restart("broker")
        await client.publish("r", b"after")
        *gaps, message = await read_until(room, b"after")
        assert isinstance(message, muster.Message)
        assert [gap.reason for gap in gaps if isinstance(gap, muster.Gap)] == ["owner_lost"]


async def test_publishing_goes_on_across_a_restart_of_the_proxy(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        flooding = asyncio.create_task(flood(client, 5_000))
        await until(lambda: room.stats()["delivered"] > 500)
        address.restart("proxy")
        assert data(await read_until(room, b"4999")) == [b"%d" % number for number in range(5_000)]
        await flooding


async def test_losses_are_repaired_and_counted() -> None:
    async with (
        muster.testing.instance(faults=LOSSY) as address,
        muster.connect(address, faults=LOSSY) as client,
        client.join("r") as room,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(flood(client, 5_000, 100))  # about 500 datagrams: it is impossible that none is lost
        messages = [b"%d" % number + bytes(100) for number in range(5_000)]
        assert data(await read_until(room, messages[-1])) == messages
        assert client.stats()["repaired"] > 0
        assert client.stats()["repairs_asked"] == room.stats()["repairs_asked"] > 0


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest"])
async def test_what_a_slow_reader_drops_stands_as_a_gap_and_is_counted(
    address: muster.testing.Instance, policy: muster.Policy
) -> None:
    async with muster.connect(address, buffer_bytes=100_000) as client, client.join("r", policy=policy) as room:
        await flood(client, 2_000, 1_000)
        await until(
            lambda: room.stats()["delivered"] + (policy == "drop_newest") * room.stats()["dropped_reader"] == 2_000
        )
        dropped = room.stats()["dropped_reader"]
        assert 1_900 <= dropped < 2_000
        await client.publish("r", b"last")
        items = (
            await read_until(room, b"last")
            if policy == "drop_oldest"
            else [await anext(room) for _ in range(2_001 - dropped)]
        )
        gaps = [item for item in items if isinstance(item, muster.Gap)]
        numbers = [item.position.offset for item in items if isinstance(item, muster.Message)]
        assert {gap.reason for gap in gaps} == {"reader"}
        missing = {offset for gap in gaps for offset in range(gap.first, (gap.last or 0) + 1)}
        assert sorted([*missing, *numbers])[:2_000] == list(range(1, 2_001))
        assert (numbers[0] == 1) == (policy == "drop_newest")


async def test_a_blocking_reader_of_a_paced_room_gets_everything() -> None:
    async with muster.testing.instance(paced_namespaces=["files"]) as address:
        reader = muster.connect(address, buffer_bytes=100_000)
        async with muster.connect(address) as writer, reader, reader.join("files:r", policy="block") as room:

            async def write() -> None:
                for number in range(1_000):
                    while not writer.publish_nowait("files:r", b"%d" % number + bytes(1_000)):
                        await writer.writable("files:r")
                await writer.flush()

            writing = asyncio.create_task(write())
            await until(lambda: room.stats()["delivered"] >= 80)
            items: list[muster.Item] = []
            async with asyncio.timeout(PATIENT_S):
                while len(items) < 1_000:
                    items.append(await anext(room))
                    await asyncio.sleep(0)
            assert [each.data.rstrip(b"\0") for each in items if isinstance(each, muster.Message)] == [
                b"%d" % number for number in range(1_000)
            ]
            await writing
