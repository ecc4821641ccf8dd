"""Messages published to a room reach its members: in order, whole, once, in every size."""

import asyncio
import contextlib
import hashlib
from collections.abc import Iterable

import pytest

import muster
import muster.testing
from tests.waiting import PATIENT_S, until


def payload(number: int, size: int) -> bytes:
    """Bytes that no other message has."""
    return hashlib.shake_128(b"%d" % number).digest(size)


async def take(room: muster.Room, count: int) -> list[bytes]:
    """The data of the next messages; a gap fails."""
    taken: list[bytes] = []
    async with asyncio.timeout(PATIENT_S):
        while len(taken) < count:
            item = await anext(room)
            assert isinstance(item, muster.Message), item
            taken.append(item.data)
    return taken


async def publish_all(client: muster.Client, room: str, messages: Iterable[bytes]) -> None:
    for data in messages:
        while not client.publish_nowait(room, data):
            await client.writable(room)
    await client.flush()


async def test_a_message_comes_with_its_room_place_and_sender(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("sports:final") as room:
        position = await client.publish("sports:final", b"goal")
        message = await anext(room)
    assert isinstance(message, muster.Message)
    assert (message.room, message.position, message.sender, message.data) == ("sports:final", position, 1, b"goal")


async def test_headers_come_with_their_message(address: muster.testing.Instance) -> None:
    sizes = [0, 1, 60, 1_000, 1_050, 1_084, 1_085, 30_000, 64_000]
    long = {"value": "v" * 1_000, "key": "k"}
    async with muster.connect(address) as client, client.join("r") as room:
        for number, size in enumerate(sizes):
            await client.publish("r", payload(number, size), headers={"kind": "goal", "gr": "ä" * number})
            client.publish_nowait("r", payload(number, size))
            client.publish_nowait("r", payload(number, size), headers=long)
        for number, size in enumerate(sizes):
            for headers in ({"kind": "goal", "gr": "ä" * number}, {}, long):
                message = await asyncio.wait_for(anext(room), PATIENT_S)
                assert isinstance(message, muster.Message)
                assert (message.headers, message.data) == (headers, payload(number, size))
    async with muster.connect(address) as client:
        found = await client.history("r", 3)
    assert [message.headers for message in found] == [{"kind": "goal", "gr": "ä" * 8}, {}, long]


async def test_headers_survive_a_wait_for_credit(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        waits = [client.publish("r", b"%d" % number, headers={"n": str(number)}) for number in range(400)]
        positions, taken = await asyncio.gather(asyncio.gather(*waits), items_of(room, 400))
    assert [message.headers["n"] for message in taken] == [message.data.decode() for message in taken]
    assert len(set(positions)) == 400


async def items_of(room: muster.Room, count: int) -> list[muster.Message]:
    """The next messages; a gap fails."""
    found: list[muster.Message] = []
    async with asyncio.timeout(PATIENT_S):
        while len(found) < count:
            item = await anext(room)
            assert isinstance(item, muster.Message), item
            found.append(item)
    return found


@pytest.mark.parametrize(
    ("headers", "error", "says"),
    [
        ({"a b": "x"}, muster.Invalid, "the name of a header has 1 to 64 letters"),
        ({"": "x"}, muster.Invalid, "the name of a header"),
        ({"a": "x" * 1_100}, muster.Invalid, "at most 1024 bytes"),
        ({f"n{at}": "" for at in range(17)}, muster.Invalid, "at most 16 headers"),
        ({"a": 1}, muster.Invalid, "invalid headers"),
        ({"a": "x"}, muster.TooLong, "65536 bytes and 7 of headers"),
    ],
)
async def test_wrong_headers_are_an_error_before_anything_is_sent(
    address: muster.testing.Instance, headers: dict[str, str], error: type[Exception], says: str
) -> None:
    data = bytes(65_536) if error is muster.TooLong else b""
    async with muster.connect(address) as client:
        with pytest.raises(error, match=says):
            await client.publish("r", data, headers=headers)
        with pytest.raises(error, match=says):
            client.publish_nowait("r", data, headers=headers)
        await client.flush()
        assert client.stats()["published"] == 0


async def test_positions_of_a_room_grow_by_one(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        positions = [await client.publish("r", b"x") for _ in range(5)]
    assert [position.offset for position in positions] == [1, 2, 3, 4, 5]


async def test_ten_thousand_messages_come_in_order_to_every_member(address: muster.testing.Instance) -> None:
    wanted = [payload(number, 1 + number % 100) for number in range(10_000)]
    async with muster.connect(address) as one, muster.connect(address, proxies=()) as two:
        async with one.join("r") as first, two.join("r") as second, asyncio.TaskGroup() as group:
            group.create_task(publish_all(one, "r", wanted))
            takers = [group.create_task(take(room, len(wanted))) for room in (first, second)]
        assert [taker.result() == wanted for taker in takers] == [True, True]


async def test_batches_hold_all_that_came_in_order(address: muster.testing.Instance) -> None:
    taken: list[bytes] = []
    async with muster.connect(address) as client, client.join("r") as room, asyncio.TaskGroup() as group:
        group.create_task(publish_all(client, "r", (b"%d" % number for number in range(5_000))))
        async with asyncio.timeout(PATIENT_S):
            async for batch in room.batches():
                assert 1 <= len(batch) <= 1_024
                taken += [item.data for item in batch if isinstance(item, muster.Message)]
                if len(taken) == 5_000:
                    break
    assert taken == [b"%d" % number for number in range(5_000)]


async def test_one_client_publishes_to_many_more_rooms_than_it_has_places_for(address: muster.testing.Instance) -> None:
    names = [f"chat:{number}" for number in range(1_000)]
    shares = [names[at : at + 250] for at in range(0, len(names), 250)]
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(muster.connect(address, proxies=())) for _ in shares]
        joins = [client.join(name) for client, share in zip(clients, shares, strict=True) for name in share]
        rooms = await asyncio.gather(*joins)
        publisher = await stack.enter_async_context(muster.connect(address, gateways=()))
        for at in range(0, len(names), 50):  # each waits for messages of several rooms
            await asyncio.gather(*(publish_all(publisher, name, [b"first", b"second"]) for name in names[at : at + 50]))
        # Again to the first, whose places others have had since, and to more than there are places for at once.
        waits = [
            publisher.publish(name, data, timeout=PATIENT_S) for name in names[:300] for data in (b"third", b"fourth")
        ]
        positions = await asyncio.gather(*waits)
        assert [position.offset for position in positions] == [3, 4] * 300
        assert publisher.stats()["published"] == 2_600
        for number, room in enumerate(rooms):
            said = [b"first", b"second", b"third", b"fourth"][: 4 if number < 300 else 2]
            assert await take(room, len(said)) == said


async def test_who_waits_for_a_place_for_a_room_is_told_what_is_wrong(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        address.stop("broker")
        for number in range(256):
            assert client.publish_nowait(f"r{number}", b"x")
        assert not client.publish_nowait("another", b"x")
        with pytest.raises(muster.TimedOut, match="wait for another to take messages"):
            await client.writable("another", timeout=0.2)
        with pytest.raises(muster.TimedOut, match="publish to another"):
            await client.publish("another", b"x", timeout=0.2)
        waits = [
            asyncio.create_task(client.publish("another", b"%d" % number, timeout=PATIENT_S)) for number in range(3)
        ]
        await asyncio.sleep(0)
        with pytest.raises(muster.Invalid, match="invalid message of type str"):
            await client.publish("another", "text")  # type: ignore[arg-type]
        with pytest.raises(muster.TooLong):
            await client.publish("another", bytes(65_537))
        address.start("broker")
        positions = await asyncio.gather(*waits)
        assert [position.offset for position in positions] == [1, 2, 3]
        await client.flush(PATIENT_S)


@pytest.mark.parametrize("size", [0, 1, 1_100, 1_101, 30_000, 65_535, 65_536])
async def test_messages_of_every_size_come_whole(address: muster.testing.Instance, size: int) -> None:
    wanted = [payload(number, size) for number in range(20)]
    async with muster.connect(address) as client, client.join("r") as room, asyncio.TaskGroup() as group:
        group.create_task(publish_all(client, "r", wanted))
        assert await take(room, len(wanted)) == wanted


@pytest.mark.parametrize("call", ["publish", "publish_nowait"])
async def test_a_longer_message_is_an_error_before_anything_is_sent(
    address: muster.testing.Instance, call: str
) -> None:
    async with muster.connect(address) as client:

        async def publish() -> None:
            if call == "publish":
                await client.publish("r", bytes(65_537))
            else:
                client.publish_nowait("r", bytes(65_537))

        with pytest.raises(muster.TooLong, match=r"too long: 65537 bytes \(limit 65536\); nothing was sent") as told:
            await publish()
        assert (told.value.code, told.value.retry) == ("too_long", False)
        await client.flush()
        assert client.stats()["published"] == 0


async def test_many_rooms_of_one_client_stay_apart(address: muster.testing.Instance) -> None:
    names = [f"games:{number}" for number in range(50)]
    async with muster.connect(address) as client:
        rooms = [await client.join(name) for name in names]
        for number in range(20):
            await asyncio.gather(*(client.publish(name, f"{name} {number}".encode()) for name in names))
        for room in rooms:
            assert await take(room, 20) == [f"{room.name} {number}".encode() for number in range(20)]
            room.leave()


async def test_concurrent_publishers_of_one_client_lose_nothing_without_credit(
    address: muster.testing.Instance,
) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        positions = await asyncio.gather(*(client.publish("r", b"%d" % number) for number in range(2_000)))
        assert await take(room, 2_000) == [b"%d" % number for number in range(2_000)]
    assert len(set(positions)) == 2_000


async def test_nowait_says_no_when_credit_is_used_up_and_writable_says_when_to_go_on(
    address: muster.testing.Instance,
) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        taken = 0
        while client.publish_nowait("r", b"%d" % taken):
            taken += 1
        assert taken == 256
        await client.writable("r")
        assert client.publish_nowait("r", b"last")
        assert (await take(room, taken + 1))[-1] == b"last"


async def test_who_asks_late_whether_a_room_is_writable_is_told_at_once(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        await client.writable("r")
        while client.publish_nowait("r", b"x"):
            pass
        await client.flush()
        await client.writable("r")
        assert client.publish_nowait("r", b"last")


async def test_messages_to_a_room_keep_their_order_under_either_name(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        for number in range(1_000):
            name = ("r", "default:r")[number % 7 == 0]
            while not client.publish_nowait(name, b"%d" % number):
                await client.writable(name)
        assert await take(room, 1_000) == [b"%d" % number for number in range(1_000)]


async def test_a_room_can_be_left_and_joined_again_at_once(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        for number in range(20):
            async with client.join("r") as room:
                await client.publish("r", b"%d" % number)
                assert await take(room, 1) == [b"%d" % number]


async def test_what_was_counted_in_a_room_stays_counted_when_it_is_left(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        for number in range(3):
            async with client.join("r") as room:
                await client.publish("r", b"x")
                assert await take(room, 1) == [b"x"]
                assert room.stats()["delivered"] == 1
            assert client.stats()["delivered"] == number + 1


async def test_a_join_taken_back_does_not_end_the_one_after_it(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        joining = asyncio.ensure_future(client.join("default:r"))
        await asyncio.sleep(0)
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        async with client.join("r") as room:
            for number in range(20):
                await client.publish("r", b"%d" % number)
            assert await take(room, 20) == [b"%d" % number for number in range(20)]


async def test_of_ten_thousand_rooms_a_client_gets_into_256_and_is_told_so_of_the_others_at_once(
    address: muster.testing.Instance,
) -> None:
    async with muster.connect(address) as client:
        joins = (client.join(f"r{number}", timeout=PATIENT_S) for number in range(10_000))
        async with asyncio.timeout(PATIENT_S):
            answers = await asyncio.gather(*joins, return_exceptions=True)
        rooms = [each for each in answers if isinstance(each, muster.Room)]
        refused = [each.code for each in answers if isinstance(each, muster.Refused)]
        assert (len(rooms), refused) == (256, ["too_many_rooms"] * (10_000 - 256))
        await asyncio.gather(*(client.publish(room.name, room.name.encode()) for room in rooms))
        for room in rooms:
            assert await take(room, 1) == [room.name.encode()]
            room.leave()
        async with client.join("r9999"):  # as soon as there is a place again
            pass


async def test_a_room_is_joined_once_per_client_under_either_name(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r"):
        with pytest.raises(muster.Invalid, match="has joined that room already"):
            await client.join("default:r")
    async with muster.connect(address) as client:
        room = await client.join("r")
        with pytest.raises(muster.Invalid, match="joined once"):
            await room


async def test_leaving_ends_an_iteration(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        room = await client.join("r")

        async def read() -> int:
            return len([item async for item in room])

        reading = asyncio.create_task(read())
        await client.publish("r", b"one")
        while not room.stats().get("delivered"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        room.leave()
        assert await reading == 1


async def test_nothing_is_read_after_leaving_and_counts_and_positions_stay(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client:
        room = await client.join("r")
        await asyncio.gather(*(client.publish("r", b"%d" % number) for number in range(10)))
        await until(lambda: room.stats()["delivered"] == 10)
        assert await take(room, 3) == [b"0", b"1", b"2"]
        room.leave()
        assert [item async for item in room] == []
        assert room.stats()["delivered"] == 10
        async with client.join("r", positions=room.positions) as room:
            assert await take(room, 7) == [b"%d" % number for number in range(3, 10)]


async def test_a_cancelled_read_loses_nothing(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        for number in range(50):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(room), 0.001)
            await client.publish("r", b"%d" % number)
            assert await take(room, 1) == [b"%d" % number]


async def test_two_tasks_cannot_read_one_room(address: muster.testing.Instance) -> None:
    async with muster.connect(address) as client, client.join("r") as room:
        first = asyncio.ensure_future(anext(room))
        await asyncio.sleep(0)
        with pytest.raises(muster.Invalid, match="another task reads"):
            await anext(room)
        first.cancel()


async def test_two_tasks_cannot_read_one_room_that_has_much_unread(address: muster.testing.Instance) -> None:
    count = 3 * 1_024
    async with muster.connect(address) as client, client.join("r") as room:
        await publish_all(client, "r", (b"%d" % number for number in range(count)))
        await until(lambda: room.stats()["delivered"] == count)
        taken = await take(room, 1_024)
        told = await asyncio.gather(anext(room), anext(room), return_exceptions=True)
        assert [type(each) for each in told] == [muster.Message, muster.Invalid]
        assert isinstance(told[0], muster.Message)
        taken += [told[0].data, *await take(room, count - 1_025)]
        assert taken == [b"%d" % number for number in range(count)]
