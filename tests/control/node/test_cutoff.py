"""Gateways that are cut off: which of them send their clients away, when, and which must not."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog

from muster_server.control.node.cutoff import CutOff
from muster_server.control.node.enrolment import Enrolment
from muster_server.control.registry.directory import Directory
from tests.control.players import spec
from tests.fakes.memory import Memory
from tests.waiting import until

LOG = structlog.get_logger()


@dataclass
class Machine:
    """The part of an engine that is called."""

    cut: str | None = None
    lets_in: bool = True

    def cut_off(self) -> str | None:
        return self.cut

    def drain(self) -> None:
        self.lets_in = False

    def stay(self) -> None:
        self.lets_in = True


@dataclass
class Gateway:
    """A gateway in the registry, and its state for its clients."""

    enrolment: Enrolment
    engine: Machine = field(default_factory=Machine)
    ready: bool = True
    draining: bool = False

    @property
    def state(self) -> str:
        """As the map has it."""
        return str(self.enrolment.status()["state"])


Begin = Callable[..., Any]


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
async def begin(memory: Memory) -> AsyncIterator[Begin]:
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        tasks = []

        async def begun(number: int, dice: float = 0.0, role: str = "gateway", *, serves: bool = True) -> Gateway:
            directory = Directory(memory.tree(), LOG, spread_s=0.01, poll_s=60.0, hold_s=0.5)
            await stack.enter_async_context(directory)
            made = Enrolment(spec(number, role), directory, LOG)
            await made.begin()
            made.attach(lambda *placement: None, lambda: True)
            if serves:
                made.serve()
            gateway = Gateway(made, ready=serves)
            watch = CutOff(gateway, made, LOG, after_s=0.2, look_s=0.01, back_s=0.1, dice=lambda: dice)  # type: ignore[arg-type]
            tasks.append(group.create_task(watch.run()))
            return gateway

        yield begun
        for task in tasks:
            task.cancel()


async def all_know(gateways: list[Gateway], *states: str) -> None:
    def nodes() -> list[dict[str, str]]:
        return [gateway.enrolment.status()["nodes"] for gateway in gateways]

    wanted = {str(number): state for number, state in enumerate(states, 1)}
    await until(lambda: nodes() == [wanted] * len(gateways))


async def test_who_is_cut_off_sends_its_clients_to_others_until_it_reaches_all_again(begin: Begin) -> None:
    gateways = [await begin(number) for number in (1, 2)]
    await all_know(gateways, "running", "running")
    cut = gateways[0]
    cut.engine.cut = "no broker of partition 1 is linked"
    await until(lambda: not cut.engine.lets_in)
    assert cut.draining
    await all_know(gateways, "draining", "running")
    cut.engine.cut = None
    await until(lambda: cut.engine.lets_in)
    await all_know(gateways, "running", "running")
    assert not cut.draining
    assert gateways[1].engine.lets_in


async def test_at_least_half_of_them_keep_their_clients_however_many_are_cut_off(begin: Begin) -> None:
    gateways = [await begin(number, dice=number / 10) for number in (1, 2, 3, 4)]
    await all_know(gateways, *["running"] * 4)
    for gateway in gateways:
        gateway.engine.cut = "no router of partition 0 is linked"
    await until(lambda: sum(not gateway.engine.lets_in for gateway in gateways) == 2)
    away = [gateway for gateway in gateways if not gateway.engine.lets_in]
    await until(lambda: sum(gateway.state == "draining" for gateway in gateways) == 2)
    late = asyncio.get_running_loop().time() + 1.0
    while asyncio.get_running_loop().time() < late:
        assert [gateway for gateway in gateways if not gateway.engine.lets_in] == away
        await asyncio.sleep(0.02)


async def test_the_only_one_keeps_its_clients(begin: Begin) -> None:
    alone = await begin(1)
    alone.engine.cut = "no broker of partition 0 is linked"
    assert not alone.enrolment.can_be_spared()
    other = await begin(2)
    await until(lambda: not alone.engine.lets_in)
    assert other.engine.lets_in


async def test_without_the_registry_only_who_reaches_nobody_sends_its_clients_away(
    begin: Begin, memory: Memory
) -> None:
    gateways = [await begin(number) for number in (1, 2)]
    await all_know(gateways, "running", "running")
    memory.stop()
    await until(lambda: not any(gateway.enrolment.connected for gateway in gateways))
    cut = gateways[0]
    cut.engine.cut = "no broker of partition 1 is linked"
    late = asyncio.get_running_loop().time() + 0.5
    while asyncio.get_running_loop().time() < late:
        assert cut.engine.lets_in
        await asyncio.sleep(0.02)
    cut.ready = False
    await until(lambda: not cut.engine.lets_in)
    memory.start()
    await all_know(gateways, "draining", "running")


@pytest.mark.parametrize("role", ["gateway", "proxy"])
async def test_who_is_cut_off_while_it_starts_is_announced_once_it_serves_and_not_before(
    begin: Begin, role: str
) -> None:
    other = await begin(1, role=role)
    await until(lambda: other.state == "running")
    late = await begin(2, role=role, serves=False)
    late.engine.cut = "no broker of partition 0 is linked"
    await until(lambda: not late.engine.lets_in)
    late.engine.cut = None
    await until(lambda: late.engine.lets_in)
    before = {"gateway": {"1": "running", "2": "init"}, "proxy": {"1": "running"}}[role]
    for gateway in (other, late):
        await gateway.enrolment._directory.again()
    assert other.enrolment.status()["nodes"] == before
    late.ready = True
    late.enrolment.serve()
    await all_know([other, late], "running", "running")


async def test_who_begins_to_serve_while_it_is_cut_off_is_announced_as_draining(begin: Begin) -> None:
    other, late = await begin(1, role="proxy"), await begin(2, role="proxy", serves=False)
    late.engine.cut = "no broker of partition 0 is linked"
    await until(lambda: not late.engine.lets_in)
    late.enrolment.serve()
    await all_know([other, late], "running", "draining")
    late.engine.cut = None
    await all_know([other, late], "running", "running")
