"""A center on a disk that fills and is freed: `python -m tests.messages.full FOLDER`. Prints what it saw."""

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path

from muster.clock import now_ms
from muster_server.systems.messages.shapes import Result
from tests.messages.test_center import World, sent, taken
from tests.waiting import PATIENT_S, until

BODY = b"x" * 4_096
AT_ONCE = 200
LATER_MS = 3_600_000


def fill(file: Path) -> None:
    """Until nothing more fits."""
    with file.open("wb", buffering=0) as stream:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    stream.write(b"x" * size)


async def run(folder: Path) -> dict[str, object]:
    world = World(folder)
    await world.schedule.open()
    world.answers.open()
    topic, session = world.topic(), world.worker(1)
    await world.send(topic, 5)
    await until(lambda: len(sent(session)) == 5)
    fires = taken(session)
    filler = folder / "filler"
    fill(filler)
    accepted, refused = 0, ""
    while not refused:
        some: list[tuple[int, int, int, int | None, bytes]] = [
            (next(world.numbers), topic, now_ms() + LATER_MS, None, BODY) for _ in range(AT_ONCE)
        ]
        replies = await world.insert(some)
        accepted += sum(reply[0] == "inserted" for reply in replies)
        refused = next((reply[0] for reply in replies if reply[0] != "inserted"), "")
    results = [Result(each.number, topic, each.claim, "deliver", None, 1, 1.0) for each in fires]
    kept = await world.results(session, results)
    dead = [Result(fires[0].number, topic, fires[0].claim, "fail", None, 1, 1.0, "refused", 500, b"x" * 2_000)]
    died = await world.results(session, dead) if not all(kept) else [False]
    os.remove(filler)
    again: list[bool] = []
    async with asyncio.timeout(PATIENT_S):
        while not again or not all(again):
            again = await world.results(session, results)
            await asyncio.sleep(0.01)
        more = ""
        while more != "inserted":
            ((more, *_),) = await world.insert([(1 << 40, topic, now_ms() + LATER_MS, None, BODY)])
    found = await world.schedule.get([each.number for each in fires])
    said = await world.schedule.find(topic, 0, 1 << 62, ["scheduled"], 0)
    await world.center.close()
    await world.schedule.close()
    return {
        "refused": refused,
        "accepted": accepted,
        "waiting": len(said[2]) - 1,
        "kept": kept,
        "died": died,
        "states": [each[1][5] for each in found],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(Path(sys.argv[1])))))
