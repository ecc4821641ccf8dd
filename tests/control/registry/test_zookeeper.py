"""Real ZooKeeper servers, one and three, under faults: nobody's map empties, and all nodes return."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import pytest
import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.security import make_acl

from muster_server.control.config.zookeeper import Servers, servers
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.identities import numbers
from muster_server.control.registry.places import Node, Snapshot
from muster_server.control.registry.tree import Create, Entry, NoNode, Refused, Session, Unavailable
from muster_server.control.registry.zookeeper import ZooKeeperTree
from tests.certificates import certificates
from tests.control.nodes import partitions
from tests.control.registry.services import connected, until_session
from tests.control.registry.zookeeper import ZooKeeper
from tests.slowness import Slowness
from tests.waiting import PATIENT_S, until

LOG = structlog.get_logger()
ROLES = ("router", "broker", "gateway", "proxy")
JAAS = """
Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_muster="canary-secret"; };
"""

GATEWAY = """
import asyncio, sys, structlog
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.places import Node
from muster_server.control.config.zookeeper import Servers
from muster_server.control.registry.zookeeper import ZooKeeperTree
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
async def main():
    servers = Servers(sys.argv[1], sys.argv[2], session_s=60.0)
    async with Directory(ZooKeeperTree(servers), structlog.get_logger()) as directory:
        identity = await directory.identity("gateway")
        directory.announce("gateway", Node(identity.node, "gateway", "127.0.0.1", 7001, epoch=identity.epoch))
        await directory.settled()
        print("registered", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """Not yet started."""
    made = ZooKeeper(tmp_path_factory.mktemp("ensemble"), 3)
    yield made
    made.end()


@pytest.fixture
async def ensemble(three: ZooKeeper) -> ZooKeeper:
    """Three running ones, with a path of their own for this test."""
    await three.serve_another_test()
    return three


class Cluster:
    """A process of each role, and an observer. Every map of every process is kept."""

    def __init__(self, servers: Servers, stack: AsyncExitStack) -> None:
        self._servers, self._stack = servers, stack
        self.directories: list[Directory] = []
        self.trees: list[ZooKeeperTree] = []
        self.maps: list[Snapshot] = []

    async def add(self) -> Directory:
        """One more process."""
        tree = ZooKeeperTree(self._servers)
        made = Directory(tree, LOG, spread_s=0.05, poll_s=2.0)
        made.on_snapshot = self.maps.append
        self.directories.append(await self._stack.enter_async_context(made))
        self.trees.append(tree)
        return made

    async def start(self) -> None:
        """All of them, until all know each other."""
        for role in ROLES:
            directory = await self.add()
            identity = await directory.identity(role)
            directory.announce(role, _node(role, identity.node, identity.epoch), partitions=2)
        await self.add()
        await self.agree()
        self.maps.clear()

    async def agree(self, above: int = 0) -> None:
        """Wait until all know each other, all with epochs above this one."""
        for directory in self.directories:
            await until(lambda: _whole(directory.snapshot, above))  # noqa: B023

    @property
    def epochs(self) -> list[int]:
        """By node, as the observer knows them."""
        return [node.epoch for node in self.directories[-1].snapshot.nodes]


def _node(role: Any, number: int, epoch: int = 0) -> Node:
    return Node(number, role, "127.0.0.1", 7_000 + number % 1_000, epoch=epoch)


def _whole(snapshot: Snapshot, above: int = 0) -> bool:
    return sorted(node.role for node in snapshot.nodes if node.epoch > above) == sorted(ROLES)


async def test_the_death_of_the_leader_loses_nothing_and_nobody(ensemble: ZooKeeper) -> None:
    async with AsyncExitStack() as stack:
        cluster = Cluster(Servers(ensemble.hosts, ensemble.root, PATIENT_S), stack)
        await cluster.start()
        epochs, writer, acknowledged = cluster.epochs, cluster.trees[-1], list[str]()
        for _ in range(2):
            leader = await ensemble.leader()
            before = len(acknowledged)
            writing = asyncio.create_task(_write(writer, acknowledged))
            await until(lambda: len(acknowledged) > before + 20)  # noqa: B023
            leader.kill()
            at_kill = len(acknowledged)
            await until(lambda: len(acknowledged) > at_kill + 20)  # noqa: B023
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            leader.start()
            await ensemble.ready()
        late = await cluster.add()
        await cluster.agree()
        assert set(acknowledged) <= {f"/written/{name}" for name in await cluster.trees[-1].children("/written")}
        assert cluster.epochs == epochs
        assert all(_whole(snapshot) for snapshot in cluster.maps if snapshot.nodes)
        assert partitions(late.snapshot) == (2, 2)


async def _write(tree: ZooKeeperTree, acknowledged: list[str]) -> None:
    while True:
        try:
            acknowledged.append(await tree.create("/written/w", b"x", sequence=True))
        except Unavailable:
            await asyncio.sleep(0.02)


async def test_an_ensemble_that_is_away_leaves_the_map_and_all_register_again_after(ensemble: ZooKeeper) -> None:
    async with AsyncExitStack() as stack:
        cluster = Cluster(Servers(ensemble.hosts, ensemble.root, 2.0), stack)
        await cluster.start()
        before = [directory.snapshot for directory in cluster.directories]
        highest = max(cluster.epochs)
        await ensemble.stop()
        for tree in cluster.trees:
            await until_session(tree, "expired")
        assert [directory.snapshot for directory in cluster.directories] == before
        await ensemble.start()
        await cluster.agree(above=highest)
        assert all(sorted(node.role for node in snapshot.nodes) == sorted(ROLES) for snapshot in cluster.maps)


async def test_an_ensemble_whose_data_is_wiped_is_filled_again(ensemble: ZooKeeper) -> None:
    async with AsyncExitStack() as stack:
        cluster = Cluster(Servers(ensemble.hosts, ensemble.root, 2.0), stack)
        await cluster.start()
        numbers = {node.role: node.node for node in cluster.directories[-1].snapshot.nodes}
        highest = max(cluster.epochs)
        await ensemble.wipe()
        await cluster.agree(above=highest)
        fresh = await cluster.add()
        await cluster.agree(above=highest)
        assert {node.role: node.node for node in fresh.snapshot.nodes} == numbers
        assert partitions(fresh.snapshot) == (2, 2)
        assert all(
            sorted(node.role for node in snapshot.nodes) == sorted(ROLES) for snapshot in cluster.maps if snapshot.nodes
        )


async def test_a_stolen_session_is_a_new_registration_with_a_higher_epoch_every_time(ensemble: ZooKeeper) -> None:
    async with AsyncExitStack() as stack:
        cluster = Cluster(Servers(ensemble.hosts, ensemble.root, 4.0), stack)
        await cluster.start()
        for tree in cluster.trees[:-1] * 2:
            before = sum(cluster.epochs)
            await ensemble.expire(tree)
            await until(lambda: len(cluster.epochs) == 4 and sum(cluster.epochs) > before)  # noqa: B023
        await cluster.agree()
        assert all(_whole(snapshot) for snapshot in cluster.maps)


async def test_a_session_is_stolen_though_its_owner_is_between_two_connections(zookeeper: ZooKeeper) -> None:
    """A fault that a test injects has taken place when the helper returns."""
    tree, said = zookeeper.tree(PATIENT_S), list[Session]()
    await connected(tree)
    await tree.create("/mine", ephemeral=True)
    tree.on_session(said.append)
    await zookeeper.stop()
    await until_session(tree, "suspended")
    stealing = asyncio.create_task(zookeeper.expire(tree))
    await asyncio.sleep(0)  # it begins while there is no connection
    await zookeeper.start()
    await stealing
    assert "expired" in said
    await until_session(tree, "connected")
    assert await tree.get("/mine") is None
    await tree.close()


async def test_a_restart_quicker_than_the_session_replaces_the_old_one_at_once(zookeeper: ZooKeeper) -> None:
    tree, maps = ZooKeeperTree(Servers(zookeeper.hosts, zookeeper.root)), list[Snapshot]()
    async with Directory(tree, LOG, spread_s=0.0) as watching:
        watching.on_snapshot = maps.append
        first = await _gateway(zookeeper)
        await until(lambda: [node.node for node in watching.snapshot.nodes] == [next(numbers("gateway"))])
        first.kill()
        await first.wait()
        (registered,) = await tree.children("/pubsub/gateway")
        second = await _gateway(zookeeper)
        try:
            await until(lambda: len({node.epoch for snapshot in maps for node in snapshot.nodes}) == 2)
            assert len(await tree.children("/pubsub/gateway")) == 2
            gone = asyncio.Event()
            tree.watch("/pubsub/gateway", gone.set)
            await tree.children("/pubsub/gateway")
            await zookeeper.expire_node(f"{zookeeper.root}/pubsub/gateway/{registered}", next(numbers("gateway")))
            await asyncio.wait_for(gone.wait(), PATIENT_S)
            assert len(await tree.children("/pubsub/gateway")) == 1
            assert [len(snapshot.nodes) for snapshot in maps] == [1, 1]
        finally:
            second.kill()
            await second.wait()


async def _gateway(zookeeper: ZooKeeper) -> asyncio.subprocess.Process:
    """A process of its own that has registered."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", GATEWAY, zookeeper.hosts, zookeeper.root),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"registered\n"
    return process


async def test_a_server_that_stands_still_is_an_expired_session_before_it_says_so(zookeeper: ZooKeeper) -> None:
    tree, said = ZooKeeperTree(Servers(zookeeper.hosts, zookeeper.root, session_s=4.0)), list[Session]()
    tree.on_session(said.append)
    await connected(tree)
    await tree.create("/mine", ephemeral=True)
    with zookeeper.standing_still():
        await until_session(tree, "suspended")
        with pytest.raises(Unavailable):
            await tree.get("/mine")
        await until_session(tree, "expired")
    await until_session(tree, "connected")
    await until(lambda: said == ["connected", "suspended", "expired", "connected"])
    await tree.create("/again", ephemeral=True)
    await tree.close()


class Front:
    """In front of a server: passes connections on, but `keeps` some of the next ones and never reads them."""

    def __init__(self, port: int) -> None:
        self._port, self.keeps = port, 0
        self.hosts = ""
        self._open: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.hosts = f"{host}:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """End all connections."""
        while self._open:
            ended = self._open.pop()
            ended.close()
            with contextlib.suppress(OSError):
                await ended.wait_closed()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        if self.keeps:
            self.keeps -= 1
            return
        theirs, other = await asyncio.open_connection("127.0.0.1", self._port)
        self._open.append(other)
        await asyncio.gather(self._pass_on(reader, other), self._pass_on(theirs, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while read := await reader.read(1 << 16):
                writer.write(read)
        writer.close()


async def test_a_server_that_takes_a_connection_and_never_reads_it_costs_no_session(zookeeper: ZooKeeper) -> None:
    """ZooKeeper does so with a client that comes as it starts, about once in twenty starts."""
    async with Front(zookeeper.servers[0].port) as front:
        tree, said = ZooKeeperTree(Servers(front.hosts, zookeeper.root, session_s=4.0)), list[Session]()
        tree.on_session(said.append)
        front.keeps = 1
        await connected(tree)
        await tree.create("/mine", ephemeral=True)
        front.keeps = 1
        await front.cut()
        await until_session(tree, "suspended")
        await until_session(tree, "connected")
        assert said == ["connected", "suspended", "connected"]
        assert front.keeps == 0
        assert await tree.get("/mine") == Entry(b"", 0)
        await tree.close()


class Counting(ZooKeeperTree):
    """Counts its questions to the server."""

    asked = 0

    async def _ask(self, *arguments: Any) -> Any:
        self.asked += 1
        return await super()._ask(*arguments)


async def test_what_did_not_change_is_not_asked_for_again(zookeeper: ZooKeeper) -> None:
    watching, changing = (
        Counting(Servers(zookeeper.hosts, zookeeper.root)),
        ZooKeeperTree(Servers(zookeeper.hosts, zookeeper.root)),
    )
    await connected(watching, changing)
    told = asyncio.Event()
    for number in range(20):
        await changing.create(f"/w/x/{number}", b"1")
    watching.watch("/w", told.set)

    async def takes(change: Awaitable[object] | None = None) -> int:
        if change is not None:
            told.clear()
            await change
            await asyncio.wait_for(told.wait(), PATIENT_S)
        before = watching.asked
        await watching.children("/w/x")
        return watching.asked - before

    assert await takes() == 21
    assert await takes() == 0
    assert await takes(changing.set("/w/x/7", b"2")) == 1
    assert await takes(changing.create("/w/x/new")) == 2
    assert await takes() == 0
    watching.forget()
    assert await takes() == 22
    await zookeeper.stop()
    await zookeeper.start()
    await until_session(watching, "connected")
    assert await takes() == 22, "of what changed while nobody was connected nobody tells"
    for tree in (watching, changing):
        await tree.close()


async def test_what_is_below_a_path_of_its_own_is_made_and_seen_there(zookeeper: ZooKeeper) -> None:
    below, whole = (
        ZooKeeperTree(Servers(zookeeper.hosts, f"{zookeeper.root}/deep/down")),
        ZooKeeperTree(Servers(zookeeper.hosts, zookeeper.root)),
    )
    await connected(below, whole)
    told = asyncio.Event()
    assert await below.children("/") == {}
    assert await below.create("/a/b", b"1") == "/a/b"
    assert set(await below.children("/")) == {"a"}
    assert await whole.get("/deep/down/a/b") == Entry(b"1", 0)
    below.watch("/a", told.set)
    await below.get("/a/b")
    told.clear()
    await whole.set("/deep/down/a/b", b"2")
    await asyncio.wait_for(told.wait(), PATIENT_S)
    with pytest.raises(NoNode):
        await below.set("/deep/down/a/b", b"3")
    for tree in (below, whole):
        await tree.close()


async def test_what_is_above_its_own_path_may_be_locked(tmp_path: Path) -> None:
    async with ZooKeeper(tmp_path).running() as alone:
        mine = ZooKeeperTree(Servers(alone.hosts, "/mine", digest="muster:canary-secret"))
        outside = ZooKeeperTree(Servers(alone.hosts, digest="muster:canary-secret"))
        await connected(mine, outside)
        await outside.create("/mine")
        await _locked(alone.hosts)
        with pytest.raises(Refused):
            await outside.create("/other")
        assert await mine.create("/pubsub/ids") == "/pubsub/ids"
        await mine.transaction([Create("/first", b""), Create("/deep/down/there", b"")])
        assert set(await mine.children("/")) == {"pubsub", "first", "deep"}
        for tree in (mine, outside):
            await tree.close()


async def _locked(hosts: str) -> None:
    """From now on nobody makes anything at the root."""

    def lock() -> None:
        client = KazooClient(hosts)
        client.start()
        try:
            client.set_acls("/", [make_acl("world", "anyone", read=True)])
        finally:
            client.stop()
            client.close()

    await asyncio.to_thread(lock)


async def test_with_a_digest_nobody_else_reads_or_writes(zookeeper: ZooKeeper) -> None:
    mine = ZooKeeperTree(Servers(zookeeper.hosts, zookeeper.root, digest="muster:canary-secret"))
    wrong, nobody = (
        ZooKeeperTree(Servers(zookeeper.hosts, zookeeper.root, digest="muster:guess")),
        ZooKeeperTree(Servers(zookeeper.hosts, zookeeper.root)),
    )
    await connected(mine, wrong, nobody)
    await mine.create("/private/entry", b"1")
    for tree in (wrong, nobody):
        for attempt in (
            tree.get("/private/entry"),
            tree.children("/private"),
            tree.set("/private/entry", b"2"),
            tree.create("/private/other"),
            tree.delete("/private/entry"),
        ):
            with pytest.raises(Refused):
                await attempt
    assert await mine.get("/private/entry") == Entry(b"1", 0)
    assert "canary" not in repr(Servers("h:1", digest="muster:canary-secret"))
    for tree in (mine, wrong, nobody):
        await tree.close()


async def test_with_sasl_nobody_else_reads_and_a_wrong_password_gets_no_session(tmp_path: Path) -> None:
    service = ZooKeeper(tmp_path, jaas=JAAS)
    await service.start()
    sasl = {"mechanism": "DIGEST-MD5", "username": "muster", "password": "canary-secret"}
    mine = ZooKeeperTree(Servers(service.hosts, session_s=PATIENT_S, sasl=sasl))
    wrong = ZooKeeperTree(Servers(service.hosts, session_s=2.0, sasl=sasl | {"password": "guess"}))
    nobody = ZooKeeperTree(Servers(service.hosts))
    try:
        await connected(mine, nobody)
        await mine.create("/private/entry", b"1")
        with pytest.raises(Refused):
            await nobody.get("/private/entry")
        await wrong.start()
        with pytest.raises(Unavailable):
            await wrong.get("/private/entry")
        await service.stop()
        await until_session(mine, "suspended")
        await service.start()
        await until_session(mine, "connected")
        assert await mine.get("/private/entry") == Entry(b"1", 0)
    finally:
        for tree in (mine, wrong, nobody):
            await tree.close()
        service.end()


async def test_by_tls_only_servers_of_the_authority_are_spoken_to_and_only_clients_of_it_are_heard(
    tmp_path: Path,
) -> None:
    certificates(tmp_path, "node")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    certificates(foreign, "node")
    zookeeper = ZooKeeper(tmp_path, tls=tmp_path)

    def tree(ca: Path = tmp_path, own: Path = tmp_path, hosts: str = "", session_s: float = 2.0) -> ZooKeeperTree:
        keys: dict[str, Any] = {
            "ca": str(ca / "ca.pem"),
            "certificate": str(own / "node.pem"),
            "key": str(own / "node.key"),
        }
        return ZooKeeperTree(Servers(hosts or zookeeper.secure_hosts, session_s=session_s, **keys))

    async with zookeeper.running(), AsyncExitStack() as stack:
        good = tree(session_s=PATIENT_S)
        stack.push_async_callback(good.close)
        await connected(good)
        await good.create("/pubsub", b"told")
        wrong = {
            "another authority": tree(ca=foreign),
            "a certificate of another authority": tree(own=foreign),
            "no name of the server's certificate": tree(hosts=zookeeper.secure_hosts.replace("127.0.0.1", "localhost")),
            "no TLS": tree(hosts=zookeeper.hosts),
        }
        seen: list[str] = []
        for name, each in wrong.items():
            each.on_session(lambda session, name=name: seen.append(f"{name}: {session}"))  # type: ignore[misc]
            stack.push_async_callback(each.close)
            await each.start()
        first = {name: each._client for name, each in wrong.items()}
        await until(lambda: not any(each._client is first[name] for name, each in wrong.items()), PATIENT_S)
        assert not [said for said in seen if said.endswith(": connected")]
        entry = await good.get("/pubsub")
        assert entry is not None
        assert entry.data == b"told"


@pytest.mark.parametrize(
    "url",
    [
        "zk://",
        "zk://host",
        "zk://host:0",
        "zk://host:65536",
        "zk://a:1,/x",
        "zk://a:1/../x",
        "host:1",
        "zk://a..b:1",
        f"zk://{'a' * 64}.b:1",
    ],
)
def test_what_names_no_servers_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"invalid (address|server|path)"):
        servers(url)


def test_servers_are_read_from_one_line() -> None:
    assert servers("zk://a:2181,[::1]:2182/team/x/") == Servers("a:2181,[::1]:2182", "/team/x")
    assert servers("zk://a:2181", session_s=3.0) == Servers("a:2181", session_s=3.0)


async def test_a_connection_that_is_lost_in_the_midst_of_many_requests_does_not_stand_in_the_loop_s_way(
    zookeeper: ZooKeeper,
) -> None:
    tree = ZooKeeperTree(Servers(zookeeper.hosts, zookeeper.root, session_s=4.0))
    await connected(tree)
    for at in range(900):
        await tree.create(f"/many/n-{at}", b"x")
    longest, ends, slow = 0.0, asyncio.Event(), Slowness()

    async def beat() -> None:
        nonlocal longest
        loop = asyncio.get_running_loop()
        while not ends.is_set():
            before = loop.time()
            await asyncio.sleep(0.05)
            longest = max(longest, loop.time() - before)

    beating = asyncio.create_task(beat())
    client = tree._client
    assert client is not None
    sent, send = 0, client._connection._submit

    def submit(*arguments: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == 100:
            for server in zookeeper.servers:
                server.kill()
            raise ConnectionDropped("by the test")
        send(*arguments)

    client._connection._submit = submit
    with pytest.raises(Unavailable):
        await tree.children("/many")
    with pytest.raises(Unavailable):
        await asyncio.gather(*(tree.get(f"/many/n-{at}") for at in range(900)))
    await asyncio.sleep(2.0)
    ends.set()
    await beating
    await zookeeper.start()
    await until_session(tree, "connected")
    assert len(await tree.children("/many")) == 900
    await tree.close()
    assert longest < slow.limit(1.0)
