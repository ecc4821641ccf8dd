"""Probes over real processes: every path is seen, paths over a lossy link are worst, and those of a stopped node
fail."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from muster_server.control.cluster.instance import Process
from muster_server.control.cluster.supervisor import Supervisor
from muster_server.control.config.layout import Seat
from muster_server.control.config.load import load
from muster_server.control.errors import UserError
from muster_server.control.terminal import common
from muster_server.plane.spec import Spec
from tests import forked, strikes
from tests.faults.conftest import Make
from tests.faults.instance import APART, COMMAND, samples
from tests.waiting import PATIENT_S

LOSES = ("proxy-1", "broker")
"""The one link, in this direction."""
LOSS = 0.3
SETTINGS = {
    "up.gateways": 2,
    "up.brokers": "2x2",
    "up.proxies": 2,
    "registry.url": "embedded",
    "registry.session_ms": 60_000,  # who stands still stays on the map
    "probes.every_ms": 100,
    "probes.failures": 3,
    "probes.successes": 2,
}


class Lossy(Supervisor):
    """Starts an instance with one link that loses datagrams of one direction."""

    def spec(self, seat: Seat) -> Spec:
        made = super().spec(seat)
        if seat.name != LOSES[0]:
            return made
        peer = next(self._links[other] for other in self._links if other.name == LOSES[1])
        return msgspec.structs.replace(made, faults=[("out", peer, LOSS, 0.0, 0.0, 0.0, 0, 0, 0, 1.0)])

    def prober(self) -> Process:
        """The process that probes steadily."""
        return self.record().of("prober")[0]

    def paths(self) -> list[dict[str, Any]]:
        """The prober's answer; nothing while it does not answer."""
        if not self.record().of("prober"):
            return []
        try:
            paths: list[dict[str, Any]] = common.get(self.prober(), "/api/v1/status")[1]["paths"]
        except UserError:
            return []
        return paths


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Lossy]:
    values = SETTINGS | {"instance.dir": str(tmp_path / "i")}
    config = load(environment={}, flags={key: (value, "test") for key, value in values.items()}).config
    async with Lossy(config, structlog.get_logger()) as made:
        yield made


async def eventually(condition: Callable[[], object]) -> None:
    """Ask another process until it holds."""
    async with asyncio.timeout(PATIENT_S):
        while not condition():  # noqa: ASYNC110 - it happens in another process: no event to wait for
            await asyncio.sleep(0.1)


async def links(supervisor: Lossy, *words: str) -> list[dict[str, Any]]:
    """The paths that `muster links` shows."""
    environment = os.environ | {"MUSTER_INSTANCE__DIR": str(supervisor.folder.path)}
    asked = forked.server(COMMAND).run
    done = await asyncio.to_thread(asked, ("links", "--json", *words), environment, seconds=PATIENT_S)
    assert done.returncode == 0
    paths: list[dict[str, Any]] = json.loads(done.stdout)["paths"]
    return paths


