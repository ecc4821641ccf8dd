"""A real `muster up` in a folder of its own: its nodes by pid, their answers, signals to each.

Owns the processes that it started and ends them by their ids. Knows nothing of rooms.
"""

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pytest

from bench import cpu
from muster_server.control.cluster.instance import Endpoint, Folder, Process, Record, find
from muster_server.control.errors import UserError
from tests import forked, strikes
from tests.waiting import PATIENT_S, until

ROOT: Final = Path(__file__).parents[2]
COMMAND: Final = "muster_server"
MUSTER: Final = (sys.executable, "-m", COMMAND)
ROLES: Final = ("router", "broker", "gateway", "proxy")
"""Also the names of the nodes where there is one of each."""
APART: Final = {"processes": "apart"}
"""For `up`, in tests about one node of several: a process that others share would end with it."""
SAMPLE: Final = re.compile(r'(?P<name>[a-z_]+)\{(?P<labels>(?:[^"}]|"[^"]*")*)\} (?P<value>\S+)')


@dataclass(slots=True)
class Peak:
    """The most memory of a node, in bytes, over all its processes."""

    rss: dict[str, int] = field(default_factory=dict)

    def see(self, name: str, rss: int) -> None:
        """Take one sample."""
        self.rss[name] = max(self.rss.get(name, 0), rss)

    def mib(self) -> dict[str, int]:
        """For people."""
        return {name: rss >> 20 for name, rss in self.rss.items()}


