"""A running edge: another write interval by SIGHUP, and a drain that sends its clients away slice by slice."""

import asyncio
import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any, Final

import muster
from tests.edge import sdks
from tests.edge.role import Role
from tests.edge.watcher import Watcher, watching
from tests.faults.instance import APART, Instance, configuration
from tests.waiting import PATIENT_S, until

ROOM: Final = "operation:one"
USUAL: Final[dict[str, dict[str, Any]]] = {"database": {"url": "none"}, "probes": {"every_ms": 0}}
INTERVAL_MS: Final = 1_000
CROWD: Final = 60
DRAIN_S: Final = 4.0
ROUNDS: Final = 3


def serving(instance: Instance) -> Role:
    return Role(instance, json.loads(instance.ran("status", "--json").stdout)["systems"]["edge"]["url"])


async def seconds_of(client: muster.Client, watcher: Watcher, numbers: range) -> float:
    """The time of messages of which each is published once the one before has come."""
    began = time.monotonic()
    for number in numbers:
        await client.publish(ROOM, b"%d" % number)
        await watcher.until(lambda number=number: number in watcher.seen(ROOM))
    return time.monotonic() - began


async def test_a_running_edge_takes_another_write_interval(tmp_path: Path) -> None:
    sdks.need("js")
    slow = configuration(**USUAL, edge={"write_interval_ms": INTERVAL_MS})
    instance = Instance(tmp_path, slow)
    with instance.running("--with", "edge") as up:
        edge = serving(instance)
        async with (
            asyncio.timeout(PATIENT_S),
            watching(edge.url, edge.token(7), [ROOM]) as watcher,
            muster.connect(instance.folder.path, gateways=[]) as client,
        ):
            before = await seconds_of(client, watcher, range(5))
            assert before >= 3 * INTERVAL_MS / 1_000, "each but the first waits for the interval"
            instance.config.write_text(configuration(**USUAL, edge={"write_interval_ms": 0}))
            up.send_signal(signal.SIGHUP)
            await until(lambda: "edge.write_interval_ms" in instance.log.read_text(), PATIENT_S)
            last = 5
            while await seconds_of(client, watcher, range(last, last + 4)) > before / 2:
                last += 4  # the node has not taken it yet


async def ends_of_a_drain(instance: Instance, program: Path) -> list[dict[str, Any]]:
    """The ends of a crowd's connections, as its clients were told, in the order in which they came."""
    pipe = asyncio.subprocess.PIPE
    with instance.running("--with", "edge"):
        edge = serving(instance)
        crowd = await asyncio.create_subprocess_exec(
            "node", str(program), edge.url, edge.token(7), str(CROWD), stdin=pipe, stdout=pipe
        )
        assert crowd.stdout is not None
        assert crowd.stdin is not None
        try:
            async with asyncio.timeout(PATIENT_S):
                assert await crowd.stdout.readline() == b"ready\n"
                (node,) = instance.names("edge")
                instance.terminate(node)
                return [json.loads(await crowd.stdout.readline()) for _ in range(CROWD)]
        finally:
            crowd.stdin.close()
            await crowd.wait()


async def test_a_drain_sends_clients_away_in_slices(tmp_path: Path) -> None:
    sdks.need("js")
    program = sdks.SDKS / "js" / "crowd.mjs"  # it finds its packages beside itself
    shutil.copyfile(sdks.PROGRAMS / "js" / "crowd.mjs", program)
    bunch = CROWD
    for number in range(ROUNDS):  # a machine that stands still for a second makes a bunch of its own
        folder = tmp_path / str(number)
        folder.mkdir()
        instance = Instance(folder, configuration(**USUAL, up=APART, edge={"drain_s": DRAIN_S}))
        ends = await ends_of_a_drain(instance, program)
        assert {end["code"] for end in ends} == {3001}
        times = [end["ms"] for end in ends]
        assert times[-1] >= DRAIN_S * 1_000 / 2, "over the whole time"
        bunch = min(bunch, max(sum(start <= ms < start + 250 for ms in times) for start in times))
        if bunch <= CROWD / 3:
            return
    raise AssertionError(f"{bunch} of {CROWD} clients went within 250 ms")
