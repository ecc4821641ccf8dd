"""The center over a real schedule in a folder: credits, claims, lives of workers, overdue messages, last answers."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from muster.clock import now_ms
from muster_server.systems.messages.answers import Answers
from muster_server.systems.messages.center import Center, Session
from muster_server.systems.messages.schedule import EmbeddedSchedule, NewMessage, Reply
from muster_server.systems.messages.shapes import Fire, Result
from muster_server.systems.messages.topics import NewTopic, TopicChange, TopicsFile
from tests.waiting import PATIENT_S, until

HELD_MAX = 10
ENDLESS = 1_000_000


class World:
    """A center with one topic, and workers that a test plays."""

    def __init__(
        self, folder: Path, overdue_rate: int = ENDLESS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.topics = TopicsFile(folder, 10)
        self.topics.open()
        self.answers = Answers(folder)
        self.schedule = EmbeddedSchedule(folder / "schedule", self._fire, segment_bytes=8 << 20)
        self.center = Center(
            self.schedule,
            self.topics,
            self.answers,
            structlog.get_logger(),
            overdue_rate=overdue_rate,
            monotonic=monotonic,
        )
        self.numbers = iter(range(1, ENDLESS))

    def _fire(self, worker: int, fires: bytes) -> None:
        self.center.on_fires(worker, fires)

    def topic(self, **settings: Any) -> int:
        made = self.topics.create(NewTopic(name="orders", callback="https://shop.example/hook", **settings))
        self.center.topics_changed()
        return made.number

    def worker(self, node: int, epoch: int = 1) -> Session:
        session = self.center.join((node << 32) | epoch, HELD_MAX, f"worker-{node}")
        assert session is not None
        return session

    async def send(self, topic: int, count: int, due_at: int = 0) -> None:
        at = due_at or now_ms()
        replies = await self.insert([(next(self.numbers), topic, at, None, b"") for _ in range(count)])
        assert {reply[0] for reply in replies} == {"inserted"}

    async def insert(self, messages: Sequence[NewMessage]) -> list[Reply]:
        replies: list[Reply] = msgspec.msgpack.decode(
            await self.center.insert(msgspec.msgpack.encode(messages)), type=list[Reply]
        )
        return replies

    async def results(self, session: Session, results: list[Result], weight: int = 1_000) -> list[bool]:
        """The results that the center has."""
        return list(map(bool, await self.center.results(session.incarnation, weight, msgspec.msgpack.encode(results))))

    async def done(self, session: Session, fires: list[Fire]) -> list[bool]:
        results = [Result(each.number, each.topic, each.claim, "deliver", None, 1, 1.0) for each in fires]
        return await self.results(session, results)


def sent(session: Session) -> list[Fire]:
    """What is on its way to a worker."""
    return [fire for array in session.outbox for fire in msgspec.msgpack.decode(array, type=list[Fire])]


def taken(session: Session) -> list[Fire]:
    """The same, and it arrives."""
    fires = sent(session)
    session.outbox.clear()
    return fires


async def arrived(count: int, *sessions: Session) -> None:
    """`count` messages are on their way to these workers."""
    await until(lambda: sum(len(sent(each)) for each in sessions) == count)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.schedule.open()
    made.answers.open()
    yield made
    await made.center.close()
    await made.schedule.close()


async def test_a_worker_holds_no_more_than_it_may_and_gets_more_for_results(world: World) -> None:
    topic = world.topic()
    session = world.worker(1)
    await world.send(topic, 25)
    await until(lambda: len(sent(session)) == HELD_MAX)
    fires = taken(session)
    assert await world.done(session, fires) == [True] * HELD_MAX
    await until(lambda: len(sent(session)) == HELD_MAX)
    await world.done(session, taken(session))
    await until(lambda: len(sent(session)) == 5)
    minute = world.center.figures.of(topic)[-1]
    assert (minute.accepted, minute.fired) == (25, 20)


async def test_a_result_counts_once_and_only_under_its_claim(world: World) -> None:
    topic, session = world.topic(), world.worker(1)
    await world.send(topic, 1)
    await until(lambda: session.outbox)
    fires = taken(session)
    assert await world.done(session, fires) == [True]
    assert await world.done(session, fires) == [True], "told again, it is known"
    assert world.center.lost_claims == 1
    assert world.center.figures.of(topic)[-1].fired == 1


async def test_a_later_life_of_a_worker_gives_back_what_the_former_one_held(world: World) -> None:
    topic, session = world.topic(), world.worker(1)
    await world.send(topic, 3)
    await until(lambda: len(sent(session)) == 3)
    stale = taken(session)
    world.center.leave(session)
    assert await world.schedule.stats() is not None
    with capture_logs() as told:
        again = world.worker(1, epoch=2)
    assert [(line["peer"], line["peer_name"], line["held"]) for line in told] == [(1, "worker-1", 3)]
    await until(lambda: len(sent(again)) == 3)
    fresh = taken(again)
    assert {each.number for each in fresh} == {each.number for each in stale}
    assert all(each.attempts == 1 for each in fresh), "an attempt that was not made is none"
    await world.done(session, stale)
    assert world.center.figures.of(topic)[-1].fired == 0
    await world.done(again, fresh)
    assert world.center.figures.of(topic)[-1].fired == 3


async def test_a_former_life_of_a_worker_is_refused(world: World) -> None:
    world.worker(1, epoch=2)
    assert world.center.join((1 << 32) | 1, HELD_MAX) is None
    assert world.center.late_workers == 1


async def test_a_worker_that_comes_back_to_its_stream_goes_on(world: World) -> None:
    topic, session = world.topic(), world.worker(1)
    await world.send(topic, 2)
    await until(lambda: len(sent(session)) == 2)
    fires = taken(session)
    world.center.leave(session)
    assert world.worker(1) is session
    assert await world.done(session, fires) == [True, True]
    await world.send(topic, HELD_MAX)
    await until(lambda: len(sent(session)) == HELD_MAX)


@pytest.mark.parametrize(("policy", "parts"), [("round-robin", (0.5, 0.5)), ("weighted-round-robin", (0.25, 0.75))])
async def test_the_policy_of_a_topic_spreads_its_messages(
    world: World, policy: Any, parts: tuple[float, float]
) -> None:
    topic = world.topic(policy=policy)
    sessions = [world.worker(1), world.worker(2)]
    for session, weight in zip(sessions, (250, 750), strict=True):
        session.weight = weight
    await world.send(topic, 2_000)
    counts = [0, 0]
    while sum(counts) < 2_000:
        await until(lambda: any(session.outbox for session in sessions))
        for place, (session, weight) in enumerate(zip(sessions, (250, 750), strict=True)):
            fires = taken(session)
            counts[place] += len(fires)
            results = [Result(each.number, each.topic, each.claim, "deliver", None, 1, 1.0) for each in fires]
            await world.results(session, results, weight)
    for count, part in zip(counts, parts, strict=True):
        assert count / 2_000 == pytest.approx(part, abs=0.15)


async def test_a_topic_with_fewer_workers_keeps_to_them_and_goes_on_without_one(world: World) -> None:
    topic = world.topic(workers=1)
    sessions = [world.worker(1), world.worker(2)]
    await world.send(topic, 5)
    await until(lambda: sum(len(sent(each)) for each in sessions) == 5)
    (mine,) = [each for each in sessions if each.outbox]
    (other,) = [each for each in sessions if each is not mine]
    await world.done(mine, taken(mine))
    world.center.leave(mine)
    await world.send(topic, 5)
    await until(lambda: len(sent(other)) == 5)


async def test_overdue_messages_are_fired_oldest_first_under_the_rate(tmp_path: Path) -> None:
    world = World(tmp_path, overdue_rate=20)
    await world.schedule.open()
    world.answers.open()
    topic = world.topic()
    long_ago = now_ms() - 3_600_000
    for number in range(60):
        await world.send(topic, 1, long_ago + number)
    session, began = world.worker(1), time.monotonic()
    due: list[int] = []
    while len(due) < 60:
        await until(lambda: session.outbox)
        fires = taken(session)
        due += [each.due_at for each in fires]
        await world.done(session, fires)
    # A burst of a second's worth, and what one worker holds, come at once.
    assert time.monotonic() - began >= (60 - 20 - 2 * HELD_MAX) / 20
    assert due == sorted(due)
    await world.center.close()
    await world.schedule.close()


async def test_the_last_answer_is_written_before_its_message_dies(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, session = world.topic(), world.worker(1)
    await world.send(topic, 2)
    await until(lambda: len(sent(session)) == 2)
    one, two = taken(session)
    results = [Result(one.number, topic, one.claim, "fail", None, 1, 1.0, "refused", 500, b"no")]
    results += [Result(two.number, topic, two.claim, "deliver", None, 1, 1.0)]

    def full(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(world.answers, "keep", full)
        assert await world.results(session, results) == [False, True]
    (found,) = await world.schedule.get([one.number])
    assert found[1][5] == "firing"
    assert await world.results(session, results[:1]) == [True]
    (found,) = await world.schedule.get([one.number])
    assert found[1][5] == "dead"
    assert world.answers.find([one.number, two.number])[one.number][2:] == ("refused", 500, b"no")


async def test_messages_whose_target_takes_none_keep_their_credits_until_they_are_due_again(world: World) -> None:
    topic, session = world.topic(), world.worker(1)
    await world.send(topic, 2 * HELD_MAX)
    await until(lambda: len(sent(session)) == HELD_MAX)
    again = now_ms() + 600
    held = [Result(each.number, topic, each.claim, "release", again, -1, 0.0) for each in taken(session)]
    assert await world.results(session, held) == [True] * HELD_MAX
    await world.schedule.stats()
    world.center.sweep()
    assert (session.free(topic), len(sent(session))) == (0, 0), "a target that is down costs one claim a message"
    await until(lambda: now_ms() > again)
    world.center.sweep()
    await until(lambda: len(sent(session)) == HELD_MAX)
    assert all(each.attempts == 1 for each in sent(session))


async def test_a_message_that_expired_while_no_worker_was_there_does_not_fire_and_is_counted(world: World) -> None:
    topic, now = world.topic(), now_ms()
    await world.schedule.insert([(1, topic, now, now + 50, b""), (2, topic, now, None, b"")])
    await until(lambda: now_ms() > now + 50)
    session = world.worker(1)
    await until(lambda: session.outbox)
    assert [each.number for each in taken(session)] == [2]
    (found,) = await world.schedule.get([1])
    assert found[1][5] == "expired"
    assert (await world.schedule.stats())["expired"] == 1


async def test_a_message_whose_workers_all_died_is_a_dead_letter_and_counted(tmp_path: Path) -> None:
    claims: list[int] = []
    schedule = EmbeddedSchedule(tmp_path, lambda worker, _: claims.append(worker), segment_bytes=8 << 20)
    await schedule.open()
    await schedule.insert([(1, 1, now_ms(), None, b"")])
    for worker in (77, 78, 79):
        schedule.serve(1, worker, 30, 2, 1)  # claims that run out after 30 ms, and nobody fires
    async with asyncio.timeout(PATIENT_S):
        while (await schedule.get([1]))[0][1][5] != "dead":
            pass
    assert len(claims) == 2
    assert (await schedule.stats())["buried"] == 1
    await schedule.close()


async def test_credits_of_claims_that_ran_out_come_back(world: World) -> None:
    topic, session = world.topic(), world.worker(1)
    await world.send(topic, HELD_MAX)
    await until(lambda: len(sent(session)) == HELD_MAX)
    taken(session)
    assert session.free(topic) == 0
    session.claims.sweep(now_ms() + 3_600_000)
    assert session.free(topic) == HELD_MAX


async def test_a_store_that_fails_tells_all_that_wait(tmp_path: Path) -> None:
    schedule = EmbeddedSchedule(tmp_path, lambda *_: None, segment_bytes=8 << 20)
    await schedule.open()
    asking = asyncio.create_task(schedule.insert([(1, 1, now_ms(), None, b"")]))
    await asyncio.sleep(0)
    await schedule.close()
    with pytest.raises(Exception, match="closed"):
        await asking
    assert schedule.failed.is_set()


async def test_a_paused_topic_fires_nothing_until_it_is_resumed(world: World) -> None:
    topic = world.topic()
    session = world.worker(1)
    world.topics.change("orders", TopicChange(paused=True), now_ms())
    world.center.topics_changed()
    await world.send(topic, 3)
    other = world.topics.create(NewTopic(name="other", callback="https://shop.example/hook")).number
    world.center.topics_changed()
    await world.send(other, 2)
    await until(lambda: len(sent(session)) == 2)
    assert {fire.topic for fire in taken(session)} == {other}
    world.topics.change("orders", TopicChange(paused=False), now_ms())
    world.center.topics_changed()
    await until(lambda: len(sent(session)) == 3)
    assert {fire.topic for fire in taken(session)} == {topic}


async def test_a_topic_has_no_more_messages_in_progress_than_its_concurrency(world: World) -> None:
    topic = world.topic(concurrency=3)
    sessions = [world.worker(node) for node in (1, 2)]
    await world.send(topic, 8)
    for expected in (3, 3, 2):
        await arrived(expected, *sessions)
        for session in sessions:
            await world.done(session, taken(session))
    await world.send(topic, 6)
    await until(lambda: sum(len(sent(each)) for each in sessions) == 3)
    world.topics.change("orders", TopicChange(concurrency=5), now_ms())
    world.center.topics_changed()
    await until(lambda: sum(len(sent(each)) for each in sessions) == 5)


async def test_a_lower_concurrency_takes_back_the_credits_of_a_higher_one(world: World) -> None:
    topic, session = world.topic(), world.worker(1)
    world.topics.change("orders", TopicChange(concurrency=1), now_ms())
    world.center.topics_changed()
    await world.send(topic, 5)
    for _ in range(5):
        await until(lambda: sent(session))
        (fire,) = taken(session)
        assert not sent(session)
        assert await world.done(session, [fire]) == [True]


async def test_what_a_worker_held_when_it_left_counts_until_its_claims_run_out(world: World) -> None:
    topic = world.topic(concurrency=2, timeout_s=0.1)
    gone, other = world.worker(1), world.worker(2)
    await world.send(topic, 4)
    await until(lambda: len(sent(gone)) + len(sent(other)) == 2)
    holds = gone if sent(gone) else other
    stays = other if holds is gone else gone
    held = len(sent(holds))
    world.center.leave(holds)
    taken(stays)
    assert len(stays.claims) + held == 2
    assert not sent(stays), "its claims stand"


async def test_a_topic_fires_no_more_than_its_rate(tmp_path: Path) -> None:
    now = [100.0]
    world = World(tmp_path, monotonic=lambda: now[0])
    await world.schedule.open()
    world.answers.open()
    topic, session = world.topic(rate=4.0), world.worker(1)
    await world.send(topic, 9)
    await until(lambda: len(sent(session)) == 4)
    assert await world.done(session, taken(session)) == [True] * 4
    for more in (1, 2, 2):
        now[0] += more / 4
        world.center.sweep()
        await arrived(more, session)
        await world.done(session, taken(session))
    assert world.center.figures.of(topic)[-1].fired == 9
    await world.center.close()
    await world.schedule.close()
