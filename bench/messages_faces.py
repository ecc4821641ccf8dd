"""The schedulers that the bench of delayed messages compares: Muster, and what teams use instead.

Owns their processes, which are all on the server core: start, kill -9, and a start on what they left on the disk. It must
not know loads. All of them sync their log before an answer: else a positive answer would not be durable.
"""

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final

from redis import Redis as RedisNow
from redis.asyncio import Redis as RedisClient
from redis.exceptions import RedisError

from bench import pin, whole
from bench.child import Child, ChildFailedError, free_port, listens, python_environment
from bench.messages_redis import BODIES, DUE, PUSH
from bench.peers.redis import Redis
from muster_server.control.cluster import instance as folders
from muster_server.systems.http import keys
from muster_server.systems.http.system import KEYS

BODY: Final = b'{"order": "%013d", "pad": "' + b"x" * 160 + b'"}'
START_S: Final = 60.0
END_S: Final = 60.0
ROLES: Final = ("http", "center", "messages-worker")
"""The roles that a message passes; the others of the instance are idle."""
NATS_MIN: Final = (2, 12)
"""Its first version with scheduled messages."""
NATS_TO_GET: Final = "go install github.com/nats-io/nats-server/v2@v2.15.2"


class Face(ABC):
    """One scheduler. `send` and `reset` run in one loop; all else blocks."""

    name: ClassVar[str]
    lanes: ClassVar[int]
    """Batches that are on their way at once."""
    lead_ms: ClassVar[int] = 2_500
    """Messages of a load are due so long after the first one is sent."""
    repeats_s: ClassVar[float]
    """Messages of a dead worker come again within this time after the start, or never."""

    def __init__(self, directory: Path, hook: int) -> None:
        self.directory = directory / self.name
        self.directory.mkdir(parents=True)
        self.hook = f"http://127.0.0.1:{hook}/"
        self._children: list[Child] = []

    @classmethod
    @abstractmethod
    def lacks(cls) -> str | None:
        """Why it cannot run here, with the line that mends it."""

    @abstractmethod
    def start(self) -> None:
        """Start it, on what it left there. Raises `ChildFailedError`."""

    @abstractmethod
    def pids(self) -> Mapping[str, int]:
        """Its processes, by what they are."""

    @abstractmethod
    async def send(self, due: Sequence[int]) -> None:
        """A batch with these due times is accepted durably."""

    @abstractmethod
    async def reset(self) -> None:
        """The loop ends: close its connections."""

    def clear(self) -> None:
        """Forget what was accepted, where that would hold up later messages. Usually it does not."""
        return

    def stop(self) -> None:
        """End it in order."""
        for child in reversed(self._children):
            child.process.terminate()
            try:
                child.process.wait(END_S)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        self._children.clear()

    def kill(self) -> None:
        """SIGKILL for all of its processes at once; they are gone afterwards."""
        # The processes that this one started come first: they may start the others again.
        pids = list(dict.fromkeys([*(child.pid for child in self._children), *self._others(), *self.pids().values()]))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for child in self._children:
            child.process.wait()
        self._children.clear()
        end = time.monotonic() + END_S
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
            time.sleep(0.01)

    def _others(self) -> Sequence[int]:
        """Processes beside, which no message passes."""
        return ()

    def _child(self, name: str, *argv: str, **environment: str) -> Child:
        child = Child(name, argv, core=pin.SERVER_CORE, directory=self.directory,
                      environment={**python_environment(), **environment})  # fmt: skip
        self._children.append(child)
        return child

    def _python(self, name: str, *words: str, **environment: str) -> Child:
        return self._child(name, sys.executable, "-m", *words, **environment)


