"""The age of real messages, as real processes report it: each counts once at each hop, and a slow link is seen."""

import asyncio
import json
from typing import Any

import muster
from tests.faults.conftest import Make
from tests.faults.instance import Instance
from tests.waiting import until

MESSAGES = 40


async def told(instance: Instance) -> list[dict[str, Any]]:
    """What `muster links` says of real messages."""
    done = await asyncio.to_thread(instance.ran, "links", "--json", seconds=60)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["messages"]
    return found


async def published(instance: Instance) -> None:
    """Messages one by one, each acknowledged, to a member that then has all of them."""
    had = 0
    async with (
        muster.connect(instance.folder.path, timeout=60) as client,
        client.join("live:ages") as room,
    ):
        for number in range(MESSAGES):
            await client.publish("live:ages", f"{number}".encode())
        async with asyncio.timeout(60):
            async for _ in room:
                had += 1
                if had == MESSAGES:
                    return


def seen(instance: Instance, role: str) -> list[int]:
    """The number of ages of a node, by the node before it."""
    return [int(each["buckets"][-1][1]) for each in instance.status(role)["ages"]]


async def test_each_message_is_counted_once_where_all_tell_their_age(make: Make) -> None:
    instance = make(proxy={"age_every": 1})
    with instance.running():
        await published(instance)
        # A repeated message counts only at the proxy: a broker numbers it once and a gateway places it once.
        await until(lambda: seen(instance, "broker") == seen(instance, "gateway") == [MESSAGES], 60)
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
        await published(instance)
        lines = {(line["sender"], line["receiver"]): line for line in await told(instance)}
        # Half of the round trip: the way there takes 100 ms, the way back nothing.
        assert lines["broker", "gateway"]["p50_ms"] >= 50
        assert lines["broker", "gateway"]["p50_ms"] >= lines["proxy", "broker"]["p50_ms"] + 25
    instance = make(proxy={"age_every": 0})
    with instance.running():
        await published(instance)
        assert seen(instance, "broker") == seen(instance, "gateway") == [0]
