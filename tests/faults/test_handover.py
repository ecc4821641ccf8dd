"""A node that clients connect to must end under load: it sends them to others, and they lose nothing."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

import muster
from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.faults.ledger import Ledger
from tests.waiting import PATIENT_S, until

NODES = {"gateways": 2, "brokers": "2x1", "routers": "1x2", "proxies": 2}
ROOMS = [f"room-{number}" for number in range(12)]
RATE = 300.0


@pytest.mark.parametrize("registry", ["none", "embedded"])
async def test_gateways_and_proxies_that_end_hand_their_clients_over_without_a_loss_or_a_gap(
    make: Make, figures: Callable[..., None], registry: str
) -> None:
    instance, ledger = make(up=APART | NODES), Ledger(ROOMS, rate=RATE / 2)
    parted: dict[str, int] = {}
    with instance.running("--registry", registry):
        path = instance.folder.path
        async with (
            ledger.members(path, 4),
            ledger.members(path, 4, history=100),
            muster.connect(path, gateways=[], timeout=PATIENT_S) as one,
            muster.connect(path, gateways=[], timeout=PATIENT_S) as other,
            asyncio.TaskGroup() as tasks,
        ):
            publishing = [
                tasks.create_task(ledger.publish_steadily(client, number, 100))
                for number, client in enumerate((one, other), 1)
            ]
            for name in [*instance.names("gateway"), *instance.names("proxy")]:
                await until(partial(ledger.reached, ledger.mark()), PATIENT_S)
                parted[name] = int(instance.metrics(name)["sessions"])
                await instance.renew(name, Instance.terminate)
            await until(partial(ledger.reached, ledger.mark()), PATIENT_S)
            ledger.stop.set()
            await asyncio.gather(*publishing)
            await ledger.settle()
            lost = [client.stats()["sessions_lost"] for client in ledger.clients]
    figures(registry=registry, parted=parted, lost=lost, **ledger.load())
    ledger.check()
    assert not ledger.gaps()
    assert sum(lost) >= sum(parted[name] for name in parted if name.startswith("gateway")) > 0
    assert "not drained in time" not in instance.log.read_text()
