"""Real Redis servers in folders of their own: several of them, with sentinels or as a cluster. One is killed for good."""

import asyncio
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

from tests.ports import free_ports
from tests.waiting import PATIENT_S, until, until_asked

WORD = "a-password"
PATIENT_MS = 60_000
"""Until all know each other a busy machine keeps some of them silent for longer than a second."""
MASTER = re.compile(r"slave0:\S*offset=(\d+).*master_repl_offset:(\d+)", re.DOTALL)
"""A master's report: how far its replica is, and how far it is itself."""


class Redis:
    """One process, from `start` to `end`; nobody starts it again."""

    def __init__(self, folder: Path, *words: str) -> None:
        folder.mkdir(parents=True)
        self.host, (self.port, self.bus) = "127.0.0.1", free_ports(2)
        self.folder = folder
        self._sentinel = "--sentinel" in words
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}"

    async def start(self, *lines: str) -> None:
        """With these lines of its configuration."""
        own = (f"bind {self.host}", f"port {self.port}", f"dir {self.folder}", "daemonize no", "protected-mode no")
        file = self.folder / "redis.conf"
        file.write_text("\n".join((*own, *lines)) + "\n")
        command = ["redis-server", str(file), *(["--sentinel"] if self._sentinel else [])]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220 - it only starts it
        await until(self._listens)

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        with socket.socket() as tried:
            return tried.connect_ex((self.host, self.port)) == 0

    def kill(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


class Sentinels:
    """A master, a replica, and three sentinels."""

    def __init__(self, folder: Path) -> None:
        self.redis = [Redis(folder / f"redis-{number}") for number in range(2)]
        self.sentinels = [Redis(folder / f"sentinel-{number}", "--sentinel") for number in range(3)]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(each.place for each in self.sentinels)}/main"

    async def start(self) -> None:
        """Until the sentinels know the replica."""
        first, second = self.redis
        words = ('save ""', f"requirepass {WORD}", f"masterauth {WORD}")
        await first.start(*words)
        await second.start(*words, f"replicaof {first.host} {first.port}", "repl-diskless-sync-delay 0")
        for each in self.sentinels:
            await each.start(
                f"sentinel monitor main {first.host} {first.port} 2",
                f"sentinel auth-pass main {WORD}",
                f"sentinel down-after-milliseconds main {PATIENT_MS}",
                "sentinel failover-timeout main 3000",
            )

        def known() -> bool:
            said = [_asked(each, "sentinel", "master", "main") for each in self.sentinels]
            copied = "master_link_status:up" in _asked(second, "-a", WORD, "--no-auth-warning", "info", "replication")
            whole = copied and all(_field(each, "num-slaves") == "1" for each in said)
            return whole and all(_field(each, "num-other-sentinels") == "2" for each in said)

        await until_asked(known)
        for each in self.sentinels:
            _asked(each, "sentinel", "set", "main", "down-after-milliseconds", "500")

    def end(self) -> None:
        for each in (*self.sentinels, *self.redis):
            each.end()


class Cluster:
    """Three masters, each with a replica."""

    def __init__(self, folder: Path) -> None:
        self.redis = [Redis(folder / f"redis-{number}") for number in range(6)]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(each.place for each in self.redis)}"

    async def start(self) -> None:
        patient = f"cluster-node-timeout {PATIENT_MS}"
        words = ('save ""', "cluster-enabled yes", patient, "repl-diskless-sync-delay 0")
        for each in self.redis:
            await each.start(*words, f"cluster-port {each.bus}")
        places = [each.place for each in self.redis]
        command = ["redis-cli", "--cluster", "create", *places, "--cluster-replicas", "1", "--cluster-yes"]
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        said, _ = await asyncio.wait_for(process.communicate(), PATIENT_S)
        assert process.returncode == 0, said.decode()

    def master_of(self, key: str) -> Redis:
        """The one that has a key."""
        slot = int(_asked(self.redis[0], "cluster", "keyslot", key)[0])
        lines = _asked(self.redis[0], "cluster", "nodes")
        for line in lines:
            words = line.split()
            spans = [tuple(map(int, span.split("-"))) for span in words[8:] if span[0].isdigit()]
            if any(span[0] <= slot <= span[-1] for span in spans):
                port = int(words[1].partition("@")[0].rpartition(":")[2])
                return next(each for each in self.redis if each.port == port)
        raise AssertionError(lines)

    async def replicated(self) -> None:
        """Until each master has its replica, which has all that was written. From then on a silent master is replaced."""

        def ready() -> bool:
            said = ["\n".join(_asked(each, "info", "replication")) for each in self.redis]
            masters = [found for each in said if (found := MASTER.search(each))]
            linked = sum("master_link_status:up" in each for each in said)
            behind = [int(found[2]) - int(found[1]) for found in masters]
            return linked == len(masters) == 3 and max(behind) == 0

        await until_asked(ready)
        for each in self.redis:
            _asked(each, "config", "set", "cluster-node-timeout", "1000")

    def end(self) -> None:
        for each in self.redis:
            each.end()


def _asked(redis: Redis, *words: str) -> list[str]:
    command = ["redis-cli", "-h", redis.host, "-p", str(redis.port), *words]
    return subprocess.run(command, capture_output=True, check=True, timeout=PATIENT_S, text=True).stdout.splitlines()


def _field(said: list[str], name: str) -> str:
    return said[said.index(name) + 1] if name in said else ""
