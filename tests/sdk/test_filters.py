"""Filters of memberships through real processes: the messages that match, in order, and nothing else."""

import asyncio
import time

import pytest

import muster
import muster.testing
from tests.waiting import PATIENT_S, until

PAIRS = ("EUR", "JPY", "USD", "")
LOSSY: list[muster.Fault] = [
    ("out", None, 0.05, 0.0, 0.0, 0.02, 2, 0, 2),
    ("in", None, 0.05, 0.0, 0.0, 0.02, 2, 0, 2),
]


async def fill(client: muster.Client, room: str, count: int) -> None:
    """Publish numbered messages, each with the next pair as its header; every seventh has several chunks."""
    for number in range(count):
        pair = PAIRS[number % len(PAIRS)]
        data = b"%d" % number + b" " * (4_000 if number % 7 == 0 else 0)
        while not client.publish_nowait(room, data, headers={"pair": pair} if pair else {}):
            await client.writable(room)
    await client.flush()


async def take(room: muster.Room, count: int) -> list[muster.Message]:
    """The next messages; a gap fails."""
    taken: list[muster.Message] = []
    async with asyncio.timeout(PATIENT_S):
        while len(taken) < count:
            item = await anext(room)
            assert isinstance(item, muster.Message), item
            taken.append(item)
    return taken


def numbers(messages: list[muster.Message]) -> list[int]:
    return [int(message.data) for message in messages]


async def test_a_membership_gets_what_its_filter_lets_through_in_order(address: muster.testing.Instance) -> None:
    async with (
        muster.connect(address) as client,
        muster.connect(address) as other,
        client.join("filter:both", filter=muster.Filter({"pair": ["EUR", "USD"]})) as filtered,
        other.join("filter:both") as every,
    ):
        await fill(client, "filter:both", 200)
        assert numbers(await take(filtered, 100)) == list(range(0, 200, 2))
        assert numbers(await take(every, 200)) == list(range(200))
        await until(lambda: filtered.stats()["filtered"] >= 100)
        assert filtered.stats()["gaps"] == 0


async def test_all_members_get_the_same_sample(address: muster.testing.Instance) -> None:
    wanted = muster.Filter(one_in=4)
    room = "filter:sample"
    async with (
        muster.connect(address) as client,
        muster.connect(address) as other,
        client.join(room, filter=wanted) as sample,
        other.join(room, filter=wanted) as same,
    ):
        for number in range(400):
            await client.publish(room, b"%d" % number)
        await until(lambda: sample.stats()["delivered"] + sample.stats()["filtered"] == 400)
        taken = numbers(await take(sample, sample.stats()["delivered"]))
        assert 55 <= len(taken) <= 150  # five standard deviations around 100
        assert numbers(await take(same, len(taken))) == taken
        async with muster.connect(address) as third, third.join(room, history=400, filter=wanted) as recent:
            assert numbers(await take(recent, recent.history.messages)) == taken


async def test_history_and_positions_go_through_the_filter(address: muster.testing.Instance) -> None:
    euro = muster.Filter({"pair": "EUR"})
    room = "filter:history"
    async with muster.connect(address) as client, client.join(room) as every:
        for number in range(40):
            await client.publish(room, b"%d" % number, headers={"pair": PAIRS[number % 4] or "none"})
        await take(every, 40)
        positions = every.positions
        async with muster.connect(address) as third, third.join(room, history=20, filter=euro) as recent:
            assert recent.history.messages == 5
            assert numbers(await take(recent, 5)) == [20, 24, 28, 32, 36]
        await fill(client, room, 43)
        async with muster.connect(address) as third, third.join(room, positions=positions, filter=euro) as back:
            assert numbers(await take(back, 11)) == list(range(0, 43, 4))
            await until(lambda: back.recovered is not None)
            assert back.recovered
            later = back.positions
        # What was left out behind the last message is behind the position too.
        async with muster.connect(address) as third, third.join(room, positions=later) as last:
            await fill(client, room, 1)
            assert numbers(await take(last, 1)) == [0]


async def test_losses_of_filtered_messages_are_repaired() -> None:
    async with (
        muster.testing.instance(faults=LOSSY) as address,
        muster.connect(address, faults=LOSSY) as client,
        client.join("r", filter=muster.Filter({"pair": ["JPY", "USD"]})) as room,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(fill(client, "r", 2_000))
        assert numbers(await take(room, 1_000)) == [number for number in range(2_000) if number % 4 in {1, 2}]
        assert room.stats()["gaps"] == 0


async def test_the_latest_message_comes_at_a_rate_and_the_last_one_in_the_end(address: muster.testing.Instance) -> None:
    name, euro = "filter:latest", muster.Filter({"pair": "EUR"}, at_most_per_s=5)
    async with muster.connect(address) as client, client.join(name, filter=euro) as room:
        began = time.monotonic()
        await fill(client, name, 2_000)
        taken = await take(room, 1)
        while numbers(taken)[-1] != 1_996:
            taken += await take(room, 1)
        spans = 1 + (time.monotonic() - began) * 5
        assert len(taken) <= 1 + spans, numbers(taken)
        assert numbers(taken) == sorted(set(numbers(taken)))
        assert all(number % 4 == 0 for number in numbers(taken))
        await until(lambda: room.stats()["filtered"] >= 1_500)
        assert room.stats()["gaps"] == 0
        positions = room.positions
    async with muster.connect(address) as client, client.join(name, filter=euro, history=100) as room:
        assert room.history.messages == 1
        assert numbers(await take(room, 1)) == [1_996]
        await fill(client, name, 43)
        async with muster.connect(address) as third, third.join(name, positions=positions, filter=euro) as back:
            assert numbers(await take(back, 1)) == [40]
            await until(lambda: back.recovered is not None)
            assert back.recovered


async def test_the_latest_message_survives_losses() -> None:
    async with (
        muster.testing.instance(faults=LOSSY) as address,
        muster.connect(address, faults=LOSSY) as client,
        client.join("r", filter=muster.Filter(at_most_per_s=100)) as room,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(fill(client, "r", 2_000))
        last = -1
        while last < 1_999:
            (message,) = await take(room, 1)
            assert int(message.data) > last
            last = int(message.data)


@pytest.mark.parametrize("rate", [0, 1_001, True, 0.5])
def test_a_rate_beyond_its_bounds_is_refused(rate: int) -> None:
    with pytest.raises(muster.Invalid, match="at_most_per_s"):
        muster.Filter(at_most_per_s=rate)


@pytest.mark.parametrize(
    ("equal", "one_in", "error"),
    [
        ({}, 1, "compares a header"),
        ({}, 0, "one_in"),
        ({"a b": "x"}, 1, "name of a header"),
        ({"a": []}, 1, "values"),
        ({"a": [str(value) for value in range(17)]}, 1, "16 values"),
        (dict.fromkeys("abcde", "x"), 1, "4 headers"),
        ({"a": "x" * 600}, 1, "512 bytes"),
    ],
)
async def test_a_wrong_filter_is_refused_with_its_reason(
    address: muster.testing.Instance, equal: dict[str, str], one_in: int, error: str
) -> None:
    async with muster.connect(address) as client:
        with pytest.raises(muster.Invalid, match=error):
            await client.join("filter:wrong", filter=muster.Filter(equal, one_in))
