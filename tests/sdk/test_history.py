"""A room's last messages come first if asked for, and a returning client learns whether anything is lost."""

import asyncio
import struct

import pytest

import muster
import muster.testing
from tests.waiting import PATIENT_S, until


async def publish(client: muster.Client, count: int, first: int = 0, size: int = 0) -> None:
    for number in range(first, first + count):
        await client.publish("r", b"%d" % number + b" " * size)


async def read(room: muster.Room, count: int) -> list[int]:
    """The next items, which are messages."""
    taken: list[int] = []
    async with asyncio.timeout(PATIENT_S):
        while len(taken) < count:
            item = await anext(room)
            assert isinstance(item, muster.Message), item
            taken.append(int(item.data))
    return taken


async def read_gap(room: muster.Room) -> str:
    """The reason of the next item, which is a gap."""
    async with asyncio.timeout(PATIENT_S):
        item = await anext(room)
    assert isinstance(item, muster.Gap), item
    return item.reason


@pytest.mark.parametrize(("asked", "given"), [(3, 3), (10, 10), (11, 10), (1_024, 10)])
async def test_the_last_messages_come_first_and_then_what_is_published(
    address: muster.testing.Instance, asked: int, given: int
) -> None:
    async with muster.connect(address) as client, muster.connect(address) as other:
        async with client.join("r"):
            await publish(client, 10)
        for at, member in enumerate((client, other)):
            async with member.join("r", history=asked) as room:
                assert room.history == muster.History(given + (at if asked > 10 else 0), True)
                await publish(client, 1, 10 + at)
                expected = list(range(10 + at))[-asked:]
                assert await read(room, len(expected) + 1) == [*expected, 10 + at]
                assert room.recovered is False


