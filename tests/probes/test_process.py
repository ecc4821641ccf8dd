"""The process of the prober under a supervisor: what it is told anew comes into force, nonsense is said, no more."""

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any

import msgspec
import structlog

from muster_server.control.cluster import instance, specs
from muster_server.control.config import load as config
from muster_server.control.host.ports import Ports
from muster_server.control.registry.places import Snapshot
from muster_server.control.registry.server import RegistryServer
from muster_server.plane import systems
from muster_server.plane.kinds import kind
from muster_server.plane.spec import Spec
from tests.documents import ROOT
from tests.waiting import until


class Watched:
    """What a process logs."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.lines: list[dict[str, Any]] = []

    async def read(self) -> None:
        """Until it ends."""
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.lines.append(json.loads(line))

    async def said(self, event: str) -> dict[str, Any]:
        """Wait for a line of this event."""
        await until(lambda: any(line["event"] == event for line in self.lines))
        return next(line for line in self.lines if line["event"] == event)


async def test_what_the_prober_is_told_anew_comes_into_force_and_nonsense_changes_nothing(tmp_path: Path) -> None:
    values = {"instance.dir": str(tmp_path / "i"), "registry.url": "embedded", "probes.every_ms": 1_000}
    settings = config.load(environment={}, flags={key: (value, "test") for key, value in values.items()}).config
    place = instance.folder(settings)
    instance.prepare(place)
    with Ports() as ports:
        admin, file = ports.tcp("admin", "127.0.0.1"), tmp_path / "spec.json"
    number = kind("prober").numbers[0]
    own = specs.Own("prober", "prober", number, epoch=1, partition=0, bind=None, link_bind=None, admin=admin)
    registration = specs.registration(settings, place, own, "muster-prober", None, "")
    told = specs.spec(settings, place, own, Snapshot(), registration)
    file.write_bytes(msgspec.json.encode(told))
    command = [*systems.node_command(), "--spec", str(file), "--parent", str(os.getpid())]
    async with RegistryServer(place.path, structlog.get_logger(), sessions=False):
        await _told_anew(command, file, told)


async def _told_anew(command: list[str], file: Path, told: Spec) -> None:
    def write(content: bytes) -> None:
        file.write_bytes(content)

    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=DEVNULL, stderr=PIPE)
    watched = Watched(process)
    reading = asyncio.create_task(watched.read())
    try:
        await watched.said("started")
        write(b'{"instance": 1}')
        process.send_signal(signal.SIGHUP)
        line = await watched.said("not reloaded, the old configuration stays")
        assert str(file) in line["error"]
        write(msgspec.json.encode(msgspec.structs.replace(told, log_level="warning")))
        process.send_signal(signal.SIGHUP)
        assert (await watched.said("reloaded"))["in_force"] == {"log.level": "warning"}
        process.terminate()
        await reading
        assert await process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        reading.cancel()
    assert all("Traceback" not in json.dumps(line) for line in watched.lines)
