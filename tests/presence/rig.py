"""Presence as processes: real writers and readers, a real Redis for each site, and gateways in this process.

A process is killed, stopped and started as a test likes. The view that readers tell is compared with what gateways have.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL
from types import TracebackType
from typing import Final, Self

import msgspec
from redis.asyncio import from_url

from bench.presence_nodes import SECRET, Gateway, settings, spec
from muster_server.plane import systems
from muster_server.plane.calls import CallError, key_of
from muster_server.plane.kinds import kind
from muster_server.systems.presence.asking import Readers
from muster_server.systems.presence.options import PresenceSettings
from muster_server.systems.presence.questions import ShardStats
from tests.documents import ROOT
from tests.ports import free_ports
from tests.presence.cut import Way
from tests.waiting import PATIENT_S

Place = tuple[int, str, int]
"""User, device, gateway."""
OTHERS: Final = 900
"""Numbers of nodes that `muster up` would not have."""


class Process:
    """A process that a test starts, kills and starts again."""

    def __init__(
        self,
        words: Sequence[str],
        log: Path,
        prepare: Callable[[], object] = lambda: None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._words, self._log, self._prepare = words, log, prepare
        self._environment = os.environ | dict(environment or {})
        self.process: asyncio.subprocess.Process | None = None
        self.epoch = 0
        """Of a node's present life."""

    async def start(self) -> None:
        """Start it; whether it serves is for others to see."""
        self._prepare()
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=self._environment,
            )

    def signal(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    async def kill(self) -> None:
        """End it as kill -9 does."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            with contextlib.suppress(OSError):
                await self.process.stdin.wait_closed()


class Redis(Process):
    """A redis-server that may come back empty, or as it was."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        (self.port,) = free_ports(1)
        self.folder = folder / f"redis-{self.port}"
        self.folder.mkdir()
        words = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        words += ["--save", "", "--dbfilename", "dump.rdb"]
        super().__init__(words, self.folder / "log", environment=environment)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def serves(self) -> None:
        """Return once it accepts connections."""
        await self.start()
        async with asyncio.timeout(PATIENT_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.01)
                    continue
                writer.close()
                await writer.wait_closed()
                return

    async def told(self, *words: str) -> None:
        """Have it do something by redis-cli."""
        cli = await asyncio.create_subprocess_exec("redis-cli", "-p", str(self.port), *words, stdout=DEVNULL)
        assert await cli.wait() == 0


class Rig:
    """Sites with their processes. `async with` starts and ends all."""

    def __init__(
        self,
        folder: Path,
        *,
        writers: Sequence[int] = (1, 1),
        gateways: int = 2,
        lease_ms: int = 10_000,
        grace_ms: int = 5_000,
        log: str = "",
        stores: Sequence[str] = (),
        password_file: str = "",
        version: int = 0,
        window_ms: int = 50,
        cuttable: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`stores`: of others, one for each site. `version`, `window_ms`: of gateways. `cuttable`: paths from writers to
        gateways may be cut. `environment`: of all processes."""
        self.folder, self.writers_of = folder, list(writers)
        self.redis = [] if stores else [Redis(folder, environment) for _ in writers]
        self._stores, self._password_file = list(stores), password_file
        self._version, self._window_ms, self._environment = version, window_ms, environment
        self._numbers = list(range(1, 1 + gateways))
        self._lease_ms, self._grace_ms, self._feed = lease_ms, grace_ms, log
        self._epochs = itertools.count(int(time.time()))
        self._secret = folder / "cluster.secret"
        self._secret.write_text(SECRET)
        self._secret.chmod(0o600)
        self.gateways: dict[int, Gateway] = {}
        # Twice as many as there are: a test may start the nodes of other shards beside them.
        ports = free_ports(gateways * (1 + len(writers)) + 4 * (sum(writers) + 2) + 4 * len(writers))
        self._ports: Iterator[int] = iter(ports)
        self._gateway_ports = {number: next(self._ports) for number in self._numbers}
        self.ways: dict[tuple[int, int], Way] = {}
        """By site and gateway, where they may be cut."""
        if cuttable:
            for site in range(1, 1 + len(writers)):
                for number, port in self._gateway_ports.items():
                    self.ways[site, number] = Way(next(self._ports), port)
        self.writers: dict[tuple[int, int], Process] = {}
        """By site and shard."""
        self.readers: dict[int, Process] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self.asking = Readers(lambda: list(self._addresses.values()), key_of(bytes.fromhex(SECRET)))

    @property
    def settings(self) -> PresenceSettings:
        """What all nodes are told."""
        return settings(
            self._stores or [each.url for each in self.redis],
            str(self.folder),
            writers=self.writers_of,
            lease_ms=self._lease_ms,
            grace_ms=self._grace_ms,
            log=self._feed,
            password_file=self._password_file,
        )

    async def __aenter__(self) -> Self:
        for redis in self.redis:
            await redis.serves()
        for number in self._numbers:
            self.begin_gateway(number, self._version)
        for way in self.ways.values():
            await way.opened()
        index = 0
        for site, count in enumerate(self.writers_of, 1):
            for shard in range(count):
                self.writers[site, shard] = self._node("online-writer", index)
                index += 1
            self.readers[site] = self._node("online-reader", site - 1)
        for process in (*self.writers.values(), *self.readers.values()):
            await process.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        if error is not None:
            for log in sorted(self.folder.glob("*.log")):
                print(f"== {log.name}", *log.read_text(errors="replace").splitlines()[-20:], sep="\n")
        await self.asking.close()
        for gateway in self.gateways.values():
            await gateway.end()
        for way in self.ways.values():
            way.close()
        for process in (*self.writers.values(), *self.readers.values(), *self.redis):
            with contextlib.suppress(ProcessLookupError):
                if process.process is not None and process.process.returncode is None:
                    process.signal(signal.SIGCONT)
            await process.kill()

    def begin_gateway(self, number: int, version: int = 0) -> Gateway:
        """A gateway's next life."""
        made = Gateway(number, next(self._epochs), self._gateway_ports[number], version, self._window_ms)
        self.gateways[number] = made
        return made

    async def end_gateway(self, number: int) -> None:
        """A gateway ends as a kill ends it."""
        await self.gateways.pop(number).end()

    def another_writer(self) -> Process:
        """A second process for the first shard of the first site."""
        return self._node("online-writer", 0, "-later")

    async def beside(self, site: int, writers: int) -> None:
        """Start writers of another number of shards, and a reader of theirs, beside those of a site that has one shard."""
        counts = [writers if number == site else count for number, count in enumerate(self.writers_of, 1)]
        told = msgspec.structs.replace(self.settings, writers=counts, site=site)
        for shard in range(writers):
            one = msgspec.structs.replace(told, shard=shard)
            made = self._node("online-writer", shard, f"-of-{writers}", one, OTHERS + shard)
            self.writers[site, writers + shard] = made
            await made.start()
        self.readers[-site] = self._node("online-reader", -site, f"-of-{writers}", told, OTHERS + writers)
        await self.readers[-site].start()

    async def plain_reader(self, site: int) -> Readers:
        """Start one more reader of a site, which has no copies: its stores answer. To ask it alone, and for the caller to
        close."""
        told = msgspec.structs.replace(self.settings, site=site, near=False)
        index = node = OTHERS + site
        self.readers[index] = self._node("online-reader", index, "-plain", told, node)
        address = self._addresses.pop(index + 1)
        await self.readers[index].start()
        return Readers(lambda: [address], key_of(bytes.fromhex(SECRET)))

    def reader_of(self, site: int, *, beside: bool = False) -> Readers:
        """To ask the reader of a site alone, or the one of its other number of shards. For the caller to close."""
        address = self._addresses[1 - site if beside else site]
        return Readers(lambda: [address], key_of(bytes.fromhex(SECRET)))

    @staticmethod
    def epoch(stats: Mapping[tuple[int, int], ShardStats]) -> int:
        """The epoch of the writer of the first shard of the first site; 0: none has said anything."""
        writer = stats[1, 0].writer
        return 0 if writer is None else writer.epoch

    @staticmethod
    def fulls(shard: ShardStats) -> int:
        """Full states that a writer has asked for since its start."""
        return 0 if shard.writer is None else shard.writer.fulls_asked

    def _node(
        self,
        role: str,
        index: int,
        more: str = "",
        told: PresenceSettings | None = None,
        node: int | None = None,
    ) -> Process:
        of = kind(role)
        told = told or self.settings
        name = f"{role}-{index}{more}"
        file = self.folder / f"{name}.json"
        own, admin = next(self._ports), next(self._ports)
        address = ("127.0.0.1", own)
        if not of.linked:
            self._addresses[index + 1] = address
        secret = str(self._secret)
        ports = self._gateway_ports
        if self.ways and of.linked:
            site = sum(index >= sum(self.writers_of[:count]) for count in range(1, 1 + len(self.writers_of))) + 1
            ports = {number: self.ways[site, number].port for number in self._numbers}

        def prepare() -> None:
            process.epoch = next(self._epochs)
            made = spec(
                role,
                index,
                epoch=process.epoch,
                told=told,
                secret_file=secret,
                port=own,
                admin=admin,
                gateways=ports,
                node=node,
            )
            file.write_bytes(msgspec.json.encode(made))

        words = [*systems.node_command(), "--spec", str(file), "--parent", str(os.getpid())]
        process = Process(words, self.folder / f"{name}.log", prepare, self._environment)
        return process

    # ---- What is seen

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where readers answer."""
        return list(self._addresses.values())

    @property
    def truth(self) -> set[Place]:
        """What the gateways have."""
        return {place for gateway in self.gateways.values() for place in gateway.devices}

    async def view(self, users: Sequence[int], site: int) -> set[Place] | None:
        """What a site says of users; None: it refuses, or does not answer."""
        try:
            found = await self.asking.who(users, site)
        except CallError:
            return None
        return {(user.user, each.device, each.gateway) for user in found.users for each in user.devices}

    async def right(self, users: Sequence[int], seconds: float = PATIENT_S) -> None:
        """Return once every site tells what the gateways have. Raises `TimeoutError`."""
        wanted = {place for place in self.truth if place[0] in set(users)}
        for site in range(1, 1 + len(self.writers_of)):
            async with asyncio.timeout(seconds):
                while await self.view(users, site) != wanted:  # noqa: ASYNC110 - it happens in other processes
                    await asyncio.sleep(0.02)

    async def refused(self, site: int, seconds: float = PATIENT_S, asking: Readers | None = None) -> str:
        """Return the code with which a site refuses, once it does; `asking`: one of its readers."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    await (asking or self.asking).who([0, 1, 2], site)
                except CallError as error:
                    return error.code
                await asyncio.sleep(0.02)

    async def relayed(self, changes: int, seconds: float = PATIENT_S) -> None:
        """Return once the first store's stream has so many changes, and all of them are in the log."""
        keys = "{muster:presence:presence:1:1.0}:"
        async with from_url(self.redis[0].url) as client, asyncio.timeout(seconds):
            while True:
                newest = await client.xrevrange(f"{keys}outbox", count=1)
                published = await client.hget(f"{keys}meta", "relay")
                ((place, entry),) = newest or [(b"", None)]
                told = int(entry[b"n"]) + int(entry[b"k"]) if entry else 0
                if told >= changes and published == place:
                    return
                await asyncio.sleep(0.05)

    async def stats(self) -> dict[tuple[int, int], ShardStats]:
        """How the shards stand, by site and shard."""
        return {(each.site, each.shard): each for each in await self.asking.stats()}