async def test_a_gateway_that_has_just_begun_with_a_room_asks_its_owner(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        await publish(client, 300)  # nobody is in the room
        async with client.join("r", history=200) as room:
            assert room.history == muster.History(200, True)
            await publish(client, 5, 300)
            assert await read(room, 205) == list(range(100, 305))
        address.restart("gateway")
        async with client.join("r", history=7) as room:
            assert room.history == muster.History(7, True)
            assert await read(room, 7) == list(range(298, 305))


async def test_a_long_message_is_one_message_of_history(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        await publish(client, 6, size=20_000)
        async with client.join("r", history=4) as room:
            assert room.history == muster.History(4, True)
            assert await read(room, 4) == [2, 3, 4, 5]


async def test_what_died_with_its_owner_leaves_a_history_that_is_not_whole(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        await publish(client, 5)
        await read(room, 5)
        address.restart("broker")
        await publish(client, 1, 5)
        await read_gap(room)
        async with muster.connect(address) as other, other.join("r", history=10) as late:
            assert late.history == muster.History(6, False)  # the gateway's messages, with the loss in its place


async def test_a_room_in_which_nothing_was_said_has_no_history_and_that_is_all(
    address: muster.testing.Instance,
) -> None:
    async with muster.connect(address) as client, client.join("r", history=5) as room:
        assert room.history == muster.History(0, True)
        await publish(client, 1)
        assert await read(room, 1) == [0]


async def test_more_than_the_server_gives_is_refused_in_words(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        with pytest.raises(muster.Refused, match="history_max") as caught:
            await client.join("r", history=1_025)
        assert (caught.value.code, caught.value.retry) == ("too_much_history", False)
        async with client.join("r", history=1_024):
            pass


@pytest.mark.parametrize(("history", "positions"), [(-1, None), (1 << 32, None), ("3", None), (3, b"\0")])
async def test_mistakes_are_told_before_anything_is_asked(
    address: muster.testing.Instance, history: int, positions: bytes | None
) -> None:
    async with muster.connect(address) as client:
        with pytest.raises(muster.Invalid):
            await client.join("r", history=history, positions=positions)


async def test_who_comes_back_with_positions_learns_that_nothing_is_lost(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        async with client.join("r") as room:
            assert room.recovered is False  # there was nothing to resume
            await publish(client, 3)
            assert await read(room, 3) == [0, 1, 2]
        kept = room.positions
        await publish(client, 50, 3)
        async with muster.connect(address) as later, later.join("r", positions=kept) as room:
            assert await read(room, 50) == list(range(3, 53))
            assert room.recovered is True
        assert room.recovered is True


def moved(positions: bytes, by: int, lives: int = 0, streams: int = 0) -> bytes:
    """Positions in one stream, moved ahead by a number of messages, of lives of its owner, or of streams."""
    count, node, epoch, generation, offset = struct.unpack("<BIIIQ", positions)
    assert count == 1
    return struct.pack("<BIIIQ", count, node, epoch + lives, generation + streams, offset + by)


@pytest.mark.parametrize(("by", "lives", "streams"), [(1, 0, 0), (50, 0, 0), (50, 0, 1), (50, 1, 0)])
async def test_positions_ahead_of_the_owner_are_a_gap_and_all_that_is_published_from_then_on_comes(
    address: muster.testing.Instance, by: int, lives: int, streams: int
) -> None:
    async with muster.connect(address) as client:
        async with client.join("r") as room:
            await publish(client, 3)
            assert await read(room, 3) == [0, 1, 2]
        had = room.positions
        async with muster.connect(address) as later:
            async with later.join("r", positions=moved(had, by, lives, streams)) as room:
                await publish(client, 10, 3)
                assert await read_gap(room) == ("owner_lost" if lives else "restarted")
                assert room.recovered is False
                first = 0 if lives or streams else 3  # of a stream that it does not know it gets all
                assert await read(room, 13 - first) == list(range(first, 13))
            if first:
                assert room.positions == moved(had, 10)
            async with later.join("r", positions=room.positions) as room:
                await publish(client, 1, 13)
                assert await read(room, 1) == [13]


async def test_what_died_with_its_owner_is_never_called_recovered(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        async with client.join("r") as room:
            await publish(client, 2)
            assert await read(room, 2) == [0, 1]
        address.stop("gateway")  # nobody hears of the later ones
        await publish(client, 3, 2)
        address.restart("broker")
        await publish(client, 1, 5)
        address.start("gateway")
        async with client.join("r", positions=room.positions) as room:
            assert await read_gap(room) == "owner_lost"
            assert room.recovered is False
            assert await read(room, 1) == [5]
            assert room.recovered is False


async def test_what_the_reader_was_too_slow_for_is_not_recovered(address: muster.testing.Instance) -> None:
    async with muster.connect(address, buffer_bytes=2_000) as client:
        async with client.join("r") as room:
            await publish(client, 1)
            assert await read(room, 1) == [0]
        await publish(client, 100, 1)
        async with client.join("r", positions=room.positions) as room:
            await until(lambda: room.recovered is not None)  # all comes, though this program reads nothing
            assert await read_gap(room) == "reader"
            assert room.recovered is False


async def test_a_lost_session_is_seen_and_whether_it_cost_anything(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        await publish(client, 3)
        assert await read(room, 3) == [0, 1, 2]
        assert room.stats()["rejoined"] == 0
        address.restart("gateway")
        await publish(client, 3, 3)
        assert await read(room, 3) == [3, 4, 5]
        assert (room.stats()["rejoined"], room.recovered) == (1, True)
        address.restart("broker")
        await publish(client, 1, 6)
        assert await read_gap(room) == "owner_lost"
        assert await read(room, 1) == [6]
        assert (room.stats()["rejoined"], room.recovered) == (1, True)  # that loss came later


async def test_history_is_read_without_a_membership_that_lasts(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as writer, muster.connect(address, proxies=()) as reader:
        async with writer.join("kept"):
            assert await reader.history("kept", 5) == []
            for number in range(5):
                await writer.publish("kept", b"%d" % number)
            assert [message.data for message in await reader.history("kept", 3)] == [b"2", b"3", b"4"]
            assert [message.data for message in await reader.history("kept", 9)] == [b"0", b"1", b"2", b"3", b"4"]
            assert reader.stats()["delivered"] == 8
            with pytest.raises(muster.Invalid, match="has joined that room already"):
                await writer.history("kept", 1)
        with pytest.raises(muster.Invalid, match="1 or more"):
            await reader.history("kept", 0)
