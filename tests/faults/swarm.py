"""Real clients of a fleet in the test's own loop, and what each of them was asked and did."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from muster.fleet import Agent, BrokerRefused
from muster_server.control.cluster.instance import Beside
from muster_server.systems.fleet.broker import NAME, enroll
from tests.faults.instance import Instance
from tests.waiting import until

MARKS = ({"country": ["CN"], "province": ["520000"]}, {"country": ["CN"], "province": ["310000"]})


class Counted(Agent):
    """Counts how often it did each run; says nothing at all to the runs of a `deaf` time."""

    deaf = False
    work_s = 0.0

    def __init__(self, *words: Any, **more: Any) -> None:
        super().__init__(*words, **more)
        self.did: Counter[str] = Counter()
        self.starts: list[float] = []

    def _order(self, run: str, kind: str, target: str, options: dict[str, Any]) -> None:
        if not self.deaf:
            super()._order(run, kind, target, options)

    async def _do(self, run: str, *more: Any) -> None:
        self.did[run] += 1
        await super()._do(run, *more)

    async def _serve(self) -> None:
        self.starts.append(time.monotonic())
        await super()._serve()


class Swarm:
    """So many clients of an instance, from `start` to `stop`."""

    def __init__(self, instance: Instance, count: int, *, prefix: str = "c", spread_s: float = 1.0) -> None:
        self.names = [f"{prefix}{number}" for number in range(count)]
        self.agents: list[Counted] = []
        self._instance, self._spread_s = instance, spread_s
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, seconds: float = 30.0) -> None:
        beside = broker(self._instance)
        words = await asyncio.to_thread(enroll, self._instance.folder.program(NAME), self.names)
        os.kill(beside.pid, signal.SIGHUP)
        url = f"mqtt://{beside.bind[0]}:{beside.bind[1]}"
        for number, name in enumerate(self.names):
            made = Counted(url, name, words[name], MARKS[number % len(MARKS)], spread_s=self._spread_s)
            made.task("ping")(self._ping)
            self.agents.append(made)
            self._tasks.append(asyncio.create_task(self._kept(made)))
        await until(lambda: all(agent.connected for agent in self.agents), seconds)

    async def _kept(self, agent: Counted) -> None:
        """A password that the broker reads only now is tried again."""
        while True:
            try:
                await agent.run()
            except BrokerRefused:
                await asyncio.sleep(random.uniform(0.1, 0.5))

    async def _ping(self, target: str, options: dict[str, Any]) -> dict[str, float]:
        await asyncio.sleep(float(options.get("work_s", 0.0)))
        return {"ms": 1.5}

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def connected(self) -> int:
        return sum(agent.connected for agent in self.agents)

    def did(self) -> Counter[tuple[str, str]]:
        """How often each client did each run."""
        return Counter({(run, agent.name): count for agent in self.agents for run, count in agent.did.items()})


@contextlib.asynccontextmanager
async def swarm(instance: Instance, count: int, **more: Any) -> Any:
    """Connected clients until the end of the context."""
    made = Swarm(instance, count, **more)
    try:
        await made.start()
        yield made
    finally:
        await made.stop()


def program(instance: Instance, name: str) -> Beside:
    """A program that runs beside the instance."""
    programs: Sequence[Beside] = instance.record().programs or ()
    return next(each for each in programs if each.name == name)


def broker(instance: Instance) -> Beside:
    """Its mosquitto."""
    return program(instance, NAME)
