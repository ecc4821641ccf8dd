"""Probes over real processes: every hash path is seen, over a link that loses the worst ones; who stands still fails."""

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import structlog

from control.commands.found import Where, client_of, mapped
from control.config import load
from control.layout import Seat
from control.probes.paths import Figures
from control.probes.paths import Path as Way
from control.probes.prober import Prober, Source
from control.supervisor import Supervisor
from plane.spec import Spec, secret
from tests.waiting import until

MUSTER = (sys.executable, "-m", "control.cli")
ROOT = Path(__file__).parents[2]
PATIENT_S = 60.0
LOSES = ("proxy-1", "broker")
"""The one link, in this direction."""
LOSS = 0.6
NODES = {"up.gateways": 2, "up.brokers": "2x2", "up.proxies": 2}


class Lossy(Supervisor):
    """Starts an instance with one link that loses what is sent one way."""

    def spec(self, seat: Seat) -> Spec:
        made = super().spec(seat)
        if seat.name != LOSES[0]:
            return made
        peer = next(self._links[other] for other in self._links if other.name == LOSES[1])
        return msgspec.structs.replace(made, faults=[("out", peer, LOSS, 0.0, 0.0, 0.0, 0, 0, 0, 1.0)])


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    values = NODES | {
        "instance.dir": str(tmp_path / "i"),
        "registry.url": "embedded",
        "registry.session_ms": 60_000,  # who stands still stays on the map
        "probes.failures": 3,
        "probes.successes": 2,
    }
    config = load(environment={}, flags={key: (value, "test") for key, value in values.items()}).config
    async with Lossy(config, structlog.get_logger()) as made:
        yield made


async def test_every_path_is_seen_and_what_loses_or_stands_still_is_found(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = supervisor.folder
    monkeypatch.setenv("MUSTER_INSTANCE__DIR", str(place.path))
    command = await asyncio.create_subprocess_exec(*MUSTER, "links", "--probe", "3", "--json", cwd=ROOT, stdout=PIPE)
    async with asyncio.timeout(PATIENT_S):
        said, _ = await command.communicate()
    assert command.returncode == 0
    lines = json.loads(said)["paths"]
    assert len({(line["proxy"], line["broker"], line["gateway"]) for line in lines}) == 2 * 4 * 2
    assert all(line["seen"] > 0 and line["last_ms"] != 0 for line in lines)

    names = {process.node: process.name for process in supervisor.record().processes}
    numbers = {name: node for node, name in names.items()}
    async with mapped(Where()) as (_, snapshot):
        source = Source(snapshot, client_of(supervisor.record()), secret(str(place.name_key), 16))
        prober = Prober(supervisor.config.probes, source, structlog.get_logger(), every_s=0.1)
        work = asyncio.create_task(prober.run())

        def worst() -> set[tuple[str, str]]:
            """The proxy and broker of the two slowest paths."""
            slowest = sorted(figures(prober), key=lambda each: each.p99_ms or 0.0)[-2:]
            return {(names[each.path.proxy], names[each.path.broker]) for each in slowest}

        await until(lambda: len(figures(prober)) == 16 and all(each.seen for each in figures(prober)), PATIENT_S)
        await until(lambda: worst() == {LOSES}, PATIENT_S)
        stopped = numbers["broker-3"]
        over = {way for way in (each.path for each in figures(prober)) if way.broker == stopped}
        assert len(over) == 4
        pid = next(process.pid for process in supervisor.record().processes if process.node == stopped)
        os.kill(pid, signal.SIGSTOP)
        try:
            await until(lambda: over <= failing(prober), PATIENT_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        await until(lambda: not over & failing(prober), PATIENT_S)
        assert all(each.failures >= 1 and each.availability < 1 for each in figures(prober) if each.path in over)
        assert not work.done()
        work.cancel()
        await asyncio.wait([work])


def figures(prober: Prober) -> list[Figures]:
    return list(prober.ledger.figures(time.monotonic()))


def failing(prober: Prober) -> set[Way]:
    return {each.path for each in figures(prober) if each.failing}
