"""The cost of acknowledged publishing: the library's three ways to publish, side by side.

The room has no members, so there is no cost of deliveries. The CPU is that of proxy and broker, and of this process,
which publishes. Each run ends when everything published is acknowledged.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import uvloop

import muster
from bench import pin
from bench.muster import PACED, Instance
from bench.report import Case
from bench.rounds import Entry, Results, Sample

AT_ONCE = 64
RATE, SERVERS, PUBLISHER = "messages/s", "server CPU ns each", "publisher CPU ns each"

Publish = Callable[[muster.Client, str, bytes, float], Awaitable[int]]


async def _one_by_one(client: muster.Client, room: str, body: bytes, until: float) -> int:
    count = 0
    while time.monotonic() < until:
        await client.publish(room, body)
        count += 1
    return count


async def _many_at_once(client: muster.Client, room: str, body: bytes, until: float) -> int:
    counts = await asyncio.gather(*(_one_by_one(client, room, body, until) for _ in range(AT_ONCE)))
    return sum(counts)


async def _unawaited(client: muster.Client, room: str, body: bytes, until: float) -> int:
    count = 0
    while time.monotonic() < until:
        if client.publish_nowait(room, body):
            count += 1
        else:
            await client.writable(room)
    await client.flush()
    return count


WAYS: dict[str, Publish] = {
    "publish_nowait": _unawaited,
    f"publish, {AT_ONCE} awaited at once": _many_at_once,
    "publish, one after the other": _one_by_one,
}


def entries(instance: Instance, payload_bytes: int, seconds: float) -> list[Entry]:
    def entry(name: str, publish: Publish) -> Entry:
        def once() -> Sample:
            with pin.on(pin.DRIVER_CORE):
                return uvloop.run(_sample(instance, publish, bytes(payload_bytes), seconds))

        return Entry(name, once)

    return [entry(name, publish) for name, publish in WAYS.items()]


async def _sample(instance: Instance, publish: Publish, body: bytes, seconds: float) -> Sample:
    room = instance.room(PACED)
    async with muster.connect(instance.folder, gateways=[]) as client:
        await client.publish(room, body)
        servers, own, began = sum(instance.cpu_ns().values()), time.process_time_ns(), time.monotonic()
        count = await publish(client, room, body, began + seconds)
        taken = time.monotonic() - began
        own = time.process_time_ns() - own
        servers = sum(instance.cpu_ns().values()) - servers
    return Sample({RATE: count / taken, SERVERS: servers / count, PUBLISHER: own / count})


def cases(results: Results) -> Iterator[Case]:
    """Compares each way with the one that waits for nothing."""
    first, *others = WAYS
    for figure in (RATE, SERVERS, PUBLISHER):
        yield Case.plain(f"{first}, {figure}", results.series(first, figure))
        for name in others:
            yield Case.compared(
                f"{name}, {figure} over {first}", results.series(name, figure), results.series(first, figure)
            )
