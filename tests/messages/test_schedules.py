"""The promises of a schedule of messages, by every kind of it: the answers of two dicts, and nothing early."""

import asyncio
import random
import time
from typing import Any

import msgspec
import pytest

from muster.clock import now_ms
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.messages.schedule import Schedule
from muster_server.systems.messages.shapes import Result
from tests.messages.conftest import HOUR_MS, Made
from tests.reference import schedule as reference
from tests.waiting import PATIENT_S, until

LEASE_MS = 60_000
ATTEMPTS_MAX = 1_000
WORKER = (7 << 32) | 9
STATES = ("scheduled", "firing", "done", "dead", "withdrawn")


class Play:
    """Random requests to a schedule and its model."""

    def __init__(self, made: Made, schedule: Schedule, seed: int) -> None:
        self.made, self.schedule = made, schedule
        self.model, self.dice, self.base = reference.Schedule(), random.Random(seed), now_ms()

    def _id(self) -> int:
        return self.dice.randrange(40) * 0x0123_4567_89AB_CDEF % (1 << 64)

    def _time(self) -> int:
        return (
            self.base
            + self.dice.choice((-5_000, -1_000, HOUR_MS, 2 * HOUR_MS, 50 * HOUR_MS))
            + self.dice.randrange(900)
        )

    async def insert(self) -> None:
        messages = [
            (self._id(), self.dice.choice((1, 2)), self._time(), None, self.dice.randbytes(self.dice.randrange(60)))
            for _ in range(self.dice.randrange(1, 6))
        ]
        assert await self.schedule.insert(messages) == [self.model.insert(*each) for each in messages]

    def _change(self) -> tuple[int, str, int | None, int | None]:
        id = self._id()
        moves = ("cancel", "due_at", "later", "sooner", "due_by")
        verb = self.dice.choice(
            (*moves, "deliver", "fail", "release", "extend", "replay", "drop", "deliver", "wake", "wake")
        )
        known = self.model.messages.get(id)
        version: int | None = None
        if verb in {"deliver", "fail", "release", "extend"} or self.dice.random() < 0.2:
            version = known.version if known is not None and self.dice.random() < 0.9 else self.dice.randrange(1, 9)
        at: int | None = self._time()
        if verb == "due_by":
            at = self.dice.randrange(-HOUR_MS, HOUR_MS)
        elif verb in {"cancel", "drop", "deliver"} or (verb == "fail" and self.dice.random() < 0.3):
            at = None
        return id, verb, version, at

    async def change(self) -> None:
        changes = [self._change() for _ in range(self.dice.randrange(1, 6))]
        told = await self.schedule.change(changes)
        assert told == [self.model.change(now_ms(), *each) for each in changes], changes

    async def fire(self) -> None:
        """All that is due in a topic, oldest first."""
        topic = self.dice.choice((1, 2))
        due = self.model.due(now_ms(), topic)
        if not due:
            return
        self.schedule.serve(topic, WORKER, LEASE_MS, ATTEMPTS_MAX, len(due))
        await until(lambda: len(self.made.fires) == len(due))
        fires = self.made.taken()
        for worker, fire in fires:
            assert worker == WORKER
            message = self.model.claim(fire.number, fire.until)
            assert (fire.claim, fire.topic, fire.due_at, fire.attempts, fire.envelope) == (
                message.version,
                topic,
                message.due_at,
                message.attempts,
                message.body,
            )
            assert 0 <= fire.until - now_ms() + 10_000 <= LEASE_MS + 10_000
        assert {fire.number for _, fire in fires} == {each.id for each in due}

    async def put(self) -> None:
        """What another record knows: newer and older states."""
        known = self.model.messages.get(self._id())
        if known is None or known.state == "dead":  # only a replay leads out of it, and its record comes first
            return
        state, at = self.dice.choice((("done", None), ("retry", self._time()), ("cancelled", None), ("dead", None)))
        version = known.version + self.dice.choice((-1, 0, 1, 5))
        told = (known.id, version, known.due_at, None, 2, state, at)
        assert await self.schedule.put([(*told, 0)]) == [self.model.put(told)]

    async def put_ahead(self) -> None:
        """What another record says was asked ahead."""
        told = (
            self._id(),
            self.dice.random() < 0.5,
            self.dice.choice((None, self._time())),
            self.dice.randrange(-9, 9),
            self.dice.choice(("exact", "later", "sooner")),
        )
        assert await self.schedule.put_ahead([told]) == [self.model.put_ahead(*told)]

    async def settle(self) -> None:
        """Results of claims, as a worker tells them."""
        held = [each for each in self.model.messages.values() if each.state == "firing"]
        some = self.dice.sample(held, min(len(held), 3))
        results = [Result(each.id, each.topic, each.version, "deliver", None, 1, 1.0) for each in some]
        results.append(Result(self._id(), 1, 77, "deliver", None, 1, 1.0))
        for each in results:
            self.model.change(now_ms(), each.number, "deliver", each.claim, None)
        assert await self.schedule.settle(msgspec.msgpack.encode(results)) == b"d" * len(some) + b"x"

    async def check(self) -> None:
        ids = [*self.model.messages, 12_345]
        for id, found in zip(ids, await self.schedule.get(ids), strict=True):
            known = self.model.messages.get(id)
            assert found == (("unknown",) if known is None else ("found", known.told, known.topic, known.body))
        topic: int | None = self.dice.choice((None, 1, 2))
        states = set(self.dice.sample(STATES, self.dice.randrange(1, 6)))
        end = self.base + self.dice.choice((HOUR_MS, 1 << 40))
        wanted = self.model.find(topic, 0, end, states)
        kind, messages, times, cut = await self.schedule.find(topic, 0, end, sorted(states), 5)
        assert (kind, list(times), cut) == ("listed", [at for at, _ in wanted], False)
        assert [message[0] for message, _ in messages] == [id for _, id in wanted[:5]]
        if len(wanted) > 5:
            page = await self.schedule.find(topic, 0, end, sorted(states), 5, wanted[4])
            assert [message[0] for message, _ in page[1]] == [id for _, id in wanted[5:10]]
            assert page[2] == times, "all are counted"
        proof = await self.schedule.scrub()
        assert proof is not None
        assert (proof.fault_count, proof.faults) == (0, [])
        assert proof.messages >= len(self.model.messages), "and what was asked ahead of others"

    async def run(self, steps: int) -> None:
        acts = (self.insert, self.insert, *[self.change] * 3, self.fire, self.settle, self.put, self.put_ahead)
        for step in range(steps):
            await self.dice.choice(acts)()
            if step % 10 == 0:
                await self.check()