class Muster(Face):
    """`muster up` with its HTTP face, its schedule in a folder."""

    name = "muster"
    lanes = 4
    repeats_s = 30.0  # claims run out after 25 s

    def __init__(self, directory: Path, hook: int) -> None:
        super().__init__(directory, hook)
        self._folder = self.directory / "instance"
        self._environment = {
            "MUSTER_INSTANCE__DIR": str(self._folder),
            "MUSTER_SYSTEMS__ENABLED": "messages,http",
            "MUSTER_LOG__LEVEL": "error",
            "MUSTER_PROBES__EVERY_MS": "0",
            "MUSTER_DATABASE__URL": "none",
            "MUSTER_HTTP__REQUESTS_RATE": "1000000",
            "MUSTER_HTTP__MESSAGES_RATE": "10000000",
            "MUSTER_HTTP__BODY_BYTES_MAX": str(4 << 20),
        }
        self._head = ""
        self._address = ("", 0)
        self._connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._pids: dict[str, int] = {}
        self._idle: list[int] = []

    @property
    def schedule(self) -> Path:
        """The folder of its schedule, for a store that fills it while it is stopped."""
        return self._folder / "messages" / "schedule"

    @classmethod
    def lacks(cls) -> str | None:
        return None

    def start(self) -> None:
        child = self._python("muster", "muster_server", "up", **self._environment)
        child.wait_until(lambda: whole.ready(folders.Folder(self._folder)), seconds=START_S)
        record = folders.find(folders.Folder(self._folder))
        self._pids = {process.role: process.pid for process in record.processes if process.role in ROLES}
        self._idle = [process.pid for process in record.processes if process.role not in ROLES]
        (face,) = record.of("http")
        assert isinstance(face.bind, tuple)
        self._address = face.bind
        if not self._head:
            _, key = keys.create(self._folder / KEYS, "bench", ("send:*",), {"send": ""})
            self._command("topic", "create", "bench", "--callback", self.hook)
            self._head = f"POST /api/v1/topics/bench/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n"

    def _command(self, *words: str) -> None:
        made = Child("command", [sys.executable, "-m", "muster_server", *words], core=pin.SERVER_CORE,
                     directory=self.directory, environment={**python_environment(), **self._environment})  # fmt: skip
        if made.process.wait(START_S):
            raise ChildFailedError(f"muster {' '.join(words)}: {made.log.read_text()}")

    def pids(self) -> Mapping[str, int]:
        return self._pids

    def _others(self) -> Sequence[int]:
        return self._idle

    async def send(self, due: Sequence[int]) -> None:
        body = b"[" + b",".join(b'{"at":%d,"data":%b}' % (at, BODY % at) for at in due) + b"]"
        given = self._connections.pop() if self._connections else await asyncio.open_connection(*self._address)
        reader, writer = given
        writer.write(
            f"{self._head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", answer)
        said = await reader.readexactly(int(length[1]) if length else 0)
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise ChildFailedError(f"muster: {answer.splitlines()[0]!r} {said[:200]!r}")
        self._connections.append(given)

    async def reset(self) -> None:
        for _, writer in self._connections:
            writer.transport.abort()
        self._connections.clear()


class _Durable(Redis):
    """Redis that syncs its log with every command."""

    def command(self, binary: str, directory: Path) -> list[str]:
        argv = super().command(binary, directory)
        place = argv.index("--appendonly")
        argv[place + 1] = "yes"
        return [*argv[: place + 2], "--appendfsync", "always", *argv[place + 2 :]]


class DurableRedis:
    """A Redis in a folder, which answers nothing that it would lose."""

    def __init__(self, directory: Path) -> None:
        self._server, self._directory = _Durable(), directory
        self._server.port = self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Child:
        """Start it, and wait until it has read what is there."""
        argv = self._server.command(self._server.find(), self._directory)
        child = Child("redis", argv, core=pin.SERVER_CORE, directory=self._directory)
        child.wait_until(self._answers, seconds=START_S)
        return child

    def _answers(self) -> bool:
        try:
            with RedisNow(port=self.port) as client:
                return bool(client.ping())
        except RedisError:
            return False

    def flush(self) -> None:
        with RedisNow(port=self.port) as client:
            client.flushall()


class _OverRedis(Face):
    """A Redis, and one process that calls back for what is due."""

    part: ClassVar[str]

    def __init__(self, directory: Path, hook: int) -> None:
        super().__init__(directory, hook)
        self.redis = DurableRedis(self.directory)
        self._pids: dict[str, int] = {}

    @classmethod
    def lacks(cls) -> str | None:
        Redis.find()
        return None

    def start(self) -> None:
        served = self.redis.start()
        self._children.append(served)
        self._pids = {"redis": served.pid, self.part: self._begin().pid}

    @abstractmethod
    def _begin(self) -> Child:
        """Start the other process."""

    def pids(self) -> Mapping[str, int]:
        return self._pids


class Pump(_OverRedis):
    """A sorted set by due time, and a pump with a Lua script."""

    name = "redis"
    part = "pump"
    lanes = 4
    repeats_s = 3.0  # it repeats nothing

    def __init__(self, directory: Path, hook: int) -> None:
        super().__init__(directory, hook)
        self._numbers = itertools.count()
        self._clients: list[Any] = []

    def _begin(self) -> Child:
        return self._python("pump", "bench.messages_redis", str(self.redis.port), self.hook)

    def clear(self) -> None:
        self.redis.flush()

    async def send(self, due: Sequence[int]) -> None:
        if not self._clients:
            self._clients.append(RedisClient(port=self.redis.port))
        arguments: list[Any] = []
        for at in due:
            arguments += [f"m-{next(self._numbers)}", at, BODY % at]
        await self._clients[0].eval(PUSH, 2, DUE, BODIES, *arguments)

    async def reset(self) -> None:
        for client in self._clients:
            await client.aclose()
        self._clients.clear()


