"""Messages with a key over a real schedule in a folder: one after another, through failures, cancels and a new center."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from muster.clock import now_ms
from muster_server.systems.messages.center import Session
from muster_server.systems.messages.shapes import Envelope, Fire, Result
from muster_server.systems.messages.topics import NewTopic, TopicChange
from tests.messages.test_center import HELD_MAX, World, taken
from tests.waiting import PATIENT_S, until

FAR_MS = 3_600_000
CLAIM_S = 60.0
"""A claim of a former center holds for as long, however slow the test is."""


class Keyed(World):
    """A center with one topic, whose messages have keys."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.keys: dict[int, str] = {}
        self.begun: dict[str, list[int]] = defaultdict(list)
        """Numbers by key, in the order of their first attempts."""
        self.open: dict[str, set[int]] = defaultdict(set)

    def after(self, former: "Keyed") -> "Keyed":
        """It goes on from another one."""
        self.keys, self.begun, self.open, self.numbers = former.keys, former.begun, former.open, former.numbers
        return self

    async def put(self, topic: int, key: str, due_at: int = 0) -> int:
        number = next(self.numbers)
        self.keys[number] = key
        body = Envelope(str(number), "", "text/plain", 0, b"", key).packed()
        (reply,) = await self.insert([(number, topic, due_at or now_ms(), None, body)])
        assert reply[0] == "inserted"
        return number

    def fires(self, *sessions: Session, at_once: int = 1) -> list[tuple[Session, Fire]]:
        """What the workers got: of a key, no more than this many are open."""
        found = [(session, fire) for session in sessions for fire in taken(session)]
        for _, fire in found:
            key = self.keys[fire.number]
            self.open[key].add(fire.number)
            assert len(self.open[key]) <= at_once, f"key {key}: {self.open[key]}"
            if fire.number not in self.begun[key]:
                self.begun[key].append(fire.number)
        return found

    async def say(self, session: Session, fire: Fire, verb: Any, following: int | None = None) -> None:
        result = Result(fire.number, fire.topic, fire.claim, verb, following, -1, 1.0, "failed", 500, b"no")
        assert await self.results(session, [result]) == [True]
        if verb == "deliver" or (verb == "fail" and following is None):
            self.open[self.keys[fire.number]].discard(fire.number)

    async def change(self, topic: int, number: int, verb: str, time: int | None = None) -> None:
        (reply,) = await self.center.change(topic, [(number, verb, None, time)])
        assert reply[0] == "changed", reply


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Keyed]:
    made = Keyed(tmp_path)
    await made.schedule.open()
    made.answers.open()
    yield made
    await made.center.close()
    await made.schedule.close()


async def quiet(world: Keyed, *sessions: Session) -> None:
    """Nothing comes any more."""
    for _ in range(5):
        await world.schedule.stats()
        world.center.sweep()
    assert not any(session.outbox for session in sessions)


async def test_messages_of_a_key_go_one_after_another_whatever_fails(world: Keyed) -> None:
    dice = random.Random(7)
    topic, sessions = world.topic(per_key=1), [world.worker(node) for node in (1, 2, 3)]
    at = now_ms()
    wanted: dict[str, list[int]] = defaultdict(list)
    for _ in range(20):
        for key in ("a", "b", "c"):
            wanted[key].append(await world.put(topic, key, at))
    done = 0
    while done < 60:
        await until(lambda: any(session.outbox for session in sessions))
        for session, fire in world.fires(*sessions):
            chance = dice.random()
            if chance < 0.6:
                await world.say(session, fire, "deliver")
                done += 1
            else:
                await world.say(session, fire, "fail" if chance < 0.8 else "release", now_ms())
    assert world.begun == wanted
    assert world.center.ordering.waiting == 0


