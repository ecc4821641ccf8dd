"""Results out: each ended run reaches its topic, over deaths of the lead and of the topic, and the topic takes it once."""

import asyncio
from typing import Any

import msgspec
import structlog

from muster_server.plane.ways import NotTaken
from muster_server.systems.fleet.leading import Leading
from muster_server.systems.fleet.outbox import PART_BYTES_MAX, messages
from muster_server.systems.fleet.questions import RunNow
from muster_server.systems.fleet.records import ResultRow, RunRow
from tests.fleet.test_scheduler import START, House
from tests.waiting import PATIENT_S, until


class Topic:
    """A topic that takes each id once, or refuses."""

    def __init__(self) -> None:
        self.taken: dict[str, dict[str, Any]] = {}
        self.puts = 0
        self.refusal: NotTaken | None = None
        self.forgets = False
        """It takes a message, and its answer is lost."""

    async def put(self, place: str, id: str, body: bytes, kind: str) -> None:
        self.puts += 1
        assert (place, kind) == ("measured", "application/json")
        assert len(body) <= PART_BYTES_MAX + 20_000
        if self.refusal is not None:
            raise self.refusal
        self.taken.setdefault(id, msgspec.json.decode(body))
        if self.forgets:
            raise NotTaken("the receiver does not answer")

    async def close(self) -> None:
        """Nothing is open."""


async def lead(house: House, topic: Topic) -> Leading:
    """One more scheduler takes over, with a way to the topic."""
    house.settings = msgspec.structs.replace(
        house.settings, fleet=msgspec.structs.replace(house.settings.fleet, results_topic="measured")
    )
    taken = None
    while taken is None:
        taken = await house.store.claim(await house.store.lead(), "me")
    nodes: Any = house.nodes
    link: Any = house.air.link
    made = Leading(taken, house.store, nodes, house.settings, link, structlog.get_logger(), topic)
    began = asyncio.Event()
    house.tasks.append(asyncio.create_task(made.work(began.set)))
    await asyncio.wait_for(began.wait(), PATIENT_S)
    return made


async def empty(house: House) -> None:
    async with asyncio.timeout(PATIENT_S):
        while (await house.store.outbox(1))[1]:  # noqa: ASYNC110 - it happens in a database
            await asyncio.sleep(0.02)


async def test_each_run_goes_out_with_its_results(house: House) -> None:
    topic = Topic()
    await house.add("each", 1)
    house.air.deaf.add("c0")
    leading = await lead(house, topic)
    await house.settled(START)
    house.clock.wall = (START + 1) * 60.0 + 1
    await house.settled(START + 1)
    run, queue = await leading.instant(RunNow("ping", "t", "", 1))
    leading.watching.close(run, queue)
    await until(lambda: len(topic.taken) == 2)
    await empty(house)
    said = topic.taken[f"fleet:each:{START + 1}:0"]
    assert {
        name: said[name] for name in ("run", "state", "wanted", "asked", "done", "replaced", "missed", "parts")
    } == {
        "run": f"each@{START + 1}",
        "state": "done",
        "wanted": 2,
        "asked": 3,
        "done": 2,
        "replaced": 1,
        "missed": 0,
        "parts": 1,
    }
    assert [(each["client"], each["ok"], each["value"], each["ms"]) for each in said["results"]] == [
        ("c1", True, 1, 1.0),
        ("c2", True, 1, 1.0),
    ]
    assert f"fleet:{run[0]}:0:0" in topic.taken


async def test_runs_wait_while_the_topic_takes_none_and_say_why(house: House) -> None:
    topic = Topic()
    topic.refusal = NotTaken("there is no topic measured", lasting=True)
    await house.add("each", 1)
    leading = await lead(house, topic)
    assert leading.outbox is not None
    await house.settled(START)
    for minute in range(START + 1, START + 4):
        house.clock.wall = minute * 60.0 + 1
        await house.settled(minute)
    outbox = leading.outbox
    await until(lambda: outbox.error != "" and outbox.waiting == 3)
    assert outbox.error == "topic measured refuses results: there is no topic measured"
    topic.refusal = None
    await until(lambda: len(topic.taken) == 3)
    await empty(house)
    await until(lambda: (outbox.error, outbox.waiting) == ("", 0))


async def test_a_lead_that_dies_loses_no_run_and_repeats_by_the_same_id(house: House) -> None:
    topic = Topic()
    topic.forgets = True
    await house.add("each", 1)
    await lead(house, topic)
    await house.settled(START)
    house.clock.wall = (START + 1) * 60.0 + 1
    await house.settled(START + 1)
    await until(lambda: topic.puts > 0)
    await house.kill()
    assert (await house.store.outbox(9))[0] == [("each", START + 1)]
    topic.forgets = False
    await lead(house, topic)
    await empty(house)
    assert list(topic.taken) == [f"fleet:each:{START + 1}:0"]
    assert topic.puts >= 2


async def test_a_run_that_is_missed_goes_out_too(house: House) -> None:
    topic = Topic()
    house.nodes.away = True
    await house.add("each", 1)
    await lead(house, topic)
    await house.settled(START)
    house.clock.wall = (START + 1) * 60.0 + 1
    await house.settled(START + 1)
    await until(lambda: len(topic.taken) == 1)
    (said,) = topic.taken.values()
    assert (said["state"], said["reason"], said["results"]) == ("missed", "no index node answers", [])


async def test_without_a_topic_nothing_waits(house: House) -> None:
    await house.add("each", 1)
    await house.lead()
    await house.settled(START)
    house.clock.wall = (START + 1) * 60.0 + 1
    await house.settled(START + 1)
    assert await house.store.outbox(9) == ([], 0)
    rows = await house.store.minutes_of("each", START, START + 1, None, 9, None)
    assert [(row.mark, row.results, row.p50) for row in rows] == [("", 2, 1.0)]


async def test_roll_ups_survive_a_lead_that_dies_in_the_middle_of_a_run(house: House) -> None:
    await house.add("each", 1)
    house.air.deaf.add("c1")
    await house.lead()
    await house.settled(START)
    house.clock.wall = (START + 1) * 60.0 + 1
    async with asyncio.timeout(PATIENT_S):
        while len(await house.store.results_of(("each", START + 1))) < 1:  # noqa: ASYNC110 - in a database
            await asyncio.sleep(0.01)
    await house.kill()
    house.air.deaf.clear()
    await house.lead()
    await house.settled(START + 1)
    (row,) = await house.store.minutes_of("each", START, START + 1, "", 9, None)
    account = await house.store.run("each", START + 1)
    assert account is not None
    assert (row.results, row.failed, row.missed) == (account.done, 0, account.missed)


def test_a_large_run_is_several_messages_of_which_each_result_is_in_one() -> None:
    row = RunRow(task="t", minute=3, kind="k", target="x", selector="", wanted=9, state="done")
    results = [
        ResultRow("t", 3, f"c{n:03}", n % 2 == 0, b'"' + b"x" * 16_000 + b'"', "e" * 1_000, n) for n in range(20)
    ]
    made = [msgspec.json.decode(each) for each in messages(row, results[::-1])]
    assert max(len(each) for each in messages(row, results)) <= 65_536
    assert [each["part"] for each in made] == list(range(len(made)))
    assert {each["parts"] for each in made} == {len(made)}
    assert [each["client"] for part in made for each in part["results"]] == [f"c{n:03}" for n in range(20)]
    assert messages(row, results) == messages(row, results[::-1]), "a repeat is the same messages"
    assert len(messages(row, [])) == 1
