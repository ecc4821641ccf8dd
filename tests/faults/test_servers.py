"""Clients with one given gateway learn the other servers from it, and go on without it."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

import muster
from muster.instance import find
from tests import strikes
from tests.faults.conftest import Make
from tests.faults.instance import APART, reach
from tests.faults.ledger import Ledger
from tests.waiting import PATIENT_S, until, until_asked

NODES = {"gateways": 2, "brokers": "1x1", "routers": "1x1", "proxies": 2}
ROOMS = [f"room-{number}" for number in range(6)]
RATE = 200.0


@pytest.mark.parametrize("registry", ["none", "embedded"])
async def test_clients_that_know_one_gateway_go_on_at_the_other_when_that_dies(
    make: Make, figures: Callable[..., None], registry: str
) -> None:
    instance, ledger = make(up=APART | NODES), Ledger(ROOMS, rate=RATE)
    with instance.running("--registry", registry) as up:
        token, known = find(instance.folder.path).token, [reach(instance.record().gateways[0])]
        async with (
            ledger.members(None, 6, known, token),
            muster.connect(gateways=known, token=token, timeout=PATIENT_S) as client,
            asyncio.TaskGroup() as tasks,
        ):
            publishing = tasks.create_task(ledger.publish_steadily(client, 1, 100))
            await until(partial(ledger.reached, ledger.mark()), PATIENT_S)
            before = {name: instance.metrics(name)["sessions"] for name in instance.names("gateway", "proxy")}
            with strikes.standing_still(up.pid):  # which would start it again
                instance.kill("gateway")
                await until(partial(ledger.reached, ledger.mark()), PATIENT_S)
                assert await client.command("elsewhere", b"go", expires=30) == muster.NoMember()
                # The client without a room finds out last.
                await until_asked(lambda: instance.metrics("gateway-1")["sessions"] >= 7, PATIENT_S)
                after = instance.metrics("gateway-1")["sessions"]
            ledger.stop.set()
            await publishing
            await ledger.settle()
    figures(registry=registry, before=before, after=after, gaps=dict(ledger.gaps()))
    ledger.check()
