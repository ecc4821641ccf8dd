"""Delayed messages under load while processes die and stand still: none accepted is lost, none is early, none that was
withdrawn fires, and only callbacks under way at a death come twice."""

import asyncio
import functools
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import pytest

from muster.instance import read_token
from muster_server.systems.messages.link import Link
from muster_server.systems.messages.receiver import Unreachable
from muster_server.systems.messages.refusal import Refusal
from muster_server.systems.messages.shapes import Change, Changed, Refused, Send, Sent
from tests import strikes
from tests.faults.conftest import Make
from tests.faults.hooks import Hooks, hooks
from tests.faults.instance import Instance
from tests.faults.test_messages import ROLES, said, topic, with_messages
from tests.waiting import until, until_asked

__all__ = ["with_messages"]

SHORT: Final = 30
LONG: Final = int(os.environ.get("MUSTERTEST_STRIKES", "300"))
BATCH: Final = 20
EVERY_S: Final = 0.1
DELAYS_MS: Final = (0, 50, 200, 1_000, 3_000, 8_000)


@dataclass
class Load:
    """Sends and withdraws through the receiver, and notes what was answered."""

    link: Link
    seed: int
    due: dict[str, int] = field(default_factory=dict)
    """Accepted messages by id."""
    withdrawn: set[str] = field(default_factory=set)
    again: int = 0
    """Requests without an answer, which were repeated."""

    async def ask(self, question: str, asked: Any, kind: Any) -> Any:
        """Until it is answered."""
        while True:
            try:
                return await self.link.ask(question, ("orders", asked), kind, timeout_s=3.0)
            except (Refusal, Unreachable):
                self.again += 1
                await asyncio.sleep(0.05)

    async def run(self, stop: asyncio.Event) -> None:
        """Batches, until told to stop."""
        dice, number = random.Random(self.seed), 0
        while not stop.is_set():
            sends = [
                Send(body=b"x", id=f"m-{self.seed}-{number + place}", in_ms=dice.choice(DELAYS_MS))
                for place in range(BATCH)
            ]
            number += BATCH
            answers = await self.ask("send", sends, list[Sent | Refused])
            for answer in answers:
                assert isinstance(answer, Sent), answer
                self.due[answer.id] = answer.due_at
            some = dice.sample(sends, 3)
            changes = [Change(id=str(send.id), verb="cancel") for send in some]
            for changed in await self.ask("change", changes, list[Changed | Refused]):
                assert isinstance(changed, Changed), changed
                assert changed.outcome in {"done", "already fired"}, changed
                if changed.outcome == "done":
                    self.withdrawn.add(changed.id)
            await asyncio.sleep(EVERY_S)


def link(instance: Instance) -> Link:
    """To the receiver, wherever it is."""
    record = instance.record()

    def places() -> list[tuple[str, int]]:
        return [process.bind for process in record.of("receive") if process.bind]

    return Link("receive", places, read_token(record.token_file))


async def strike(instance: Instance, dice: random.Random) -> str:
    """Kill a node, or have it stand still. Gives its role, once it is back."""
    role = dice.choice(ROLES)
    if dice.random() < 0.5:
        dead = instance.kill(role)
        await instance.back(role, dead)
    else:
        with strikes.standing_still(instance.process(role).pid):
            await asyncio.sleep(dice.uniform(0.2, 1.5))
    return role


def more(server: Hooks, count: int) -> bool:
    """Whether there were more callbacks than this."""
    return len(server.calls) > count


def check(load: Load, server: Hooks, struck: list[tuple[float, str]]) -> int:
    """What was promised. Gives the number of doubles."""
    calls: dict[str, list[float]] = {}
    for call in server.calls:
        calls.setdefault(call.id, []).append(call.at)
    assert not load.withdrawn & calls.keys(), "a message that was withdrawn fired"
    lost = load.due.keys() - load.withdrawn - calls.keys()
    assert not lost, f"{len(lost)} of {len(load.due)} are lost"
    early = [id for id, times in calls.items() if id in load.due and min(times) < load.due[id]]
    assert not early, f"{len(early)} were early"
    doubles = {id: sorted(times) for id, times in calls.items() if len(times) > 1}
    for id, times in doubles.items():
        for first, second in pairwise(times):
            near = [
                role for at, role in struck if first - 2_000 <= at <= second and role in {"center", "messages-worker"}
            ]
            assert near, f"{id} came twice, and nothing had died between {first} and {second}: {struck}"
    return len(doubles)


@pytest.mark.parametrize(
    "count",
    [
        SHORT,
        pytest.param(LONG, marks=[pytest.mark.soak, pytest.mark.timeout(7_200)]),
    ],
    ids=["short", "long"],
)
async def test_strikes_under_load_lose_nothing_and_fire_nothing_early(
    with_messages: Make, figures: Callable[..., None], count: int
) -> None:
    seed = int(os.environ.get("MUSTERTEST_SEED", "1"))
    dice = random.Random(seed)
    instance = with_messages()
    with hooks() as server, instance.running():
        topic(instance, server, "--timeout", "5")  # a callback that is later than that is made again, rightly
        load, stop = Load(link(instance), seed), asyncio.Event()
        loading = asyncio.create_task(load.run(stop))
        struck: list[tuple[float, str]] = []
        await until(lambda: len(server.calls) > 20)
        for _ in range(count):
            at = time.time() * 1_000
            struck.append((at, await strike(instance, dice)))
            assert not loading.done(), loading.result()
            await until(functools.partial(more, server, len(server.calls) + 5))
        stop.set()
        await loading
        await load.link.close()
        await until_asked(lambda: said(instance, "delay", "ls", "orders")["matching"] == 0)
        doubles = check(load, server, struck)
        figures(strikes=count, accepted=len(load.due), withdrawn=len(load.withdrawn), doubles=doubles, again=load.again)
        assert said(instance, "delay", "ls", "orders", "--state", "dead")["matching"] == 0


async def test_a_worker_that_stood_still_for_longer_than_its_claims_fires_nothing_stale(with_messages: Make) -> None:
    instance = with_messages(up={"callback_workers": 2})
    with hooks() as server, instance.running():
        topic(instance, server, "--timeout", "0.5")
        load = Load(link(instance), 1)
        first = instance.names("messages-worker")[0]
        async with instance.stopped(first):
            sends = [Send(body=b"x", id=f"m-{number}", in_ms=0) for number in range(200)]
            for answer in await load.ask("send", sends, list[Sent | Refused]):
                load.due[answer.id] = answer.due_at
            # Its claims run out after 15.5 s; then the other one fires what it held.
            await until(lambda: load.due.keys() <= set(server.ids()))
        await until_asked(lambda: instance.status(first)["under_way"] == 0)
        calls = server.ids()
        await load.link.close()
        # What it had given to its callbacks' thread before it stood still may come again, with the same id.
        # On a busy machine a callback may also be answered too late, and be made again.
        assert len(calls) - len(set(calls)) <= 64 + instance.metrics("center")["messages_retries"]
        await until_asked(lambda: said(instance, "delay", "ls", "orders")["matching"] == 0)