class Dramatiq(_OverRedis):
    """Dramatiq's messages with a delay. Its client sends one at a time, so several threads do."""

    name = "dramatiq"
    part = "worker"
    lanes = 1
    lead_ms = 8_000
    repeats_s = 15.0
    threads: ClassVar[int] = 16

    def __init__(self, directory: Path, hook: int) -> None:
        super().__init__(directory, hook)
        self._senders = ThreadPoolExecutor(self.threads)
        self._broker: Any = None
        self._looks = 1_000

    @classmethod
    def lacks(cls) -> str | None:
        if find_spec("dramatiq") is None:
            return "dramatiq is not installed; it comes with muster-server[bench]"
        return super().lacks()

    def _begin(self) -> Child:
        words = ("bench.messages_dramatiq", str(self.redis.port), self.hook)
        child = self._python("worker", *words, str(self._looks))
        child.wait_until(lambda: "ready" in child.log.read_text(), seconds=START_S)
        return child

    def clear(self) -> None:
        # Its worker holds the first 8,000 of those that wait, whenever they are due: later ones wait behind them.
        self.stop()
        shutil.rmtree(self.directory / "appendonlydir", ignore_errors=True)
        self.start()

    async def send(self, due: Sequence[int]) -> None:
        from bench.messages_dramatiq import broker, message

        if self._broker is None:
            self._broker = broker(self.redis.port)

        def some(first: int) -> None:
            for at in due[first :: self.threads]:
                message(self._broker, at, (BODY % at).decode())

        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._senders, some, first) for first in range(self.threads)))

    async def reset(self) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def kill(self) -> None:
        super().kill()
        self._looks = 1_000_000  # else what the dead one held is found after minutes


class Nats(Face):
    """Scheduled messages of NATS: a stream in files, synced with each message, and one consumer that calls back."""

    name = "nats"
    lanes = 2
    lead_ms = 8_000
    repeats_s = 15.0

    def __init__(self, directory: Path, hook: int) -> None:
        super().__init__(directory, hook)
        self.port = free_port()
        self._pids: dict[str, int] = {}
        self._numbers = itertools.count()
        self._client: Any = None

    @classmethod
    def lacks(cls) -> str | None:
        if find_spec("nats") is None:
            return "nats-py is not installed; it comes with muster-server[bench]"
        if cls._binary() is None:
            return (
                f"no nats-server of {NATS_MIN[0]}.{NATS_MIN[1]} or later, which has scheduled messages: {NATS_TO_GET}"
            )
        return None

    @classmethod
    def _binary(cls) -> str | None:
        for place in (os.environ.get("PATH", ""), "/usr/sbin:/usr/local/bin", str(Path.home() / "go" / "bin")):
            for folder in place.split(os.pathsep):
                found = shutil.which("nats-server", path=folder)
                if found is None:
                    continue
                said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
                version = re.search(r"v(\d+)\.(\d+)", said)
                if version is not None and (int(version[1]), int(version[2])) >= NATS_MIN:
                    return found
        return None

    def start(self) -> None:
        binary = self._binary()
        assert binary is not None, "lacks() was asked"
        config = self.directory / "nats.conf"
        config.write_text(
            f"listen: 127.0.0.1:{self.port}\n"
            f'jetstream {{ store_dir: "{self.directory}/stream", sync_interval: always }}\n'
            "max_pending: 1073741824\n"
        )
        served = self._child("nats", binary, "-c", str(config), GOMAXPROCS="1")
        served.wait_until(lambda: listens(self.port), seconds=START_S)
        worker = self._python("worker", "bench.messages_nats", str(self.port), self.hook)
        worker.wait_until(lambda: "ready" in worker.log.read_text(), seconds=START_S)
        self._pids = {"server": served.pid, "worker": worker.pid}

    def pids(self) -> Mapping[str, int]:
        return self._pids

    async def send(self, due: Sequence[int]) -> None:
        from bench.messages_nats import Sender

        if self._client is None:
            self._client = await Sender.connected(self.port)
        await self._client.send([(f"m-{next(self._numbers)}", at, BODY % at) for at in due])

    async def reset(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None
