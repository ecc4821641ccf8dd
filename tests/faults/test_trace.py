"""`muster trace` over real processes: owner and gateways of a room, times by each of them, and silent nodes."""

import asyncio
import json
from typing import Any

import muster
from tests.faults.conftest import Make
from tests.faults.instance import APART, Instance
from tests.waiting import PATIENT_S

ROOM = "live:final"
NODES = {"gateways": 2, "brokers": "2x1", "proxies": 2}


async def trace(instance: Instance, *words: str) -> tuple[int, dict[str, Any]]:
    """`muster trace` with these words: its exit code, and what it says."""
    done = await asyncio.to_thread(instance.ran, "trace", ROOM, "--json", *words, seconds=PATIENT_S)
    assert done.returncode in {0, 75}, done.stderr
    return done.returncode, json.loads(done.stdout)


def timed(said: list[dict[str, Any]]) -> dict[str, bool]:
    """The nodes that answered in time."""
    return {each["node"]: each["ms"] is not None and each["ms"] > 0 for each in said}


async def test_a_trace_names_who_numbers_and_who_wants_a_room_and_times_every_way(make: Make) -> None:
    instance = make(up=NODES)
    with instance.running():
        async with muster.connect(instance.folder.path) as client, client.join(ROOM) as room:
            code, quiet = await trace(instance, "--wait", "60")
            assert (code, quiet["acknowledged"], quiet["delivered"], quiet["members"]) == (0, None, [], 1)
            assert timed(quiet["asked"]) == {"proxy": True, "proxy-1": True}
            assert len(quiet["gateways"]) == 1
            for asked in quiet["asked"]:
                asks = [(hop["asked_by"], hop["node"]) for hop in asked["hops"]]
                broker = asks[0][1]
                assert broker.startswith("broker")
                assert asks == [(asked["node"], broker), *((broker, name) for name in quiet["gateways"])]
                times = [asked["ms"], *(hop["ms"] for hop in asked["hops"])]
                assert times == sorted(times, reverse=True), "who asks waits for whom it asks"
                assert times[-1] > 0
            code, said = await trace(instance, "--message", "hello", "--wait", "60")
            items = [item async for item in _first(room)]
            assert [item.data for item in items] == [b"hello"], "members see what is published, and nothing before it"
    assert code == 0
    assert said["owner"] in {"broker", "broker-1"}
    assert timed([said["acknowledged"]]) == {"proxy": True}
    assert timed(said["delivered"]) == {"gateway": True, "gateway-1": True}
    assert (said["gateways"], said["members"]) == (["gateway", "gateway-1"], 3)
    hops = {(hop["sender"], hop["receiver"]) for hop in said["hops"]}
    owner = said["owner"]
    for other in ("proxy", "proxy-1", "gateway", "gateway-1"):
        assert {(other, owner), (owner, other)} <= hops
    assert ("gateway", "router") in hops


async def _first(room: muster.Room) -> Any:
    async for batch in room.batches():
        for item in batch:
            yield item
        return


async def test_a_gateway_that_stands_still_is_named_and_the_others_are_timed(make: Make) -> None:
    instance = make(up=APART | NODES)
    with instance.running():
        async with instance.stopped("gateway-1"):
            code, said = await trace(instance, "--message", "hello", "--wait", "1")
    assert code == 75
    assert timed(said["delivered"])["gateway-1"] is False
