"""Commands while one of two brokers stands still: it is found, left out and reported, and taken back."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable

import muster
from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.waiting import PATIENT_S, until

NODES = {"brokers": "1x2"}
ROOM = "live:health"
SENDERS = 8
MEANWHILE = 40
"""Commands that are sent and delivered while a broker stands still."""
EXPIRES_S = 20.0


class Flow:
    """Users that send commands one after the other, the outcome of each, and how often the member read it."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.outcomes: dict[bytes, muster.Outcome] = {}
        self.took_s: dict[bytes, float] = {}
        self.begun: dict[bytes, float] = {}
        self.told: Counter[bytes] = Counter()
        self.joined = asyncio.Event()
        self.over = False

    async def member(self) -> None:
        async with muster.connect(self.instance.folder.path, proxies=[]) as client, client.join(ROOM) as room:
            self.joined.set()
            async for item in room:
                assert isinstance(item, muster.Command), item
                self.told[item.data] += 1

    async def send(self, user: int) -> None:
        async with muster.connect(self.instance.folder.path, gateways=[]) as client:
            number = 0
            while not self.over:
                data = b"%d of %d" % (number, user)
                self.begun[data] = began = time.monotonic()
                try:
                    self.outcomes[data] = await client.command(ROOM, data, expires=EXPIRES_S)
                except muster.Refused as error:
                    if error.code != "rate_limited":
                        raise
                    await asyncio.sleep(0.2)
                    continue
                self.took_s[data] = time.monotonic() - began
                number += 1

    def done_since(self, begun: float) -> int:
        """Commands sent since then with a known outcome."""
        return sum(self.begun[data] >= begun for data in self.outcomes)


async def state(instance: Instance, name: str) -> tuple[bool, str | None]:
    """What `muster links` says of the proxy's way to this broker: whether there is a link, and why it is left out."""
    done = await asyncio.to_thread(instance.ran, "links", "--json", seconds=PATIENT_S)
    assert done.returncode in {0, 75}, done.stderr
    lines = {(line["sender"], line["receiver"]): line for line in json.loads(done.stdout)["links"]}
    line = lines["proxy", name]
    return line["up"], line["ejected"]


def left_out(instance: Instance, broker: int) -> str | None:
    """Why the proxy leaves out a broker with a link, if it does."""
    reasons: dict[int, str | None] = {link["node"]: link["ejected"] for link in instance.status("proxy")["links"]}
    return reasons.get(broker)


async def test_a_broker_that_stands_still_is_gone_round_by_commands_told_of_and_taken_back(
    make: Make, figures: Callable[..., None]
) -> None:
    instance = make(up=APART | NODES, registry={"session_ms": 60_000})
    with instance.running():
        flow = Flow(instance)
        async with asyncio.TaskGroup() as tasks:
            member = tasks.create_task(flow.member())
            await asyncio.wait_for(flow.joined.wait(), PATIENT_S)
            sending = [tasks.create_task(flow.send(user)) for user in range(SENDERS)]
            # Both are given commands, and have been judged.
            await until(lambda: all(given(instance, name) > 3 for name in ("broker", "broker-1")))
            before, broker = instance.metrics("proxy"), instance.process("broker-1").node
            async with instance.stopped("broker-1"):
                stopped = time.monotonic()
                await until(lambda: instance.metrics("proxy")["brokers_left_out"] == 1)
                found = time.monotonic()
                assert instance.metrics("proxy")["ejections_away"] > before["ejections_away"]
                await until(lambda: flow.done_since(stopped) >= MEANWHILE)
                assert not (await state(instance, "broker-1"))[0]
            goes_on = time.monotonic()
            await until(lambda: left_out(instance, broker) in {"away", "unanswered"})  # there, and not trusted yet
            await until(lambda: instance.metrics("proxy")["brokers_left_out"] == 0)
            back, had = time.monotonic(), given(instance, "broker-1")
            assert instance.metrics("proxy")["ejections_ended"] > before["ejections_ended"]
            assert await state(instance, "broker-1") == (True, None)
            await until(lambda: given(instance, "broker-1") > had + 5)
            flow.over = True
            await asyncio.gather(*sending)
            member.cancel()
    slow = [took for data, took in flow.took_s.items() if stopped <= flow.begun[data] < goes_on]
    figures(
        found_s=found - stopped, back_s=back - goes_on, slowest_s=max(slow), meanwhile=len(slow), all=len(flow.outcomes)
    )
    assert set(flow.outcomes.values()) == {muster.Delivered(1)}
    assert flow.told == dict.fromkeys(flow.outcomes, 1)


def given(instance: Instance, broker: str) -> float:
    """Commands that a broker was given."""
    return instance.metrics(broker)["commands_received"]