@pytest.mark.parametrize("seed", range(3))
async def test_answers_are_those_of_two_dicts_over_many_lives(made: Made, seed: int) -> None:
    schedule = await made.open()
    play = Play(made, schedule, seed)
    for _ in range(3):
        await play.run(60)
        await made.close(schedule)
        schedule = play.schedule = await made.open()
        await play.check()


async def test_changes_of_one_message_in_one_batch_follow_each_other(made: Made) -> None:
    schedule, at = await made.open(), now_ms() + HOUR_MS
    told = await schedule.insert([(1, 1, at, None, b"first"), (1, 1, at + 9, None, b"second")])
    assert [each[0] for each in told] == ["inserted", "before"]
    told = await schedule.change(
        [(1, "due_by", None, 5), (1, "due_by", 2, 5), (1, "cancel", 2, None), (1, "cancel", None, None)]
    )
    assert [each[0] for each in told] == ["changed", "changed", "refused", "changed"]
    (found,) = await schedule.get([1])
    assert found == ("found", (1, 4, at + 10, None, 0, "cancelled", None), 1, b"first")


async def test_nothing_fires_early_and_what_is_due_fires_soon(made: Made) -> None:
    schedule, now = await made.open(), now_ms()
    schedule.serve(1, WORKER, LEASE_MS, ATTEMPTS_MAX, 50)
    await schedule.insert([(id, 1, now + 20 * id, None, b"") for id in range(1, 41)])
    seen: dict[int, int] = {}
    async with asyncio.timeout(PATIENT_S):
        while len(seen) < 40:
            seen |= {fire.number: now_ms() for _, fire in made.taken() if fire.number not in seen}
            await asyncio.sleep(0.001)
    late = sorted(at - (now + 20 * id) for id, at in seen.items())
    assert late[0] >= 0
    assert late[20] < 250, "a machine busy with other work is slow, and not this slow"


async def test_a_message_that_is_advanced_fires_at_once(made: Made) -> None:
    schedule = await made.open()
    schedule.serve(1, WORKER, LEASE_MS, ATTEMPTS_MAX, 1)
    await schedule.insert([(1, 1, now_ms() + HOUR_MS, None, b"")])
    await schedule.change([(1, "due_at", None, now_ms())])
    await until(lambda: made.fires)


