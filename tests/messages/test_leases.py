"""Leases over a real schedule in a folder: claims, extensions, ends, rates, requests that wait, texts that are made up."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from muster.clock import now_ms
from muster_server.systems.messages.leases import Busy, Leases
from muster_server.systems.messages.leasing import Leasing
from muster_server.systems.messages.receiver import NoTopic, Receiver
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.shapes import (
    Envelope,
    Fire,
    Lease,
    Leased,
    LeaseEnd,
    Refused,
    Result,
    Send,
)
from muster_server.systems.messages.targets import PULL
from muster_server.systems.messages.topics import NewTopic, Topic, TopicChange
from tests.messages.test_center import World
from tests.waiting import PATIENT_S, until


class Pulled(World):
    """The same, with a receiver beside it, as programs see both."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.leasing = Leasing(self.topics, self)

    def pull(self, name: str = "mail", **settings: Any) -> Topic:
        made = self.topics.create(NewTopic(name=name, callback=PULL, **settings))
        self.center.topics_changed()
        return made

    async def tasks(self, topic: Topic, count: int, in_ms: int = 0) -> None:
        envelope = Envelope("", "", "application/json", 0, b"{}")
        messages = []
        for number in (next(self.numbers) for _ in range(count)):
            body = msgspec.msgpack.encode(msgspec.structs.replace(envelope, id=f"t-{number}"))
            messages.append((number, topic.number, now_ms() + in_ms, None, body))
        assert {reply[0] for reply in await self.insert(messages)} == {"inserted"}

    # As `leasing.Center`.

    async def lease(self, topic: int, most: int, wait_s: float, lease_s: float) -> list[Fire]:
        found = self.topics.numbered(topic)
        assert found is not None
        return await self.center.lease(found, most, wait_s, lease_s)

    async def end_leases(self, results: Sequence[Result]) -> bytes:
        return await self.center.end_leases(results)

    async def extend_leases(self, asked: Sequence[tuple[int, int, int]]) -> list[tuple[str, int]]:
        return await self.center.extend_leases(asked)

    # As a program.

    async def take(self, topic: Topic, most: int, wait_s: float = 5.0, lease_s: float = 30.0) -> list[Leased]:
        return await self.leasing.lease(Lease(topic.name, most, wait_s, lease_s))

    async def say(self, topic: Topic, verb: Any, *leases: str, **more: Any) -> list[str]:
        ends = [LeaseEnd(lease=each, verb=verb, **more) for each in leases]
        return [each.outcome for each in await self.leasing.end(topic.name, ends)]

    async def state(self, number: int) -> tuple[str, int]:
        (reply,) = await self.schedule.get([number])
        return reply[1][5], reply[1][4]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Pulled]:
    made = Pulled(tmp_path)
    await made.schedule.open()
    await asyncio.to_thread(made.answers.open)
    yield made
    await made.center.close()
    await made.schedule.close()


async def test_each_message_is_leased_once_and_done_once(world: Pulled) -> None:
    topic = world.pull()
    await world.tasks(topic, 20)
    found: list[Leased] = []
    async with asyncio.timeout(PATIENT_S):
        while len(found) < 20:
            some = await asyncio.gather(*(world.take(topic, 7, 0.2) for _ in range(3)))
            found += [each for every in some for each in every]
    assert len({each.message.id for each in found}) == 20
    assert await world.take(topic, 5, 0.0) == []
    leases = [each.lease for each in found]
    assert await world.say(topic, "done", *leases) == ["done"] * 20
    assert await world.say(topic, "done", *leases) == ["lost"] * 20, "said once more"
    assert await world.say(topic, "extend", leases[0], time_ms=5_000) == ["lost"]
    (minute, *more) = world.center.figures.of(topic.number)
    assert sum(each.fired for each in (minute, *more)) == 20


async def test_workers_get_nothing_of_a_topic_that_programs_lease(world: Pulled) -> None:
    topic = world.pull()
    session = world.worker(1)
    await world.tasks(topic, 3)
    assert len(await world.take(topic, 3)) == 3
    assert not session.outbox


