"""The wall clock of real processes is set an hour ahead, and back, while messages wait: nothing is early by the clock as it
then is, nothing is lost, and each step is told."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from muster_server.systems.messages.shapes import Change, Changed, Refused, Send, Sent
from tests.faults.hooks import Hooks, hooks
from tests.faults.instance import Instance, configuration
from tests.faults.test_messages import said, topic
from tests.faults.test_messages_killed import Load, link
from tests.stepped import SteppedClock
from tests.waiting import until, until_asked

HOUR_MS: Final = 3_600_000
HOLD_MS: Final = 10_000
"""`HOLD_MS` of `core/messages/src/clock.rs`."""
SOME: Final = 30


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[SteppedClock]:
    with SteppedClock.made(tmp_path) as made:
        yield made


class Stepped(Instance):
    """Its nodes have the clock; `muster up` and commands have the true one."""

    def __init__(self, path: Path, clock: SteppedClock) -> None:
        quiet: dict[str, Any] = {"database": {"url": "none"}, "probes": {"every_ms": 0}}
        super().__init__(path, configuration(**quiet, systems={"enabled": "messages"}))
        self._clock = clock

    @property
    def environment(self) -> dict[str, str]:
        return super().environment | self._clock.environment


async def send(load: Load, name: str, in_ms: int) -> set[str]:
    """Some messages. Gives their ids."""
    sends = [Send(body=b"x", id=f"{name}-{number}", in_ms=in_ms) for number in range(SOME)]
    answers = await load.ask("send", sends, list[Sent | Refused])
    load.due |= {each.id: each.due_at for each in answers}
    return {each.id for each in answers}


def have_come(server: Hooks, ids: set[str]) -> Callable[[], bool]:
    return lambda: ids <= set(server.ids())


async def test_a_wall_clock_that_is_set_makes_nothing_early_and_loses_nothing(
    tmp_path: Path, clock: SteppedClock, figures: Callable[..., None]
) -> None:
    instance = Stepped(tmp_path, clock)
    with hooks() as server, instance.running():
        topic(instance, server)
        load = Load(link(instance), 1)
        half_an_hour, soon = await send(load, "half-an-hour", HOUR_MS // 2), await send(load, "soon", 1_500)

        clock.set(HOUR_MS)
        stepped_ms = time.time() * 1_000
        await until_asked(lambda: instance.metrics("center")["messages_clock_steps"] == 1)
        ahead = await send(load, "ahead", 500)
        await until(have_come(server, half_an_hour | soon | ahead))
        stood_ms = min(call.at for call in server.calls if call.id in half_an_hour) - stepped_ms
        assert stood_ms >= HOLD_MS - 50, "a clock that was set ahead is followed once it has stood"

        late = await send(load, "late", 3_000)
        clock.set(0)
        await until_asked(lambda: instance.metrics("center")["messages_clock_steps"] == 2)
        back = await send(load, "back", 500)
        await until(have_come(server, back))
        # The hour comes again: the late ones wait. The others' outcomes are stored, or a kill would have them fired again.
        await until_asked(lambda: said(instance, "delay", "ls", "orders")["matching"] == SOME)
        dead = instance.kill("center")
        await instance.back("center", dead)
        again = await send(load, "again", 500)
        await until(have_come(server, again))
        await until_asked(lambda: said(instance, "delay", "ls", "orders")["matching"] == SOME)

        changes = [Change(id=id, verb="advance", at=clock.now_ms()) for id in late]
        for changed in await load.ask("change", changes, list[Changed | Refused]):
            assert changed.outcome == "done", changed
            load.due[changed.id] = changed.due_at
        await until(have_come(server, late))
        await load.link.close()
        assert instance.log.read_text().count('"the wall clock was set"') == 2
        ids = server.ids()
        assert sorted(ids) == sorted(load.due), "each once"
        early = [call.id for call in server.calls if clock.latest(call.at) < load.due[call.id]]
        assert not early, early
        figures(messages=len(ids), followed_after_ms=round(stood_ms))