async def test_a_message_in_retry_holds_up_its_key_alone(world: Keyed) -> None:
    topic, session = world.topic(per_key=1), world.worker(1)
    first, second = await world.put(topic, "a"), await world.put(topic, "a")
    await until(lambda: session.outbox)
    ((_, fire),) = world.fires(session)
    await world.say(session, fire, "fail", now_ms() + FAR_MS)
    other = await world.put(topic, "b")
    await until(lambda: session.outbox)
    assert [each.number for _, each in world.fires(session)] == [other]
    await quiet(world, session)
    assert world.center.ordering.waiting == 1
    await world.change(topic, first, "cancel")
    world.open["a"].clear()
    await until(lambda: session.outbox)
    assert [each.number for _, each in world.fires(session)] == [second]


async def test_one_that_waits_can_be_cancelled_and_is_passed_over(world: Keyed) -> None:
    topic, session = world.topic(per_key=1), world.worker(1)
    numbers = [await world.put(topic, "a") for _ in range(3)]
    await until(lambda: session.outbox and world.center.ordering.waiting == 2)
    ((_, fire),) = world.fires(session)
    await until(lambda: not world.center.ordering._parking)
    await world.change(topic, numbers[1], "cancel")
    await world.say(session, fire, "deliver")
    await until(lambda: session.outbox)
    assert [each.number for _, each in world.fires(session)] == [numbers[2]]


@pytest.mark.parametrize("stops", [False, True])
async def test_a_dead_letter_is_passed_over_or_stops_its_key(world: Keyed, stops: bool) -> None:
    topic, session = world.topic(per_key=1, dead_stops_key=stops), world.worker(1)
    first, second = await world.put(topic, "a"), await world.put(topic, "a")
    await until(lambda: session.outbox)
    ((_, fire),) = world.fires(session)
    await world.say(session, fire, "fail")
    if not stops:
        await until(lambda: session.outbox)
        assert [each.number for _, each in world.fires(session)] == [second]
        return
    await quiet(world, session)
    await world.change(topic, first, "replay", now_ms())
    await until(lambda: session.outbox)
    ((_, fire),) = world.fires(session)
    assert fire.number == first
    await world.say(session, fire, "fail")
    await quiet(world, session)
    await world.change(topic, first, "drop")
    await until(lambda: session.outbox)
    assert [each.number for _, each in world.fires(session)] == [second]


async def got(world: Keyed, session: Session, count: int) -> dict[int, Fire]:
    """The next fires, by number."""
    found: dict[int, Fire] = {}

    def there() -> bool:
        found.update((fire.number, fire) for _, fire in world.fires(session))
        return len(found) >= count

    await until(there)
    assert len(found) == count
    return found


@pytest.mark.parametrize("stops", [False, True])
async def test_a_new_center_knows_which_messages_are_open(tmp_path: Path, stops: bool) -> None:
    world = Keyed(tmp_path)
    await world.schedule.open()
    world.answers.open()
    settings = {"per_key": 1, "dead_stops_key": stops, "timeout_s": CLAIM_S}
    topic, session = world.topic(**settings), world.worker(1)
    retried = [await world.put(topic, "a") for _ in range(3)]
    dead = [await world.put(topic, "b") for _ in range(2)]
    under_way = [await world.put(topic, "c") for _ in range(2)]
    fires = await got(world, session, 3)
    assert set(fires) == {retried[0], dead[0], under_way[0]}
    await until(lambda: world.center.ordering.waiting == 4)
    await world.say(session, fires[retried[0]], "fail", now_ms() + FAR_MS)
    await world.say(session, fires[dead[0]], "fail")
    await world.center.close()
    await world.schedule.close()

    world = Keyed(tmp_path).after(world)
    await world.schedule.open()
    world.answers.open()
    assert world.topic(**settings) == topic
    session = world.worker(1)
    late = [await world.put(topic, key) for key in ("a", "c")]
    if stops:
        await world.change(topic, dead[0], "drop")
    fires = await got(world, session, 1)
    assert set(fires) == {dead[1]}
    await quiet(world, session)
    assert world.center.ordering.waiting == 5
    # Its worker says now what came of the former center's claim.
    result = Result(under_way[0], topic, 2, "deliver", None, 1, 1.0)
    assert await world.results(session, [result]) == [True]
    world.open["c"].clear()
    assert set(await got(world, session, 1)) == {under_way[1]}
    await world.change(topic, retried[0], "sooner", now_ms())
    fires = await got(world, session, 1)
    for number in (*retried, late[0]):
        assert set(fires) == {number}
        await world.say(session, fires[number], "deliver")
        if number != late[0]:
            fires = await got(world, session, 1)
    await world.center.close()
    await world.schedule.close()