async def test_a_request_waits_for_a_message_and_one_that_is_cancelled_gives_it_back(world: Pulled) -> None:
    topic = world.pull()
    waiting = asyncio.create_task(world.take(topic, 5, PATIENT_S))
    await until(lambda: world.center.leases.waiting == 1)
    await world.tasks(topic, 1)
    assert len(await waiting) == 1
    gone = asyncio.create_task(world.take(topic, 5, PATIENT_S))
    await until(lambda: world.center.leases.waiting == 1)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await world.tasks(topic, 4)
    async with asyncio.timeout(PATIENT_S):
        found: list[Leased] = []
        while len(found) < 4:
            found += await world.take(topic, 4, 1.0)
    assert {each.message.attempts for each in found} == {1}, "giving back is no attempt"


async def test_a_lease_that_ran_out_is_lost_and_another_program_has_the_message(world: Pulled) -> None:
    topic = world.pull()
    await world.tasks(topic, 1)
    (first,) = await world.take(topic, 1, lease_s=1.0)
    (second,) = await world.take(topic, 1, PATIENT_S)
    assert (second.message.id, second.message.attempts) == (first.message.id, 2)
    assert await world.say(topic, "extend", first.lease, time_ms=5_000) == ["lost"]
    assert await world.say(topic, "again", first.lease) == ["lost"]
    assert await world.say(topic, "done", first.lease) == ["lost"]
    assert await world.say(topic, "done", second.lease) == ["done"]
    assert world.center.lost_claims == 3


async def test_an_extended_lease_keeps_its_message_by_each_of_its_names(world: Pulled) -> None:
    topic = world.pull()
    await world.tasks(topic, 1)
    (leased,) = await world.take(topic, 1, lease_s=1.5)
    names = [leased.lease]
    for _ in range(3):
        (said,) = await world.leasing.end(topic.name, [LeaseEnd(lease=names[0], verb="extend", time_ms=60_000)])
        assert (said.outcome, said.until > leased.until) == ("done", True)
        names.append(said.lease)
    assert await world.take(topic, 1, 2.0) == [], "it would have run out"
    assert (await world.state(1))[1] == 1
    assert await world.say(topic, "done", names[1]) == ["done"]
    assert await world.say(topic, "done", *names) == ["lost"] * 4


async def test_a_message_that_fails_goes_by_the_retries_of_its_topic_and_dies_with_its_reason(world: Pulled) -> None:
    topic = world.pull(retries_ms=(50,), jitter=0)
    await world.tasks(topic, 2)
    one, other = sorted(await world.take(topic, 2), key=lambda each: each.message.id)
    assert await world.say(topic, "again", one.lease, text=b"no mail server") == ["done"]
    assert await world.say(topic, "dead", other.lease, text=b"no such address") == ["done"]
    (again,) = await world.take(topic, 2, PATIENT_S)
    assert (again.message.id, again.message.attempts) == (one.message.id, 2)
    assert await world.say(topic, "again", again.lease, text=b"still none", time_ms=60_000) == ["done"]
    assert [(await world.state(number))[0] for number in (1, 2)] == ["dead", "dead"]
    kept = await asyncio.to_thread(world.answers.find, [1, 2])
    assert [kept[number].answer for number in (1, 2)] == [b"still none", b"no such address"]


async def test_a_message_given_back_is_due_at_once_and_was_no_attempt(world: Pulled) -> None:
    topic = world.pull()
    await world.tasks(topic, 1)
    (leased,) = await world.take(topic, 1)
    assert await world.say(topic, "back", leased.lease) == ["done"]
    (again,) = await world.take(topic, 1)
    assert again.message.attempts == 1
    assert await world.say(topic, "again", again.lease, time_ms=100) == ["done"]
    assert await world.state(1) == ("retry", 1)


async def test_the_result_of_a_task_is_kept(world: Pulled) -> None:
    topic = world.pull()
    await world.tasks(topic, 1)
    (leased,) = await world.take(topic, 1)
    with pytest.raises(Refusal, match="at most 4096 bytes"):
        await world.say(topic, "done", leased.lease, text=b"x" * 4_097)
    assert await world.say(topic, "done", leased.lease, text=b'"sent"') == ["done"]
    assert (await asyncio.to_thread(world.answers.find, [1]))[1].answer == b'"sent"'


