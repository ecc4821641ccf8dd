"""The age of real messages, as real processes report it: each counts once at each hop, and a slow link is seen."""

import asyncio
import json
from typing import Any

import muster
from tests.faults.conftest import Make
from tests.faults.instance import Instance
from tests.waiting import PATIENT_S, until

MESSAGES = 40


async def told(instance: Instance) -> list[dict[str, Any]]:
    """What `muster links` says of real messages."""
    done = await asyncio.to_thread(instance.ran, "links", "--json", seconds=PATIENT_S)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["messages"]
    return found


async def published(instance: Instance) -> list[float | None]:
    """Messages one by one, each acknowledged, to two members that then have all of them.

    Returns their ages at the one that asks for ages; the other one gets none.
    """
    async with (
        muster.connect(instance.folder.path, timeout=PATIENT_S, ages=True) as client,
        muster.connect(instance.folder.path, timeout=PATIENT_S, proxies=()) as other,
        client.join("live:ages") as room,
        other.join("live:ages") as beside,
    ):
        for number in range(MESSAGES):
            await client.publish("live:ages", f"{number}".encode())
        async with asyncio.timeout(PATIENT_S):
            assert await taken(beside) == [None] * MESSAGES
            return await taken(room)


async def taken(room: muster.Room) -> list[float | None]:
    """The ages of all messages."""
    ages: list[float | None] = []
    async for item in room:
        assert isinstance(item, muster.Message)
        ages.append(item.age)
        if len(ages) == MESSAGES:
            break
    return ages


def seen(instance: Instance, role: str) -> list[int]:
    """The number of ages of a node, by the node before it."""
    return [int(each["buckets"][-1][1]) for each in instance.status(role)["ages"]]


async def test_each_message_is_counted_once_where_all_tell_their_age(make: Make) -> None:
    instance = make(proxy={"age_every": 1})
    with instance.running():
        ages = await published(instance)
        assert all(age is not None and 0 < age < 30 for age in ages), ages
        # A repeated message counts only at the proxy: a broker numbers it once and a gateway places it once.
        await until(lambda: seen(instance, "broker") == seen(instance, "gateway") == [MESSAGES])
        lines = {(line["sender"], line["receiver"]): line for line in await told(instance)}
        assert set(lines) == {("proxy", "broker"), ("broker", "gateway")}
        assert all(line["seen"] == MESSAGES and 0 < line["p50_ms"] <= line["p99_ms"] for line in lines.values())
        page = instance.get("gateway", "/metrics")
        counted = [line for line in page.splitlines() if line.startswith("muster_message_age_seconds_count{")]
        assert [float(line.rpartition(" ")[2]) for line in counted] == [MESSAGES]


async def test_a_link_that_delays_is_seen_and_where_it_is_off_nothing(make: Make) -> None:
    slow = {'faults__links__"broker->gateway"': {"delay_ms": 100}}
    instance = make(proxy={"age_every": 1}, **slow)
    with instance.running():
        ages = await published(instance)
        assert all(age is not None and age >= 0.05 for age in ages), ages
        lines = {(line["sender"], line["receiver"]): line for line in await told(instance)}
        # Half of the round trip: the way there takes 100 ms, the way back nothing.
        assert lines["broker", "gateway"]["p50_ms"] >= 50
        assert lines["broker", "gateway"]["p50_ms"] >= lines["proxy", "broker"]["p50_ms"] + 25
    instance = make(proxy={"age_every": 0})
    with instance.running():
        assert await published(instance) == [None] * MESSAGES
        assert seen(instance, "broker") == seen(instance, "gateway") == [0]
