"""Commands at real processes: each is told once or reported, over lossy links, and with every role killed."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from subprocess import PIPE

import pytest

import muster
from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.waiting import PATIENT_S, until_asked

NODES = {"gateways": 2, "brokers": "1x2", "routers": "1x2", "proxies": 2}
SENDERS = 20
AT_ONCE = {"command_burst": 5}
"""So that senders have several under way."""
ROOMS = [f"live:{number}" for number in range(4)]
ROOM = ROOMS[0]
EXPIRES_S = 10.0
SOON_S = 1.0
"""A session to a dead server is found lost later."""
ROUNDS = 4
"""A machine with other work may delay a command for this long as well, but not repeatedly."""

Outcomes = dict[tuple[str, bytes], muster.Outcome]
"""By room and content."""


class Receipts:
    """The commands that the members of all rooms read, by room and content."""

    def __init__(self) -> None:
        self.of: Counter[tuple[str, int, bytes]] = Counter()
        self.unsure: set[tuple[str, bytes]] = set()
        """Commands that were under way while a member was, or may have been, without a session."""
        self.away = False
        self._members: list[muster.Client] = []

    def changes(self) -> tuple[bool, int]:
        """Whether a gateway is away, and how many sessions members have lost."""
        return self.away, sum(client.stats()["sessions_lost"] for client in self._members)

    async def member(self, instance: Instance, room: str, number: int, joined: asyncio.Barrier) -> None:
        async with muster.connect(instance.folder.path, proxies=[]) as client, client.join(room) as taken:
            self._members.append(client)
            await joined.wait()
            async for item in taken:
                if isinstance(item, muster.Command):
                    self.of[room, number, item.data] += 1
                else:
                    assert isinstance(item, muster.Gap), item
                    assert item.reason == "owner_lost"


async def send(instance: Instance, number: int, count: int, told: Receipts, outcomes: Outcomes) -> None:
    """Send this many, as fast as they are taken."""
    async with muster.connect(instance.folder.path, gateways=[]) as client:
        for at in range(count):
            room, data, before = ROOMS[(number + at) % len(ROOMS)], b"%d of %d" % (at, number), told.changes()
            await command(client, room, data, outcomes, EXPIRES_S)
            if told.away or told.changes() != before:
                told.unsure.add((room, data))


async def command(client: muster.Client, room: str, data: bytes, outcomes: Outcomes, expires: float) -> None:
    """Send one, until it is taken."""
    while (room, data) not in outcomes:
        try:
            outcomes[room, data] = await client.command(room, data, expires=expires)
        except muster.Refused as error:
            if error.code != "rate_limited":
                raise
            await asyncio.sleep(error.retry_after or 0)


async def run(instance: Instance, count: int, kills: tuple[str, ...]) -> tuple[Receipts, Outcomes]:
    """Two members in each room, all senders, and the kills one after the other meanwhile."""
    told, outcomes, joined = Receipts(), Outcomes(), asyncio.Barrier(2 * len(ROOMS) + 1)
    async with asyncio.TaskGroup() as tasks:
        members = [
            tasks.create_task(told.member(instance, room, number, joined)) for room in ROOMS for number in range(2)
        ]
        async with asyncio.timeout(PATIENT_S):
            await joined.wait()
        sending = [tasks.create_task(send(instance, number, count, told, outcomes)) for number in range(SENDERS)]
        for name in kills:
            await asyncio.sleep(0.7)
            told.away = not instance.fellows(name).isdisjoint(instance.names("gateway"))
            await instance.renew(name)
            if told.away:
                await until_asked(lambda: everybody(instance) == 2 * len(ROOMS))
                told.away = False
        await asyncio.gather(*sending)
        for member in members:
            member.cancel()
    return told, outcomes


def everybody(instance: Instance) -> float:
    """The members at all gateways."""
    return sum(instance.metrics(name)["members"] for name in instance.names("gateway"))


async def test_on_lossy_links_every_member_is_told_once_and_every_sender_hears_so(
    make: Make, figures: Callable[..., None]
) -> None:
    instance = make(up=NODES, proxy=AT_ONCE, faults={"loss": 0.05, "burst": 3, "duplicate": 0.01})
    with instance.running():
        told, outcomes = await run(instance, 6, ())
    figures(outcomes=Counter(type(outcome).__name__ for outcome in outcomes.values()))
    assert len(outcomes) == 6 * SENDERS
    assert set(outcomes.values()) == {muster.Delivered(2)}
    assert told.of == {(room, number, data): 1 for room, data in outcomes for number in range(2)}


async def test_with_every_role_killed_each_is_told_once_or_reported(make: Make, figures: Callable[..., None]) -> None:
    instance = make(up=NODES, proxy=AT_ONCE, faults={"loss": 0.02})
    with instance.running():
        told, outcomes = await run(instance, 8, ("broker", "proxy", "router", "gateway", "broker-1"))
    figures(outcomes=Counter(str(outcome) for outcome in outcomes.values()), unsure=len(told.unsure))
    assert len(outcomes) == 8 * SENDERS
    assert set(told.of.values()) <= {1}
    for (room, data), outcome in outcomes.items():
        had = sum(told.of[room, number, data] for number in range(2))
        match outcome:
            case muster.Delivered(members):
                assert had >= 1, (room, data)
                assert members == had or (room, data) in told.unsure, (room, data, members, had)
            case muster.NoMember():  # the members' gateway died, perhaps after it had told them
                assert (room, data) in told.unsure, (room, data, had)


@contextlib.asynccontextmanager
async def killed(instance: Instance, name: str) -> AsyncIterator[None]:
    """SIGKILL, and back at the end."""
    dead = instance.kill(name)
    yield
    await instance.back(name, dead)


@pytest.mark.parametrize("strike", [killed, Instance.stopped], ids=["killed", "stopped"])
async def test_with_one_of_three_proxies_gone_no_command_waits_until_that_is_found(
    make: Make, figures: Callable[..., None], strike: Callable[..., contextlib.AbstractAsyncContextManager[None]]
) -> None:
    instance, proxies = make(up=APART | NODES | {"proxies": 3}, proxy=AT_ONCE), ("proxy", "proxy-1", "proxy-2")
    told, joined, expired = Receipts(), asyncio.Barrier(2), list[int]()
    with instance.running():
        async with asyncio.TaskGroup() as tasks, contextlib.AsyncExitStack() as stack:
            member = tasks.create_task(told.member(instance, ROOM, 0, joined))
            await joined.wait()
            connects = [muster.connect(instance.folder.path, gateways=[]) for _ in range(SENDERS)]
            clients = [await stack.enter_async_context(client) for client in connects]

            async def all_send(words: str, expires: float) -> Outcomes:
                outcomes, data = Outcomes(), [f"{words} of {number}".encode() for number in range(SENDERS)]
                sending = zip(clients, data, strict=True)
                await asyncio.gather(*(command(client, ROOM, each, outcomes, expires) for client, each in sending))
                return outcomes

            def everywhere() -> bool:
                return all(instance.metrics(name)["sessions"] >= SENDERS for name in proxies)

            while 0 not in expired and len(expired) < ROUNDS:
                before = await all_send(f"before {len(expired)}", EXPIRES_S)
                assert set(before.values()) == {muster.Delivered(1)}
                await until_asked(everywhere)
                async with strike(instance, proxies[len(expired) % len(proxies)]):
                    meanwhile = await all_send(f"meanwhile {len(expired)}", SOON_S)
                for (_, data), outcome in meanwhile.items():
                    assert isinstance(outcome, muster.Delivered | muster.Expired), (data, outcome)
                    assert told.of[ROOM, 0, data] == 1 or isinstance(outcome, muster.Expired), (data, outcome)
                expired.append(sum(isinstance(outcome, muster.Expired) for outcome in meanwhile.values()))
            member.cancel()
    figures(expired=expired)
    assert set(told.of.values()) == {1}
    assert expired[-1] == 0, expired


def test_the_command_says_what_came_of_it(make: Make) -> None:
    instance = make()
    with instance.running():
        sub = instance.command("sub", "news", "--json", stdout=PIPE, stderr=PIPE)
        assert sub.stderr is not None
        assert sub.stdout is not None
        assert sub.stderr.readline() == b"joined news\n"
        command = instance.ran("command", "news", "half-time")
        assert (command.stdout, command.returncode) == (b"delivered to 1 member\n", 0)
        line = json.loads(sub.stdout.readline())
        assert (line["room"], line["data"], line["sender"]) == ("news", "half-time", 1)
        sub.terminate()
        sub.communicate(timeout=PATIENT_S)
        command = instance.ran("command", "empty", "anybody?", "--json")
        assert json.loads(command.stdout) == {"outcome": "no_member", "members": 0}
        assert command.returncode == 3