async def test_a_topic_gives_no_more_in_a_second_than_its_rate(world: Pulled) -> None:
    topic = world.pull(rate=10.0)
    await world.tasks(topic, 100)
    began = asyncio.get_running_loop().time()
    count = 0
    async with asyncio.timeout(PATIENT_S):
        while count < 25:
            count += len(await world.take(topic, 100, 2.0))
    passed = asyncio.get_running_loop().time() - began
    assert count <= 11 + 10 * passed


async def test_a_lease_that_is_made_up_or_of_another_topic_is_refused(world: Pulled) -> None:
    mail, other = world.pull(), world.pull("other")
    await world.tasks(mail, 1)
    (leased,) = await world.take(mail, 1)
    text = leased.lease
    changed = text[:4] + ("A" if text[4] != "A" else "B") + text[5:]
    for topic, lease in ((other, text), (mail, changed), (mail, text[:-1]), (mail, ""), (mail, "x" * 46), (mail, "é")):
        with pytest.raises(Refusal, match="is not a lease of topic"):
            await world.say(topic, "done", lease)
    assert await world.say(mail, "done", text) == ["done"]


async def test_only_topics_with_the_target_pull_are_leased(world: Pulled) -> None:
    world.topic()
    with pytest.raises(Refusal, match="only pull: is leased"):
        await world.leasing.lease(Lease("orders", 1, 0.0, 30.0))
    with pytest.raises(NoTopic):
        await world.leasing.lease(Lease("nothing", 1, 0.0, 30.0))


async def test_a_message_of_such_a_topic_names_no_target(world: Pulled) -> None:
    world.pull()
    world.topic()
    receiver = Receiver(world.topics, cast(Any, Inserts()), body_bytes_max=1_000, delay_days_max=1)
    for topic, target in (("mail", "https://shop.example/hook"), ("mail", PULL), ("orders", PULL)):
        (said,) = await receiver.send(topic, [Send(body=b"x", target=target)])
        assert isinstance(said, Refused), (topic, target)
        assert said.code == "bad_request"


class Inserts:
    """A center that nothing reaches."""

    async def _none(self, *_: object) -> Any:
        raise AssertionError

    insert = change = get = answers = _none


async def test_a_topic_may_change_to_be_leased_and_back(world: Pulled) -> None:
    number = world.topic()
    session = world.worker(1)
    await until(lambda: bool(session.credit))
    topic = world.topics.change("orders", TopicChange(callback=PULL), now_ms())
    world.center.topics_changed()
    await world.tasks(topic, 2)
    (one, two) = await world.take(topic, 2)
    assert not session.outbox
    assert await world.say(topic, "done", one.lease, two.lease) == ["done", "done"]
    world.topics.change("orders", TopicChange(callback="https://shop.example/hook"), now_ms())
    world.center.topics_changed()
    await world.send(number, 1)
    await until(lambda: bool(session.outbox))


async def test_requests_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch, world: Pulled) -> None:
    monkeypatch.setattr("muster_server.systems.messages.leases.WAITING_MAX", 2)
    topic = world.pull()
    leases = Leases(lambda *_: None, lambda _: None, lambda _: None)
    waiting = [asyncio.create_task(leases.take(topic, 1, PATIENT_S, 30.0)) for _ in range(2)]
    await until(lambda: leases.waiting == 2)
    with pytest.raises(Busy):
        await leases.take(topic, 1, 0.0, 30.0)
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert leases.waiting == 0


async def test_a_paused_topic_leases_nothing_and_ends_the_wait_of_programs(world: Pulled) -> None:
    topic = world.pull()
    waiting = asyncio.create_task(world.lease(topic.number, 5, PATIENT_S, 60))
    await until(lambda: world.center.leases.waiting)
    world.topics.change("mail", TopicChange(paused=True), now_ms())
    world.center.topics_changed()
    assert await waiting == []
    await world.tasks(topic, 3)
    assert await world.lease(topic.number, 5, 0.1, 60) == []
    world.topics.change("mail", TopicChange(paused=False), now_ms())
    world.center.topics_changed()
    assert len(await world.lease(topic.number, 5, PATIENT_S, 60)) == 3