async def test_a_message_that_ends_while_the_lanes_are_read_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Keyed(tmp_path)
    await world.schedule.open()
    world.answers.open()
    settings = {"per_key": 1, "dead_stops_key": True}
    topic, session = world.topic(**settings), world.worker(1)
    dead, following = await world.put(topic, "a"), await world.put(topic, "a")
    await world.say(session, (await got(world, session, 1))[dead], "fail")
    await world.center.close()
    await world.schedule.close()

    world = Keyed(tmp_path).after(world)
    await world.schedule.open()
    world.answers.open()
    get, dropped = world.schedule.get, list[int]()

    async def dropped_first(numbers: Sequence[int]) -> Any:
        if dead in numbers and not dropped:
            dropped.append(dead)
            await world.change(topic, dead, "drop")
        return await get(numbers)

    monkeypatch.setattr(world.schedule, "get", dropped_first)
    assert world.topic(**settings) == topic
    assert set(await got(world, world.worker(1), 1)) == {following}
    assert dropped == [dead]
    await world.center.close()
    await world.schedule.close()


async def test_a_few_messages_of_a_key_may_be_open_at_once(world: Keyed) -> None:
    topic, session = world.topic(per_key=2), world.worker(1)
    numbers = [await world.put(topic, "a") for _ in range(5)]

    def two() -> bool:
        world.fires(session, at_once=2)
        return len(world.begun["a"]) == 2

    await until(two)
    await until(lambda: world.center.ordering.waiting == 3)
    await quiet(world, session)
    assert world.begun["a"] == numbers[:2]
    await until(lambda: not world.center.ordering._parking)
    world.topics.change("orders", TopicChange(per_key=3), now_ms())
    world.center.topics_changed()
    await until(lambda: session.outbox)
    world.fires(session, at_once=3)
    assert world.begun["a"] == numbers[:3]
    world.topics.change("orders", TopicChange(per_key=0), now_ms())
    world.center.topics_changed()

    def all_begun() -> bool:
        world.fires(session, at_once=5)
        return len(world.begun["a"]) == 5

    await until(all_begun)
    assert world.begun["a"] == numbers


async def test_messages_without_a_key_have_no_order(world: Keyed) -> None:
    topic, session = world.topic(per_key=1), world.worker(1)
    for _ in range(5):
        await world.put(topic, "")
    fires: list[Fire] = []

    def all_there() -> bool:
        fires.extend(taken(session))
        return len(fires) == 5

    await until(all_there)


async def test_programs_lease_messages_of_a_key_one_after_another(world: Keyed) -> None:
    made = world.topics.create(NewTopic(name="jobs", callback="pull:", per_key=1))
    world.center.topics_changed()
    await until(lambda: world.center.ordering.is_ready(made.number))
    numbers = [await world.put(made.number, key) for key in "aaab"]
    first = await world.center.lease(made, 10, 1.0, 60.0)
    assert sorted(each.number for each in first) == [numbers[0], numbers[3]]
    assert await world.center.lease(made, 10, 0.05, 60.0) == []
    for number in numbers[1:3]:
        ended = [Result(each.number, each.topic, each.claim, "deliver", None, -1, 1.0) for each in first]
        assert await world.center.end_leases(ended) == b"d" * len(ended)
        first = await world.center.lease(made, 10, PATIENT_S, 60.0)
        assert [each.number for each in first] == [number]


# --- a rate of each key ---------------------------------------------------------------------------------------------


