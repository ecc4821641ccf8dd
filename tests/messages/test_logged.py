"""A schedule behind a log: it is made again from the log, here and on another machine, and the log stays short."""

import asyncio
from pathlib import Path

import pytest
import structlog

from muster.clock import now_ms
from muster_server.plane.log import connect
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.messages.logged import LoggedSchedule
from muster_server.systems.messages.schedule import EmbeddedSchedule, Reply, Schedule
from muster_server.systems.messages.shapes import EVER
from tests.kafka import Kafka
from tests.messages.conftest import HOUR_MS, SEGMENT_BYTES, Made
from tests.waiting import PATIENT_S, until

LEASE_MS = 60_000
WORKER = 5
STATES = ("scheduled", "firing", "done", "dead", "withdrawn")


async def all_of(schedule: Schedule) -> dict[int, Reply]:
    """Every message, by its number."""
    said = await schedule.find(None, 0, EVER, STATES, 1_000_000)
    ids = [message[0] for message, _ in said[1]]
    return dict(zip(ids, await schedule.get(ids), strict=True))


async def grown(made: Made, schedule: Schedule) -> None:
    """Messages in every state."""
    at = now_ms() + HOUR_MS
    await schedule.change([(7, "cancel", None, None)])
    await schedule.insert([(id, 1, at, at + 1_000, b"body %d" % id) for id in range(1, 8)])
    await schedule.change([(1, "cancel", None, None), (2, "due_by", None, 5_000)])
    await schedule.insert([(id, 2, now_ms(), None, b"fires %d" % id) for id in range(10, 15)])
    schedule.serve(2, WORKER, LEASE_MS, 9, 5)
    await until(lambda: len(made.fires) == 5)
    claims = {fire.number: fire.claim for _, fire in made.taken()}
    await schedule.change(
        [
            (10, "deliver", claims[10], None),
            (11, "fail", claims[11], at),
            (12, "fail", claims[12], None),
            (13, "release", claims[13], at),
        ]
    )


def elsewhere(url: str, folder: Path, fires: list[bytes]) -> LoggedSchedule:
    """A center with the log and an empty folder."""
    inside = EmbeddedSchedule(folder, lambda _, some: fires.append(some), segment_bytes=SEGMENT_BYTES)
    logs = connect(url, folder)
    return LoggedSchedule(inside, logs, "messages", structlog.get_logger(), ahead_ms=HOUR_MS)


async def test_a_center_on_another_machine_has_all_that_was_answered_and_the_former_one_is_fenced(
    kafka: Kafka, tmp_path: Path
) -> None:
    made = Made("embedded", tmp_path, None)
    first = elsewhere(kafka.url, tmp_path / "first", [])
    first.on_fires = made.fired
    await first.open()
    await grown(made, first)
    before = await all_of(first)
    assert len(before) == 12
    fires: list[bytes] = []
    second = elsewhere(kafka.url, tmp_path / "second", fires)
    await second.open()
    assert await all_of(second) == before
    with pytest.raises(StoreError, match="belongs to the owner"):
        await first.change([(3, "cancel", None, None)])
    assert first.failed.is_set()
    # A claim that was won there still counts here.
    (found,) = await second.get([14])
    assert found[1][5] == "firing"
    assert (await second.change([(14, "deliver", found[1][1], None)]))[0][2] == "delivered"
    assert not fires
    await first.close()
    await second.close()
    # The first machine comes back with its old folder.
    third = elsewhere(kafka.url, tmp_path / "first", fires)
    await third.open()
    after = await all_of(third)
    assert after[14][1][5] == "done"
    assert after[3][1][5] == "scheduled", "a change that was not answered may have happened or not"
    await third.close()


async def test_a_kafka_that_dies_ends_the_schedule_and_what_was_answered_is_there_again(
    kafka: Kafka, tmp_path: Path
) -> None:
    schedule = elsewhere(kafka.url, tmp_path / "one", [])
    await schedule.open()
    at = now_ms() + HOUR_MS
    assert (await schedule.insert([(1, 1, at, None, b"")]))[0][0] == "inserted"
    await asyncio.to_thread(kafka.kill)
    asking = asyncio.create_task(schedule.insert([(2, 1, at, None, b"")]))
    await asyncio.sleep(0.5)
    assert not asking.done(), "no answer before the log has it"
    kafka.start()
    await kafka.ready()
    assert (await asking)[0][0] == "inserted"
    await schedule.close()


async def test_a_schedule_that_was_there_before_its_log_is_brought_into_it(tmp_path: Path) -> None:
    made = Made("embedded", tmp_path, None)
    schedule = await made.open()
    await grown(made, schedule)
    before = await all_of(schedule)
    await made.close(schedule)
    logged = Made("embedded, logged", tmp_path, None)
    schedule = await logged.open()
    assert await all_of(schedule) == before
    await logged.close(schedule)
    other = LoggedSchedule(
        EmbeddedSchedule(tmp_path / "other", lambda *_: None, segment_bytes=SEGMENT_BYTES),
        connect("", tmp_path / "log"),
        "messages",
        structlog.get_logger(),
        ahead_ms=HOUR_MS,
    )
    await other.open()
    assert await all_of(other) == before
    await other.close()


@pytest.mark.parametrize("kind", ["embedded, logged", "redis, logged"])
async def test_the_log_stays_short_and_still_has_all(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    redis = request.getfixturevalue("redis_of_the_run") if "redis" in kind else None
    made = Made(kind, tmp_path, redis)
    made.records_min = 100
    schedule = await made.open()
    await grown(made, schedule)
    before = await all_of(schedule)
    asked = [(99, "cancel", None, None)]
    assert await schedule.change(asked) == [("ahead", True, None, 0, "exact")]
    # Many changes of a few messages.
    for number in range(400):
        await schedule.change([(3, "due_by", None, 1), (4, "due_by", None, 1 if number % 2 else -1)])
    async with asyncio.timeout(PATIENT_S):
        while (await schedule.stats())["log_records"] > 200:  # noqa: ASYNC110 - it is shortened each second
            await asyncio.sleep(0.1)
    assert (await schedule.stats())["log_carried"] > 0
    now = await all_of(schedule)
    assert now.keys() == before.keys()
    await made.close(schedule)
    other = LoggedSchedule(
        EmbeddedSchedule(tmp_path / "other", lambda *_: None, segment_bytes=SEGMENT_BYTES),
        connect("", tmp_path / "log"),
        "messages",
        structlog.get_logger(),
        ahead_ms=HOUR_MS,
    )
    await other.open()
    assert await all_of(other) == now
    at = now_ms() + HOUR_MS
    assert (await other.insert([(99, 1, at, None, b"")]))[0][1][5] == "cancelled", "what was asked ahead is carried too"
    await other.close()
