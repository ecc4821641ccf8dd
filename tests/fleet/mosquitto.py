"""A real mosquitto as `muster up` runs it, in a folder of its own."""

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import structlog

from muster_server.control.cluster.programs import Running
from muster_server.control.host.ports import Ports
from muster_server.plane.kind import Launch, named
from muster_server.systems.fleet.broker import PROGRAM, SECRET, access, enroll, plane_user
from muster_server.systems.fleet.options import Fleet

needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto", path="/usr/sbin:/usr/bin") is None or shutil.which("mosquitto_pub") is None,
    reason="mosquitto and mosquitto-clients are not installed",
)
PLANE = plane_user("index", 0)


class Mosquitto:
    """`start` and `stop`; it begins again by itself when it dies."""

    def __init__(self, folder: Path, clients: Sequence[str] = (), fleet: Fleet | None = None) -> None:
        """`fleet`: the configuration of the fleet [none]."""
        folder.mkdir(parents=True, exist_ok=True)
        with Ports() as ports:
            self.host, self.port = ports.tcp("test", "127.0.0.1")
        self.folder = folder
        self.words = enroll(folder, clients)
        launch = Launch(folder, self.host, self.port, lambda name: fleet)
        self.changes = 0
        self.running = Running(PROGRAM, launch, structlog.get_logger(), self._changed)

    def configure(self, change: Callable[[str], str], users: Sequence[str] = ("plane",)) -> None:
        """Have another configuration, as a broker that is not ours."""
        prepare = self.running.program.prepare
        plane_users = "".join(access().partition("pattern")[1:])

        def changed(launch: Launch) -> list[str]:
            arguments: list[str] = named(prepare)(launch)
            file = launch.folder / "mosquitto.conf"
            file.write_text(change(file.read_text()))
            all_topics = "".join(f"user {user}\ntopic readwrite fleet/#\n\n" for user in users)
            (launch.folder / "acl").write_text(all_topics + plane_users)
            return arguments

        self.running.prepare = changed

    def _changed(self) -> None:
        self.changes += 1

    async def start(self) -> None:
        await self.running.start()
        self.words[PLANE] = (self.folder / SECRET).read_text().strip()

    async def stop(self) -> None:
        await self.running.stop()

    @property
    def pid(self) -> int:
        return self.running.told().pid

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def admit(self, *names: str) -> None:
        """New clients, at once."""
        self.words |= enroll(self.folder, names)
        os.kill(self.pid, signal.SIGHUP)
