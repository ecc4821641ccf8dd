"""A real ZooKeeper, alone or as an ensemble: child processes on loopback, started, killed and wiped by tests.

One serves the whole run (`tests/conftest.py`). Each test has a path of its own there.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import msgspec
import pytest

from muster_server.control.config.zookeeper import Servers
from muster_server.control.registry.tree import Tree
from muster_server.control.registry.zookeeper import ZooKeeperTree
from tests import strikes
from tests.control.registry.services import SESSION_S, until_expired
from tests.ports import free_ports
from tests.waiting import PATIENT_S

ROOT: Final = Path(__file__).parents[3]
JARS: Final = ROOT / ".tools" / "zookeeper"
DEBIAN: Final = Path("/usr/share/java/zookeeper.jar")
MEND: Final = "needs a Java runtime and ZooKeeper's jars; to get them: scripts/setup.sh --tests"
JAVA: Final = (
    *("-Xms32m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
    "-Dzookeeper.forceSync=no",  # no test cuts the power, and a slow disk may delay a sync for seconds
)
SECRET: Final = 0xB3415C00
"""Servers derive the passwords of their sessions from it."""
_PATHS: Final = itertools.count(1)


def need() -> str:
    """The class path. Skips if something is missing, and fails if nothing may be."""
    if any(JARS.glob("zookeeper-*.jar")):
        found = f"{JARS}/*"
    else:
        found = f"{DEBIAN}:{DEBIAN.with_name('slf4j-nop.jar')}" if DEBIAN.exists() else ""
    if found and shutil.which("java"):
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(MEND)
    pytest.skip(MEND)


class Server:
    """One process, in a folder of its own. `quorum` are the ports of all of an ensemble."""

    def __init__(
        self,
        folder: Path,
        number: int,
        port: int,
        quorum: Sequence[tuple[int, int]],
        jaas: str = "",
        secure: tuple[int, Path] | None = None,
    ) -> None:
        self.folder, self.number, self.port, self._class_path = folder, number, port, need()
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        lines = [
            "tickTime=250",
            "initLimit=40",
            "syncLimit=12",
            "maxClientCnxns=0",
            "minSessionTimeout=500",
            "maxSessionTimeout=60000",
            "4lw.commands.whitelist=srvr",
            "clientPortAddress=127.0.0.1",
            "admin.enableServer=false",
            f"dataDir={folder / 'data'}",
            f"clientPort={port}",
        ]
        if quorum:
            lines += ["quorumListenOnAllIPs=false", "cnxTimeout=1"]
            lines += [f"server.{index}=127.0.0.1:{one}:{two}" for index, (one, two) in enumerate(quorum, 1)]
        self._options = list(JAVA)
        if jaas:
            (folder / "jaas.conf").write_text(jaas)
            lines.append("authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider")
            self._options.append(f"-Djava.security.auth.login.config={folder / 'jaas.conf'}")
        if secure:
            lines += _tls(*secure)
        (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """With the folder's content, unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(str(self.number))
        main = ["-cp", self._class_path, "org.apache.zookeeper.server.quorum.QuorumPeerMain"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    "setpriv",
                    "--pdeathsig=KILL",
                    "java",
                    *self._options,
                    "-Djava.net.preferIPv4Stack=true",
                    *main,
                    str(self.folder / "zoo.cfg"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        """0 where it was not started."""
        return self._process.pid if self._process is not None else 0

    def kill(self) -> None:
        """kill -9."""
        strikes.kill(self.pid)
        self.end()

    def end(self) -> None:
        """The same, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def mode(self) -> str:
        """`standalone`, `leader` or `follower`; nothing while it serves nobody."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as asking:
                asking.settimeout(1.0)
                asking.sendall(b"srvr")
                answer = b"".join(iter(lambda: asking.recv(4096), b"")).decode()
        except OSError:
            return ""
        return next((line.removeprefix("Mode: ") for line in answer.splitlines() if line.startswith("Mode: ")), "")


class ZooKeeper:
    """A registry of one server or several."""

    def __init__(self, path: Path, size: int = 1, *, jaas: str = "", tls: Path | None = None) -> None:
        """`tls`: the folder of `tests.certificates`; each server then has a secure port too, and asks for certificates."""
        ports = iter(free_ports(4 * size))
        clients = [next(ports) for _ in range(size)]
        quorum = [(next(ports), next(ports)) for _ in range(size)] if size > 1 else []
        secure = [None if tls is None else (next(ports), tls) for _ in range(size)]
        self.servers = [
            Server(path / f"zookeeper-{index}", index, port, quorum, jaas, at)
            for index, (port, at) in enumerate(zip(clients, secure, strict=True), 1)
        ]
        self.secure_hosts = ",".join(f"127.0.0.1:{at[0]}" for at in secure if at)
        self.hosts = ",".join(f"127.0.0.1:{port}" for port in clients)
        self.root = ""
        """The path below which a test works."""

    @property
    def url(self) -> str:
        """As the configuration names it."""
        return f"zk://{self.hosts}{self.root}"

    async def serve_another_test(self) -> None:
        """Serve, below a path that no test has used."""
        self.root = f"/test-{next(_PATHS)}"
        await self.start()

    async def start(self) -> None:
        for server in self.servers:
            server.start()
        await self.ready()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """While the block lasts, unless it does otherwise."""
        await self.start()
        try:
            yield self
        finally:
            self.end()

    @contextlib.contextmanager
    def standing_still(self, *servers: Server) -> Iterator[None]:
        """SIGSTOP of these, of all without any, while the block lasts."""
        with strikes.standing_still(*(server.pid for server in servers or self.servers)):
            yield

    def end(self) -> None:
        """Kill those that run, if any does."""
        for server in self.servers:
            server.end()

    async def ready(self, how_many: int | None = None) -> None:
        """Wait until this many serve."""
        wanted = len(self.servers) if how_many is None else how_many
        async with asyncio.timeout(PATIENT_S):
            while sum(bool(mode) for mode in await self.modes()) < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def modes(self) -> list[str]:
        """Of each server."""
        return await asyncio.gather(*(asyncio.to_thread(server.mode) for server in self.servers))

    async def leader(self) -> Server:
        """The current leader."""
        return self.servers[(await self.modes()).index("leader")]

    async def stop(self) -> None:
        assert any(strikes.runs(server.pid) for server in self.servers), "none of them runs"
        self.end()

    async def wipe(self) -> None:
        self.end()  # they may stand already
        for server in self.servers:
            shutil.rmtree(server.folder / "data")
        await self.start()

    def tree(self, session_s: float = SESSION_S) -> Tree:
        return ZooKeeperTree(Servers(self.hosts, self.root, session_s=session_s))

    async def expire(self, tree: Tree) -> None:
        """A second client takes the session over and ends it. Returns when the first one knows that."""
        assert isinstance(tree, ZooKeeperTree)

        async def steal() -> None:
            client = tree._client
            # None while there is no connection
            if client is not None and (session := client.client_id) is not None:
                await asyncio.to_thread(_steal, self.hosts, session)

        await until_expired(tree, steal)

    async def expire_node(self, root: str, number: int) -> None:
        """End the session of the node with this number that is registered below `root`, of another process."""
        await asyncio.to_thread(_expire_node, self.hosts, root, number)


def _tls(port: int, folder: Path) -> list[str]:
    """A secure port, with the certificate of `server` and clients' of the same authority."""
    store = folder / "server.store.pem"
    store.write_text((folder / "server.key").read_text() + (folder / "server.pem").read_text())
    return [
        f"secureClientPort={port}",
        "secureClientPortAddress=127.0.0.1",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.clientAuth=need",
        "ssl.keyStore.type=PEM",
        f"ssl.keyStore.location={store}",
        "ssl.trustStore.type=PEM",
        f"ssl.trustStore.location={folder / 'ca.pem'}",
        "ssl.hostnameVerification=false",  # clients' certificates name no host
    ]


def _expire_node(hosts: str, root: str, number: int) -> None:
    from kazoo.client import KazooClient
    from kazoo.exceptions import NoNodeError

    looking = KazooClient(hosts)
    looking.start(PATIENT_S)

    def registered(path: str) -> Iterator[int]:
        with contextlib.suppress(NoNodeError):  # gone meanwhile
            data, stat = looking.get(path)
            if stat.ephemeralOwner and msgspec.json.decode(data)["node"] == number:
                yield stat.ephemeralOwner
            for child in looking.get_children(path):
                yield from registered(f"{path}/{child}")

    try:
        (session,) = set(registered(root))
        while session in set(registered(root)):  # its owner returns for it at once, and may be quicker
            _steal(hosts, (session, _password(session)))
    finally:
        looking.stop()
        looking.close()


def _password(session: int) -> bytes:
    """As `SessionTrackerImpl` and `java.util.Random` make it."""
    mask, factor = (1 << 48) - 1, 0x5DEECE66D
    state = (session ^ SECRET ^ factor) & mask
    password = b""
    for _ in range(4):
        state = (state * factor + 11) & mask
        password += struct.pack("<I", state >> 16)
    return password


def _steal(hosts: str, session: tuple[int, bytes]) -> None:
    """Its owner may take it back at once: so check again whether it is over."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    thief = KazooClient(hosts, client_id=session)
    try:
        thief.start(10)
    except KazooTimeoutError:  # kazoo also reports it when it lost its connection and has ended itself
        return
    thief.stop()
    thief.close()