def ways(paths: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {(line["proxy"], line["broker"], line["gateway"]) for line in paths if line["seen"] > 0}


async def test_every_path_is_seen_what_loses_or_stands_still_is_found_and_the_prober_comes_back(
    supervisor: Lossy,
) -> None:
    async with asyncio.timeout(PATIENT_S):
        while len(ways(await links(supervisor, "--probe", "3"))) < 2 * 4 * 2:
            pass  # the lossy link may have lost all
    names = {process.node: process.name for process in supervisor.record().processes}
    stopped = next(process for process in supervisor.record().processes if process.name == "broker-3")

    def slowest() -> set[tuple[str, str]]:
        """Proxy and broker of the two slowest paths."""
        paths = sorted(supervisor.paths(), key=lambda each: each["p99_ms"] or 0.0)[-2:]
        return {(names[each["path"][0]], names[each["path"][1]]) for each in paths}

    def over() -> list[dict[str, Any]]:
        """The paths by the broker that stands still for a while."""
        return [each for each in supervisor.paths() if each["path"][1] == stopped.node]

    await eventually(lambda: len([each for each in supervisor.paths() if each["seen"]]) == 16)
    await eventually(lambda: slowest() == {LOSES})
    with strikes.standing_still(stopped.pid):
        await eventually(lambda: [each["failing"] for each in over()] == [True] * 4)
        page = common.fetch(supervisor.prober(), "/metrics")[1].decode()
        (failing,) = [line for line in page.splitlines() if line.startswith("muster_probe_paths_failing{")]
        assert failing.startswith('muster_probe_paths_failing{name="muster-prober",node="1073741824",role="prober"} ')
        assert not failing.endswith(" 0.0")
        worst = next(line for line in page.splitlines() if line.startswith("muster_probe_path_failing{"))
        assert all(f'{role}_name="muster-{role}' in worst for role in ("proxy", "broker", "gateway"))
    await eventually(lambda: [each["failing"] for each in over()] == [False] * 4)
    assert all(each["failures"] >= 1 and each["availability"] < 1 for each in over())
    assert len(ways(await links(supervisor))) == 16, "those of the prober, which goes on"
    dead = supervisor.prober().pid
    strikes.kill(dead)
    await eventually(lambda: supervisor.prober().pid not in {0, dead} and supervisor.paths())


async def test_by_default_all_paths_are_probed_and_who_stands_still_is_an_alarm_wherever_one_looks(make: Make) -> None:
    instance = make(up=APART, probes={}, registry={"session_ms": 60_000})  # who stands still stays on the map

    async def shown(*words: str) -> list[dict[str, Any]]:
        done = await asyncio.to_thread(instance.ran, "links", "--json", *words, seconds=PATIENT_S)
        paths: list[dict[str, Any]] = json.loads(done.stdout).get("paths", [])
        return paths

    def counted(name: str) -> float:
        (prober,) = instance.record().of("prober")
        return samples(common.fetch(prober, "/metrics")[1].decode())[name]

    with instance.running("--gateways", "2", "--brokers", "2x2", "--routers", "1x2", "--proxies", "2"):
        async with asyncio.timeout(PATIENT_S):
            while len(ways(await shown())) < 2 * 4 * 2:
                pass
        await eventually(lambda: counted("probe_paths_failing") == 0)
        assert max(path["sent"] for path in await shown("--probe", "4")) > 5, "oftener, as somebody waits for it"
        async with instance.stopped("broker-3"), asyncio.timeout(PATIENT_S):
            while {path["broker"] for path in await shown() if "down" in path["beyond"]} != {"broker-3"}:
                pass
            await eventually(lambda: counted("probe_paths_failing") == 4)
        told = [json.loads(line) for line in instance.log.read_text().splitlines() if '"path fails"' in line]
        assert len(told) == counted("probe_alarms")
        by_it = [line for line in told if line["broker"] == instance.process("broker-3").node]
        assert len(by_it) == 4, told
        starved = {name for name in instance.names() if instance.metrics(name).get("stalls")} - {"broker-3"}
        assert len(told) == len(by_it) or starved, told


async def test_an_instance_begins_and_ends_to_probe_by_sighup(make: Make) -> None:
    instance = make()

    def prober() -> Process | None:
        return next(iter(instance.record().of("prober")), None)

    def is_there() -> bool:
        return prober() is not None

    with instance.running() as up:
        assert prober() is None
        settings = instance.config.read_text()
        for every_ms, wanted in ((100, True), (0, False), (200, True)):
            instance.config.write_text(settings.replace("every_ms = 0", f"every_ms = {every_ms}"))
            up.send_signal(signal.SIGHUP)
            await eventually(is_there if wanted else lambda: not is_there())
            assert f'"in_force": {{"probes.every_ms": {every_ms}}}' in instance.log.read_text()
        await eventually(lambda: (known := prober()) and known.ready)


async def test_sighup_during_a_start_does_not_end_it_and_is_a_reload_later(make: Make) -> None:
    instance = make()

    def hang_up() -> None:
        while not instance.log.exists() or '"started"' not in instance.log.read_text():
            time.sleep(0.001)
        instance.config.write_text(instance.config.read_text().replace("every_ms = 0", "every_ms = 100"))
        instance.hang_up()

    early = asyncio.create_task(asyncio.to_thread(hang_up))
    await asyncio.sleep(0)
    with instance.running():
        await early
        await eventually(lambda: bool(instance.record().of("prober")))


async def test_links_say_how_paths_get_probed_where_none_is(make: Make) -> None:
    instance = make()
    with instance.running():
        done = await asyncio.to_thread(instance.ran, "links", "--json", seconds=PATIENT_S)
        assert "paths" not in json.loads(done.stdout)
        assert done.stderr.decode() == (
            "muster: paths are not probed: set probes.every_ms and send SIGHUP to muster up, or add --probe SECONDS\n"
        )
        assert done.returncode == 0
