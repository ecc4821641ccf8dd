"""Counting a room's members over real processes: several gateways, lossy links, a gateway that stands still or dies."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import muster
from muster.instance import find
from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.waiting import PATIENT_S

NODES = {"gateways": 2, "brokers": "1x2", "routers": "1x2", "proxies": 2}
MEMBERS = 8


@contextlib.asynccontextmanager
async def members(instance: Instance, room: str) -> AsyncIterator[muster.Client]:
    """Hold members of a room, half of them at each gateway; yields a client that asks for them."""
    address = find(instance.folder.path)
    async with contextlib.AsyncExitStack() as stack:
        for number in range(MEMBERS):
            gateways = [address.gateways[number % 2]]
            client = muster.connect(instance.folder.path, gateways=gateways, proxies=[], timeout=PATIENT_S)
            await stack.enter_async_context((await stack.enter_async_context(client)).join(room))
        yield await stack.enter_async_context(muster.connect(instance.folder.path, gateways=[], timeout=PATIENT_S))


async def count(client: muster.Client, room: str, wait: float = 5.0) -> muster.Members:
    """Ask as soon as that is allowed."""
    while True:
        try:
            return await client.members(room, ids=True, wait=wait)
        except muster.Refused as error:
            if error.code != "rate_limited":
                raise
            await asyncio.sleep(0.3)


async def counted(client: muster.Client, room: str, right: Callable[[muster.Members], bool]) -> None:
    """Ask until the answer is right."""
    async with asyncio.timeout(PATIENT_S):
        while not right(await count(client, room, 0.5)):
            pass


async def test_members_of_all_gateways_are_counted_on_lossy_links(make: Make) -> None:
    instance = make(up=NODES, faults={"loss": 0.05, "duplicate": 0.01})
    with instance.running():
        async with members(instance, "live:final") as client:
            for _ in range(6):
                assert await count(client, "live:final") == muster.Members(MEMBERS, (1,), False, False)


async def test_a_gateway_that_stands_still_makes_the_answer_partial_and_one_that_died_is_counted_again(
    make: Make,
) -> None:
    instance = make(up=APART | NODES)
    with instance.running():
        async with members(instance, "live:final") as client:
            async with instance.stopped("gateway-1"):
                await counted(
                    client, "live:final", lambda said: said == muster.Members(MEMBERS // 2, (1,), False, True)
                )
            await counted(client, "live:final", lambda said: said == muster.Members(MEMBERS, (1,), False, False))
            dead = instance.kill("gateway")
            said = await count(client, "live:final", 0.5)
            comes_back = instance.process("gateway").pid not in {0, dead}  # on a slow machine it may be asked as well
            assert said.partial or said.count == MEMBERS // 2 or comes_back
            await instance.back("gateway", dead)
            await counted(client, "live:final", lambda said: said == muster.Members(MEMBERS, (1,), False, False))


async def test_the_command_counts_and_names_members(make: Make) -> None:
    instance = make()
    with instance.running():
        async with muster.connect(instance.folder.path) as client, client.join("news"):
            said = await run(instance, "news", "--ids", "--json")
            assert json.loads(said) == {
                "count": 1,
                "partial": False,
                "ids": [1],
                "texts": {},
                "truncated": False,
            }
            assert await run(instance, "news", "--ids") == b"1 member\n1\n"
        assert json.loads(await run(instance, "empty", "--json")) == {"count": 0, "partial": False}


async def run(instance: Instance, *words: str) -> bytes:
    """`muster members` with these words."""
    done = await asyncio.to_thread(instance.ran, "members", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout
