"""History and resumption over real processes: several gateways and brokers, lossy links, and a gateway that is killed."""

import asyncio
from subprocess import PIPE

import pytest

import muster
from muster.instance import find
from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.waiting import PATIENT_S

NODES = {"gateways": 2, "brokers": "1x2", "routers": "1x2", "proxies": 2}
ONE = {"gateways": 2, "brokers": "1x1", "routers": "1x1", "proxies": 1}


def at_gateway(instance: Instance, *numbers: int) -> muster.Client:
    """A client that knows these gateways only."""
    address = find(instance.folder.path)
    gateways = [address.gateways[number] for number in numbers]
    return muster.connect(instance.folder.path, gateways=gateways, timeout=PATIENT_S)


async def publish(client: muster.Client, numbers: range) -> None:
    for number in numbers:
        await client.publish("news", b"%d" % number)


async def read(room: muster.Room, count: int) -> list[int]:
    """The next messages. Raises if there is a gap."""
    taken: list[int] = []
    async with asyncio.timeout(PATIENT_S):
        while len(taken) < count:
            item = await anext(room)
            assert isinstance(item, muster.Message), item
            taken.append(int(item.data))
    return taken


async def test_history_comes_from_any_gateway_on_lossy_links(make: Make) -> None:
    instance = make(up=NODES, faults={"loss": 0.05, "duplicate": 0.01})
    with instance.running():
        async with at_gateway(instance, 0) as first, at_gateway(instance, 1) as second, first.join("news"):
            await publish(first, range(300))
            async with second.join("news", history=100) as room:
                assert room.history == muster.History(100, True)
                await publish(first, range(300, 310))
                assert await read(room, 110) == list(range(200, 310))


@pytest.mark.parametrize(("nodes", "held"), [(ONE, False), (ONE, True), (NODES, True)])
async def test_who_comes_back_at_another_gateway_since_its_own_died_has_recovered(
    make: Make, nodes: dict[str, object], held: bool
) -> None:
    """With several brokers, only if that gateway had members all along."""
    instance = make(up=APART | nodes)
    with instance.running():
        async with at_gateway(instance, 0) as mine, at_gateway(instance, 1) as other:
            async with mine.join("news") as room:
                await publish(mine, range(10))
                assert await read(room, 10) == list(range(10))
            stays = await other.join("news") if held else None
            if held:
                async with mine.join("news", positions=room.positions) as room:
                    await publish(mine, range(10, 20))
                    assert await read(room, 10) == list(range(10, 20))
            begun = 20 if held else 10
            instance.kill("gateway")
            await publish(other, range(begun, begun + 30))
            async with at_gateway(instance, 1) as later, later.join("news", positions=room.positions) as room:
                assert await read(room, 30) == list(range(begun, begun + 30))
                assert room.recovered is True
            if stays is not None:
                stays.leave()


async def test_where_another_broker_may_have_spoken_unheard_nothing_is_called_recovered(make: Make) -> None:
    instance = make(up=NODES)
    with instance.running():
        async with at_gateway(instance, 0) as mine, at_gateway(instance, 1) as other:
            async with mine.join("news") as room:
                await publish(mine, range(10))
                assert await read(room, 10) == list(range(10))
            await publish(mine, range(10, 20))
            async with other.join("news", positions=room.positions) as room:
                assert await read(room, 10) == list(range(10, 20))
                assert room.recovered is False


async def test_a_session_that_moves_to_the_other_gateway_says_whether_it_recovered(make: Make) -> None:
    instance = make(up=APART | NODES)
    with instance.running():
        async with at_gateway(instance, 1) as stays, stays.join("news") as kept:
            moving = [at_gateway(instance, 0, 1) for _ in range(4)]
            rooms = [await (await client).join("news") for client in moving]
            await publish(stays, range(10))
            assert [await read(room, 10) for room in rooms] == [list(range(10))] * 4
            async with instance.stopped("gateway"):
                await publish(stays, range(10, 40))
                assert [await read(room, 30) for room in rooms] == [list(range(10, 40))] * 4
            assert await read(kept, 40) == list(range(40))
            assert [room.recovered for room in rooms] == [room.stats()["rejoined"] == 1 for room in rooms]
            for client in moving:
                await client.close()


async def test_the_command_prints_history_first(make: Make) -> None:
    instance = make(gateway={"history_max": 4})
    with instance.running():
        async with muster.connect(instance.folder.path) as client:
            await publish(client, range(5))
            sub = instance.command("sub", "news", "--history", "3", "-n", "3", stdout=PIPE, stderr=PIPE)
            said, told = await asyncio.to_thread(sub.communicate, timeout=PATIENT_S)
            assert (said, told, sub.returncode) == (b"2\n3\n4\n", b"joined news, 3 messages of history\n", 0)
            sub = instance.command("sub", "news", "--history", "5", stdout=PIPE, stderr=PIPE)
            _, told = await asyncio.to_thread(sub.communicate, timeout=PATIENT_S)
            assert b"history_max" in told
            assert sub.returncode == 1