async def test_a_postponement_to_a_sooner_time_and_an_advance_to_a_later_one_are_refused(made: Made) -> None:
    schedule, at = await made.open(), now_ms() + HOUR_MS
    await schedule.change([(2, "later", None, at + 50)])
    await schedule.insert([(1, 1, at, None, b""), (2, 1, at, None, b"")])
    told = await schedule.change(
        [
            (1, "later", None, at - 1),
            (1, "sooner", None, at + 1),
            (1, "later", None, at + 9),
            (1, "sooner", None, at + 5),
            (2, "sooner", None, at + 51),
        ]
    )
    assert [each[:3] for each in told if each[0] == "refused"] == [
        ("refused", "not_later", at),
        ("refused", "not_sooner", at),
        ("refused", "not_sooner", at + 50),
    ]
    found = await schedule.get([1, 2])
    assert [each[1][2] for each in found] == [at + 5, at + 50]


async def test_messages_that_wait_for_a_first_answer_or_for_a_retry_are_overdue(made: Made) -> None:
    schedule, due = await made.open(), now_ms() - 60_000
    await schedule.insert([(1, 1, due, None, b""), (2, 1, due + 7, None, b""), (3, 2, now_ms() + HOUR_MS, None, b"")])

    async def overdue(wanted: dict[int, tuple[int, int]]) -> None:
        async with asyncio.timeout(60):
            while await schedule.overdue() != wanted:  # noqa: ASYNC110 - a look goes round: no event to wait for
                await asyncio.sleep(0.02)

    await overdue({1: (2, due)})
    schedule.serve(1, WORKER, LEASE_MS, ATTEMPTS_MAX, 2)
    await until(lambda: len(made.fires) == 2)
    first, second = sorted((fire for _, fire in made.taken()), key=lambda fire: fire.number)
    await overdue({1: (2, due)})
    # A place was not free at its target; the other one failed, and counts from the time of its retry.
    later, retried = now_ms() + 30_000, now_ms() - 5_000
    await schedule.change([(1, "release", first.claim, later), (2, "fail", second.claim, later)])
    await overdue({1: (1, due)})
    await schedule.change([(1, "cancel", None, None)])
    await overdue({})
    await schedule.insert([(4, 1, due, None, b"")])
    schedule.serve(1, WORKER, LEASE_MS, ATTEMPTS_MAX, 1)
    await until(lambda: made.fires)
    ((_, third),) = made.taken()
    await schedule.change([(4, "fail", third.claim, retried)])
    await overdue({1: (1, retried)})
    schedule.serve(1, WORKER, LEASE_MS, ATTEMPTS_MAX, 1)
    await until(lambda: made.fires)
    await overdue({})


async def test_a_claim_that_ran_out_is_won_again_and_the_last_one_buries(made: Made) -> None:
    schedule = await made.open()
    await schedule.insert([(1, 1, now_ms(), None, b"")])
    for worker in (77, 78, 79):
        schedule.serve(1, worker, 30, 2, 1)
    async with asyncio.timeout(PATIENT_S):
        while (await schedule.get([1]))[0][1][5] != "dead":  # noqa: ASYNC110 - it happens elsewhere: no event to wait for
            await asyncio.sleep(0.005)
    await until(lambda: len(made.fires) == 2)
    fires = made.taken()
    assert [fire.attempts for _, fire in fires] == [1, 2]
    assert (await schedule.change([(1, "deliver", fires[0][1].claim, None)]))[0][:2] == ("refused", "claim_lost")
    assert (await schedule.stats())["buried"] == 1


async def test_a_message_that_expired_does_not_fire(made: Made) -> None:
    schedule, now = await made.open(), now_ms()
    await schedule.insert([(1, 1, now - 5, now - 1, b""), (2, 1, now - 4, None, b"")])
    schedule.serve(1, WORKER, LEASE_MS, ATTEMPTS_MAX, 2)
    await until(lambda: made.fires)
    assert [fire.number for _, fire in made.taken()] == [2]
    (found,) = await schedule.get([1])
    assert found[1][5] == "expired"


async def test_overdue_messages_come_oldest_first_no_more_than_the_credit_at_once(made: Made) -> None:
    schedule, now = await made.open(), now_ms()
    order = random.Random(1).sample(range(100), 100)
    await schedule.insert([(1_000 + place, 1, now - 10_000 + place, None, b"") for place in order])
    await schedule.stats()
    schedule.serve(1, WORKER, LEASE_MS, ATTEMPTS_MAX, 30)
    await until(lambda: len(made.fires) == 30)
    first = [fire.number for _, fire in made.taken()]
    assert sorted(first) == [1_000 + place for place in range(30)]
    schedule.serve(1, WORKER, LEASE_MS, ATTEMPTS_MAX, 70)
    await until(lambda: len(made.fires) == 70)