class Instance:
    """One running instance."""

    def __init__(self, path: Path, configuration: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.folder = Folder(path / "instance")
        self.config = path / "muster.toml"
        self.config.write_text(configuration)
        self._says_processes = "processes" in tomllib.loads(configuration).get("up", {})
        self.log = path / "up.log"
        self.peak = Peak()
        self._up: forked.Process | None = None

    # --- life -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self, *words: str) -> Iterator[forked.Process]:
        """`muster up` with these words, from ready to its end."""
        with self.log.open("ab") as log:
            self._up = forked.server(COMMAND).start(
                ["up", *words], self.environment, stdout=subprocess.PIPE, stderr=log
            )
        try:
            self._until_ready()
            yield self._up
        finally:
            self.end()

    def _until_ready(self) -> None:
        assert self._up is not None
        deadline = time.monotonic() + PATIENT_S
        while not self.is_ready():
            assert self._up.poll() is None, f"muster up ended with {self._up.returncode}:\n{self.tail()}"
            assert time.monotonic() < deadline, f"not ready after {PATIENT_S} s:\n{self.tail()}"
            time.sleep(0.02)

    def is_ready(self) -> bool:
        """Whether all nodes serve."""
        try:
            record = self.record()
        except UserError:
            return False
        return all(process.ready for process in record.processes)

    def hang_up(self) -> None:
        """Send SIGHUP, also during the start."""
        assert self._up is not None
        self._up.send_signal(signal.SIGHUP)

    def end(self) -> int:
        """End the instance as Ctrl-C does. Returns its exit code."""
        assert self._up is not None
        if self._up.poll() is None:
            for pid in self.pids().values():  # a stopped process cannot drain
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self._up.send_signal(signal.SIGINT)
        try:
            self._up.communicate(timeout=PATIENT_S)
            return self._up.wait()
        except subprocess.TimeoutExpired:
            self._up.kill()
            self._up.communicate()
            raise

    @property
    def environment(self) -> dict[str, str]:
        """The environment of commands for this instance."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        mine = {"MUSTER_CONFIG": str(self.config), "MUSTER_INSTANCE__DIR": str(self.folder.path)}
        if registry := os.environ.get("MUSTERTEST_REGISTRY"):
            mine["MUSTER_REGISTRY__URL"] = registry
        if (processes := os.environ.get("MUSTERTEST_PROCESSES")) and not self._says_processes:
            mine["MUSTER_UP__PROCESSES"] = processes
        return kept | mine | {"NO_COLOR": "1", "COLUMNS": "200"}

    def command(self, *words: str, **streams: Any) -> forked.Process:
        """Start a command against this instance."""
        return forked.server(COMMAND).start(words, self.environment, **streams)

    def ran(self, *words: str, stdin: bytes = b"", seconds: float = PATIENT_S) -> subprocess.CompletedProcess[bytes]:
        """A short command against this instance, to its end."""
        return forked.server(COMMAND).run(words, self.environment, stdin, seconds)

    def tail(self) -> str:
        """The end of the instance's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    # --- who is there ---------------------------------------------------------------------------------------------

    def record(self) -> Record:
        """Read `instance.json`. Raises `UserError`."""
        return find(self.folder)

    def process(self, name: str) -> Process:
        """One node's entry."""
        return next(process for process in self.record().processes if process.name == name)

    def names(self, *roles: str) -> list[str]:
        """The nodes of these roles, of all without any."""
        return [process.name for process in self.record().processes if not roles or process.role in roles]

    def pids(self) -> dict[str, int]:
        """The nodes that run, by name."""
        try:
            return {process.name: process.pid for process in self.record().processes if process.pid}
        except UserError:
            return {}

    def kill(self, name: str) -> int:
        """kill -9. Returns the pid that is gone."""
        pid = self.process(name).pid
        strikes.kill(pid)
        return pid

    def terminate(self, name: str) -> int:
        """SIGTERM, as an operator sends it. Returns the pid that drains."""
        pid = self.process(name).pid
        strikes.terminate(pid)
        return pid

    def fellows(self, name: str) -> set[str]:
        """The nodes of its process, it included."""
        processes = self.record().processes
        pid = next(each.pid for each in processes if each.name == name)
        return {each.name for each in processes if each.pid == pid}

    def one_of_each_process(self) -> list[str]:
        """The first node of each process: to kill another of the same would be the same."""
        firsts = dict[int, str]()
        for process in self.record().processes:
            firsts.setdefault(process.pid, process.name)
        return list(firsts.values())

    async def renew(self, name: str, end: Callable[["Instance", str], int] | None = None) -> set[str]:
        """End a node's process, by kill -9 unless in another way, and wait until all its nodes serve again in the next one.
        Returns these."""
        fellows = self.fellows(name)
        dead = (end or Instance.kill)(self, name)
        for each in sorted(fellows):
            await self.back(each, dead)
        return fellows

    async def back(self, name: str, dead: int) -> float:
        """Wait until another process of the node serves. Returns the time, on the monotonic clock."""

        def serves() -> bool:
            process = self.process(name)
            return process.ready and process.pid not in {0, dead}

        await until(serves, PATIENT_S)
        return time.monotonic()

    @contextlib.asynccontextmanager
    async def stopped(self, name: str) -> AsyncIterator[None]:
        """SIGSTOP while the block lasts."""
        with strikes.standing_still(self.process(name).pid):
            yield

    # --- what they say --------------------------------------------------------------------------------------------

    def get(self, node: str, path: str) -> str:
        """Ask a node's admin port."""
        host, port = self.process(node).admin
        connection = http.client.HTTPConnection(host, port, timeout=PATIENT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read().decode()
            assert response.status == 200, f"{node}{path}: {response.status} {body}"
            return body
        finally:
            connection.close()

    def status(self, node: str) -> dict[str, Any]:
        """`/api/v1/status`."""
        answer: dict[str, Any] = json.loads(self.get(node, "/api/v1/status"))
        return answer

    def metrics(self, node: str) -> Mapping[str, float]:
        """`/metrics` without the prefix `muster_` and the suffix `_total`; labels that all have are left out."""
        return samples(self.get(node, "/metrics"))

    def cpu_s(self) -> float:
        """Processor time of all nodes since they started, in seconds. It hardly depends on what else the machine does."""
        return cpu.total_ns(self.pids().values()) / 1e9

    def room(self, node: str, name: str) -> dict[str, Any]:
        """A node's answer about one room."""
        answer: dict[str, Any] = json.loads(self.get(node, f"/api/v1/rooms/{quote(name, safe='')}"))
        return answer

    def interest(self, node: str) -> list[tuple[int, str]]:
        """A node's answer about interest, sorted."""
        return sorted((gateway, room) for gateway, room in self.pages(node, "interest"))

    def pages(self, node: str, what: str) -> Iterator[Any]:
        """All pages of a node's `rooms` or `interest`."""
        after: str | None = ""
        while after is not None:
            page = json.loads(self.get(node, f"/api/v1/{what}?after={after}&limit=1000"))
            yield from page[what]
            after = page["next"]

    def interest_agrees(self) -> bool:
        """Whether routers and brokers know exactly what the gateways want of their partition's rooms."""
        truth = sorted(wanted for gateway in self.names("gateway") for wanted in self.interest(gateway))
        for role in "router", "broker":
            partitions = {name: self.process(name).partition for name in self.names(role)}
            count = 1 + max(partitions.values())
            for name, partition in partitions.items():
                if self.interest(name) != [(node, room) for node, room in truth if int(room, 16) % count == partition]:
                    return False
        return True

    async def watch_memory(self, every_s: float = 0.1) -> None:
        """Sample every node's memory until cancelled."""
        while True:
            self.sample_memory()
            await asyncio.sleep(every_s)

    def sample_memory(self) -> None:
        """Look once."""
        for name, pid in self.pids().items():
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                line = next(line for line in lines if line.startswith("VmRSS"))
                self.peak.see(name, int(line.split()[1]) << 10)


def reach(end: Endpoint) -> tuple[str, int, str]:
    """The address of a node for clients."""
    return end.host, end.port, end.public_key


def need_ipv6() -> None:
    """Skips if there is none."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 on this machine")


def samples(page: str) -> dict[str, float]:
    """The samples of a page of `/metrics`, without the prefix `muster_`, the suffix `_total`, and common labels."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if match := SAMPLE.fullmatch(line):
            name = match["name"].removeprefix("muster_").removesuffix("_total")
            labels = [
                label for label in match["labels"].split(",") if not label.startswith(("role=", "node=", "name="))
            ]
            found[name + ("{" + ",".join(labels) + "}" if labels else "")] = float(match["value"])
    return found


def configuration(**sections: Mapping[str, Any]) -> str:
    """TOML of one level of tables, a dot in a name being `__`."""
    lines: list[str] = []
    for name, keys in sections.items():
        lines.append(f"[{name.replace('__', '.')}]")
        lines += [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"