class Paced:
    """Counts what a key has got since it began: never more than a second's worth at once, and its rate after that."""

    def __init__(self, world: Keyed, rate: float) -> None:
        self._world, self._rate, self._began = world, rate, time.monotonic()
        self.fires: dict[str, list[Fire]] = defaultdict(list)

    def take(self, session: Session) -> list[Fire]:
        """What the worker got now."""
        found = [fire for _, fire in self._world.fires(session, at_once=1_000)]
        for fire in found:
            self.fires[self._world.keys[fire.number]].append(fire)
        passed = time.monotonic() - self._began
        for key, fires in self.fires.items():
            assert not key or len(fires) <= max(1.0, self._rate) + self._rate * passed, (
                f"{key}: {len(fires)} in {passed} s"
            )
        return found


@pytest.mark.parametrize("per_key", [0, 1])
async def test_a_key_gets_no_more_than_its_rate_and_others_do_not_wait(world: Keyed, per_key: int) -> None:
    topic, session = world.topic(rate_per_key=4, per_key=per_key), world.worker(1)
    paced = Paced(world, 4)
    wanted = {key: [await world.put(topic, key) for _ in range(8)] for key in ("a", "b")}
    free = [await world.put(topic, "") for _ in range(HELD_MAX)]
    done: list[int] = []

    async def some() -> None:
        for fire in paced.take(session):
            await world.say(session, fire, "deliver")
            done.append(fire.number)

    async with asyncio.timeout(PATIENT_S):
        while len(done) < 16 + len(free):
            await some()
            await asyncio.sleep(0.005)
    assert sorted(done) == sorted([*wanted["a"], *wanted["b"], *free])
    assert {key: world.begun[key] for key in wanted} == wanted
    assert world.center.ordering.early == 0
    assert set(free) <= set(done[: len(free) + 12]), "messages without a key wait for none"


async def test_a_retry_counts_towards_the_rate_of_its_key(world: Keyed) -> None:
    topic, session = world.topic(rate_per_key=2), world.worker(1)
    paced, number = Paced(world, 2), await world.put(topic, "a")
    for attempt in range(5):
        await until(lambda: session.outbox)
        (fire,) = paced.take(session)
        assert (fire.number, fire.attempts) == (number, attempt + 1), "to wait is no attempt"
        await world.say(session, fire, "fail", now_ms())


async def test_another_rate_counts_at_once_for_what_waits(world: Keyed) -> None:
    topic, session = world.topic(rate_per_key=0.001), world.worker(1)
    numbers = [await world.put(topic, "a") for _ in range(6)]
    await until(lambda: session.outbox)
    assert [fire.number for _, fire in world.fires(session)] == numbers[:1]
    await quiet(world, session)
    await until(lambda: not world.center.ordering._parking)
    await world.change(topic, numbers[1], "cancel")
    world.topics.change("orders", TopicChange(rate_per_key=0.01), now_ms())
    world.center.topics_changed()
    await until(lambda: session.outbox)
    assert [fire.number for _, fire in world.fires(session, at_once=10)] == numbers[2:3]
    await until(lambda: world.center.ordering.early == 3 and not world.center.ordering._parking)
    world.topics.change("orders", TopicChange(rate_per_key=0), now_ms())
    world.center.topics_changed()

    def all_begun() -> bool:
        world.fires(session, at_once=10)
        return world.begun["a"] == [numbers[0], *numbers[2:]]

    await until(all_begun)
    assert world.center.ordering.early == 0


async def test_programs_lease_messages_of_a_key_at_its_rate(world: Keyed) -> None:
    made = world.topics.create(NewTopic(name="jobs", callback="pull:", rate_per_key=2))
    world.center.topics_changed()
    numbers = [await world.put(made.number, key) for key in "aaaab"]
    began, found = time.monotonic(), list[Fire]()
    while len(found) < 5:
        found += await world.center.lease(made, 10, 1.0, 60.0)
        of_a = [each for each in found if world.keys[each.number] == "a"]
        assert len(of_a) <= 2 + 2 * (time.monotonic() - began)
    assert sorted(each.number for each in found) == numbers