async def test_credits_of_a_worker_that_left_are_void(made: Made) -> None:
    schedule = await made.open()
    schedule.serve(1, WORKER, LEASE_MS, ATTEMPTS_MAX, 5)
    schedule.leave(WORKER)
    await schedule.insert([(1, 1, now_ms(), None, b"")])
    await schedule.stats()
    schedule.serve(1, 88, LEASE_MS, ATTEMPTS_MAX, 1)
    await until(lambda: made.fires)
    assert [worker for worker, _ in made.taken()] == [88]


async def test_an_array_of_messages_is_told_and_kept_as_messages_one_by_one_are(made: Made) -> None:
    schedule, at = await made.open(), now_ms() + HOUR_MS
    await schedule.insert([(1, 1, at, None, b"before")])
    await schedule.change([(2, "cancel", None, None), (3, "due_by", None, 7)])
    given = [
        (1, 1, at + 1, None, b"known"),
        (2, 1, at + 2, None, b"cancelled ahead"),
        (3, 2, at + 3, None, b"postponed ahead"),
        *((number, 1 + number % 2, at + number, at + HOUR_MS, b"new %d" % number) for number in range(10, 600)),
        (10, 1, at, None, b"twice in one array"),
        (4, 1, 1 << 46, None, b"too late"),
        (5, 1, at, None, b"x" * ((1 << 20) + 1)),
    ]
    told, counts = await schedule.insert_packed(msgspec.msgpack.encode(given))
    replies = msgspec.msgpack.decode(told)
    names = ["before", "inserted", "inserted", *["inserted"] * 590, "before", "refused", "body_too_long"]
    assert [reply[0] for reply in replies] == names
    assert [replies[place][1][5] for place in (0, 1, 2, 3)] == ["scheduled", "cancelled", "scheduled", "scheduled"]
    assert replies[2][1][2] == at + 10
    assert replies[3][1] == [10, 1, at + 10, at + HOUR_MS, 0, "scheduled", None]
    assert {topic: count for topic, count in counts.items() if count} == {1: 296, 2: 296}
    found = await schedule.get([1, 10, 599, 4])
    assert [reply[-1] for reply in found] == [b"before", b"new 10", b"new 599", "unknown"]
    assert found[2][2] == 2
    listed = await schedule.find(None, at, at + 600, ["scheduled"], 1_000)
    assert [message[0][2] for message in listed[1]] == [
        at,
        *range(at + 10, at + 11),
        at + 10,
        *range(at + 11, at + 600),
    ]


async def test_what_does_not_fit_is_refused_and_the_rest_is_taken(made: Made) -> None:
    schedule, at = await made.open(), now_ms() + HOUR_MS
    told = await schedule.insert(
        [(1, 1, at, None, b"x" * ((1 << 20) + 1)), (2, 1, 1 << 46, None, b""), (3, 1, at, None, b"x" * (1 << 20))]
    )
    assert [each[0] for each in told] == ["body_too_long", "refused", "inserted"]
    assert (await schedule.get([3]))[0][3] == b"x" * (1 << 20)


async def test_a_mark_is_kept_with_the_messages(made: Made) -> None:
    if "logged" in made.kind:
        pytest.skip("the log's own mark is there")
    schedule = await made.open()
    assert await schedule.marked() is None
    await schedule.mark(17, 3)
    await until_marked(schedule)
    await made.close(schedule)
    assert await (await made.open()).marked() == (17, 3)


async def until_marked(schedule: Schedule) -> None:
    async with asyncio.timeout(PATIENT_S):
        while await schedule.marked() is None:  # noqa: ASYNC110 - it happens elsewhere: no event to wait for
            await asyncio.sleep(0.05)


async def test_a_closed_schedule_takes_nothing(made: Made) -> None:
    schedule = await made.open()
    await made.close(schedule)
    with pytest.raises(StoreError, match="closed"):
        await schedule.insert([(1, 1, now_ms(), None, b"")])
    assert schedule.failed.is_set()


async def test_another_process_cannot_have_it_until_it_is_closed(made: Made) -> None:
    schedule = await made.open()
    other = made.new()
    with pytest.raises(BlockingIOError):
        await other.open()
    await other.close()
    await made.close(schedule)
    began = time.monotonic()
    again: Any = await made.open()
    assert time.monotonic() - began < 4, "the lease was given back"
    assert await again.get([1]) == [("unknown",)]
