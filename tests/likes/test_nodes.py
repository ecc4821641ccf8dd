"""Several nodes of likes as real processes: clients of Redis Cluster, kill -9, a stopped owner, moves, a registry that is
away. A model judges that nothing answered is lost or counted twice."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import ClusterCrossSlotError, MovedError, RedisError

from muster_server.control.registry.server import RegistryServer
from muster_server.plane.ownership.errors import StoreError
from muster_server.systems.likes.client import Likes
from muster_server.systems.likes.reach import Reach
from muster_server.systems.likes.slots import SLOTS, partition_of, slot
from tests.control.registry.zookeeper import ZooKeeper
from tests.kafka import Kafka
from tests.likes.crowd import Crowd
from tests.redis_server import client_of
from tests.waiting import PATIENT_S, until

PARTITIONS = 8
TAKEN_OVER_S = 5.0
BUSY_S = 3.0
"""More on a machine that does other work."""
KILLS_LONG = 300
STILL = 1 << 50
"""A user of none of the crowd."""


class Nodes:
    """Processes of `tests.likes.serve_node`, by their numbers."""

    def __init__(self, folder: Path, registry: str, options: dict[str, Any]) -> None:
        self.folder, self._registry = folder, registry
        self._words = [f"{name}={value}" for name, value in {"partitions": PARTITIONS, **options}.items()]
        self.ports: dict[int, int] = {}
        self._processes: dict[int, Process] = {}

    @property
    def doors(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", port) for port in self.ports.values()]

    async def start(self, *numbers: int) -> None:
        """Until all partitions are served."""
        words = [sys.executable, "-m", "tests.likes.serve_node", str(self.folder)]
        for number in numbers:
            self._processes[number] = await asyncio.create_subprocess_exec(
                *words, str(number), self._registry, *self._words, stdout=PIPE
            )
        async with asyncio.timeout(PATIENT_S):
            for number in numbers:
                stdout = self._processes[number].stdout
                assert stdout is not None
                self.ports[number] = int(await stdout.readline())
            while set((await self.owners()).values()) & set(self.ports.values()):  # noqa: ASYNC110 - doors, until served
                await asyncio.sleep(0.05)

    def send(self, number: int, what: signal.Signals) -> None:
        self._processes[number].send_signal(what)

    async def kill(self, number: int) -> None:
        await self.end(number, signal.SIGKILL)

    async def end(self, number: int, what: signal.Signals = signal.SIGTERM) -> None:
        """Wait until it has ended."""
        process = self._processes.pop(number)
        self.ports.pop(number, None)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(what)
        async with asyncio.timeout(PATIENT_S):
            await process.wait()
        if what == signal.SIGTERM:
            assert process.returncode == 0

    async def close(self) -> None:
        for number in list(self._processes):
            await self.end(number, signal.SIGKILL)

    async def owners(self) -> dict[int, int]:
        """The port of each partition, as the first node tells it."""
        async with client(next(iter(self.ports.values()))) as redis:
            return {first * PARTITIONS // SLOTS: port for (first, _), port in (await slots(redis)).items()}


@contextlib.asynccontextmanager
async def nodes(folder: Path, *numbers: int, registry: str = "", **options: Any) -> AsyncIterator[Nodes]:
    """Nodes on an embedded registry, or on that one."""
    async with contextlib.AsyncExitStack() as stack:
        if not registry:
            (folder / "registry").mkdir(parents=True)
            await stack.enter_async_context(RegistryServer(folder / "registry", structlog.get_logger()))
            registry = str(folder / "registry")
        made = Nodes(folder / "likes", registry, {"write_behind_ms": 500, "snapshot_records": 2_000} | options)
        stack.push_async_callback(made.close)
        await made.start(*numbers)
        yield made


def client(port: int) -> Redis:
    """Of one port, which tries nothing twice."""
    return client_of(port, socket_timeout=PATIENT_S)


async def test_clients_of_redis_cluster_find_every_item(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2) as made:
        port = made.ports[1]
        async with RedisCluster(host="127.0.0.1", port=port) as cluster:
            for number in range(50):
                assert await cluster.setbit(f"share:{number}", 1 << 40, 1) == 0
            assert sum([await cluster.getbit(f"share:{number}", 1 << 40) for number in range(50)]) == 50
            assert await cluster.dbsize(target_nodes=RedisCluster.PRIMARIES) == 50
            for number in range(20):
                assert await cluster.zadd(f"game:{number}", {"alice": number, "bo": 3.5}) == 2
                assert await cluster.zrevrank(f"game:{number}", "alice") == int(number < 3.5)
            assert await cluster.zadd("{game:7}", {"alice": 1}) == 1
            assert await cluster.zrevrange("{game:7}@24h", 0, 9) == [b"alice"]
            assert await cluster.bitop("OR", "{share:1}.both", "share:1") > 0
        async with client(port) as door:
            assert isinstance(await said(door, "BITCOUNT", "share:1"), MovedError)
            assert b"cluster_slots_assigned:16384" in await said(door, "CLUSTER", "INFO")
            assert isinstance(await said(door, "DEL", "share:1", "share:2"), ClusterCrossSlotError)
        async with Likes(Reach(made.doors)) as likes:
            assert await likes.put(b"share:7", 5, True) is False
            assert await likes.put(b"share:8", 5, True) is False
            assert (await likes.top("share", 0, 3)) == [(b"share:8", 2.0), (b"share:7", 2.0), (b"share:9", 1.0)]
            shown = await likes.show(b"share:7")
            assert [(rank.field, rank.place, rank.of) for rank in shown.ranks] == [("", 1, 50), ("share", 1, 50)]
            assert await likes.both([b"share:7", b"share:8"]) == [1 << 40, 5]
            for number in range(20):
                board = b"game:%d" % number
                assert await likes.leaderboards.add(board, b"alice", 1) == number + 1
                standing = await likes.leaderboards.standing(board, b"bo", "24h")
                assert standing is not None
                assert (round(standing.score, 3), standing.of) == (3.5, 2)
            page = await likes.feed([b"share:%d" % number for number in range(60)], 5, 2)
            found = [(entry.count, entry.likes, entry.newest) for entry in page]
            wanted = [(int(number < 50), False, [1 << 40] * (number < 50)) for number in range(60)]
            wanted[7:9] = [(2, True, [5, 1 << 40])] * 2
            assert found == wanted, "a page over all partitions, in the order of the request"
            assert sorted(each.item for each in await likes.items(5, 0, 10)) == [b"share:7", b"share:8"]
        if shutil.which("redis-cli"):
            command = ["redis-cli", "-c", "-p", str(port)]
            told = "SETBIT share:1 2017 1\nBITCOUNT share:1\nGETBIT share:2 2017\nSETBIT share:2 2017 1\n"
            done = await asyncio.to_thread(subprocess.run, command, input=told, capture_output=True, text=True)
            assert [line for line in done.stdout.splitlines() if "Redirected" not in line] == ["0", "2", "0", "0"]


async def test_killed_nodes_are_taken_over_within_five_seconds(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2, 3) as made:
        crowd = Crowd(made.doors, Random(35))
        async with crowd.running():
            await crowd.until(300)
            await made.kill(1)
            await crowd.until(200)
            await made.start(1)
            await even(made, {1, 2, 3})
            await crowd.until(200)  # each client is told MOVED by now, and so hears of its new ports
            await made.kill(2)
            await made.kill(3)
            await crowd.until(200)
        assert crowd.longest_s < TAKEN_OVER_S + BUSY_S
        crowd.doors = made.doors
        await crowd.check()


async def test_stopped_owner_answers_nothing_once_it_goes_on(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2) as made:
        await even(made, {1, 2})
        before = await made.owners()
        async with Likes(Reach(made.doors)) as likes:
            for number in range(40):
                await likes.put(b"share:%d" % number, 7, True)
        of_one = await owned_by(made, 1)
        item = next(b"share:%d" % n for n in range(40) if partition_of(b"share:%d" % n, PARTITIONS) in of_one)
        async with client(before[partition_of(item, PARTITIONS)]) as stale, client(made.ports[2]) as other:
            assert await stale.getbit(item, 7) == 1
            made.send(1, signal.SIGSTOP)
            asked = asyncio.create_task(said(stale, "GETBIT", item, 7))  # waits in the socket of the stopped one
            await taken_over(other, item, before)
            async with Likes(Reach([("127.0.0.1", made.ports[2])])) as likes:
                assert await likes.put(item, 7, False) is True
            made.send(1, signal.SIGCONT)
            first = await asked
            assert isinstance(first, RedisError), f"a stopped owner answered {first} for what another one changed"
        async with client(before[partition_of(item, PARTITIONS)]) as stale:
            for words in (("GETBIT", item, 7), ("SETBIT", item, 7, 1), ("BITCOUNT", item)):
                answer = await said(stale, *words)
                assert isinstance(answer, RedisError), answer
        async with Likes(Reach(made.doors)) as likes:
            assert await likes.likes(item, 7) is False


async def said(redis: Redis, *words: Any) -> Any:
    """The answer, or the error in its place."""
    try:
        return await redis.execute_command(*words)  # type: ignore[no-untyped-call]
    except RedisError as error:
        return error


async def slots(redis: Redis) -> dict[tuple[int, int], int]:
    """The ports of the slots' owners, by first and last slot."""
    answer = await redis.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
    if isinstance(answer, dict):  # the library has parsed it
        return {each: of["primary"][1] for each, of in answer.items()}
    return {(first, last): primary[1] for first, last, primary in answer}


async def owned_by(made: Nodes, number: int) -> set[int]:
    """The partitions whose ports belong to a process."""
    pid = made._processes[number].pid
    ports = await asyncio.to_thread(listening, pid)
    return {partition for partition, port in (await made.owners()).items() if port in ports}


def listening(pid: int) -> set[int]:
    """The TCP ports on which a process listens."""
    inodes = set[str]()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(each).removeprefix("socket:[").removesuffix("]"))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(words[1].rpartition(":")[2], 16) for words in lines if words[3] == "0A" and words[9] in inodes}


async def taken_over(door: Redis, item: bytes, before: dict[int, int]) -> None:
    """Wait until another node has the item."""
    old = before[partition_of(item, PARTITIONS)]
    async with asyncio.timeout(PATIENT_S):
        while True:
            now = [port for (first, last), port in (await slots(door)).items() if first <= slot(item) <= last]
            if now and now[0] != old:
                return
            await asyncio.sleep(0.05)


async def test_partitions_move_to_a_new_node_and_away_from_one_that_ends(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1, 2) as made:
        crowd = Crowd(made.doors, Random(36))
        async with crowd.running(), whole_answers(made) as asked, slots_with_owners(made) as seen:
            await crowd.until(200)
            await made.start(3)
            await even(made, {1, 2, 3})
            await crowd.until(200)
            before = await made.owners()
            mine = await owned_by(made, 1)
            await made.end(1)
            after = await made.owners()
            assert all(after[partition] != before[partition] for partition in mine)
            await crowd.until(200)
            await until(lambda: min(asked.answers, seen.answers) > 100)
        assert crowd.refused == 0, "planned moves are waits, no errors"
        crowd.doors = made.doors
        await crowd.check()


class Watch:
    """Asks again and again while its block runs. `answers`: how many came."""

    def __init__(self, ask: Callable[[], Awaitable[None]]) -> None:
        self._ask, self.answers, self._ends = ask, 0, False

    async def __aenter__(self) -> "Watch":
        self._asking = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ends = True  # not cancelled: a library may swallow that
        await self._asking

    async def _run(self) -> None:
        while not self._ends:
            await self._ask()
            self.answers += 1
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def whole_answers(made: Nodes) -> AsyncIterator[Watch]:
    """Items that nobody changes: each ranking and each list of a user's likes has all of them, or is refused."""
    items = {b"still:%d" % number for number in range(40)}
    async with Likes(Reach(made.doors)) as likes:
        assert await likes.put_all([(item, STILL, True) for item in items]) == [False] * len(items)

        async def ask() -> None:
            try:
                assert {item for item, _ in await likes.top("still", 0, 100)} == items
                assert {each.item for each in await likes.items(STILL, 0, 100)} == items
                shown = await likes.show(b"still:7")
                assert [rank.of for rank in shown.ranks if rank.field == "still"] == [40]
            except StoreError as error:
                if not error.later:
                    raise

        async with Watch(ask) as watch:
            yield watch


@contextlib.asynccontextmanager
async def slots_with_owners(made: Nodes) -> AsyncIterator[Watch]:
    """Every node that answers names an owner of every slot."""

    async def ask() -> None:
        for port in list(made.ports.values()):
            async with client(port) as door:
                try:
                    named = await slots(door)
                except (RedisError, OSError):  # it has just ended
                    continue
            assert sum(last - first + 1 for first, last in named) == SLOTS, named

    async with Watch(ask) as watch:
        yield watch


async def even(made: Nodes, numbers: set[int]) -> None:
    """Wait until each has as many partitions as any other, or one more."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            shares = [len(await owned_by(made, number)) for number in numbers]
            if sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1:
                return
            await asyncio.sleep(0.1)


async def test_without_the_registry_likes_go_on_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "registry").mkdir()
    server = RegistryServer(tmp_path / "registry", structlog.get_logger())
    await server.__aenter__()
    async with nodes(tmp_path, 1, 2, registry=str(tmp_path / "registry")) as made:
        await even(made, {1, 2})
        before = await made.owners()
        crowd = Crowd(made.doors, Random(37))
        async with crowd.running():
            await crowd.until(100)
            await server.__aexit__()
            await asyncio.sleep(4)  # longer than a lease: nodes ask their logs whether they still own them
            await crowd.until(100)
            server = RegistryServer(tmp_path / "registry", structlog.get_logger())
            await server.__aenter__()
            await crowd.until(100)
        assert crowd.refused == 0
        assert crowd.longest_s < 1.0 + BUSY_S
        assert await made.owners() == before, "nobody took anybody for dead"
        await crowd.check()
    await server.__aexit__()


async def test_log_in_kafka_is_taken_over_and_a_stopped_owner_is_fenced(
    kafka: Kafka, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    options = {"log": kafka.url, "partitions": 4, "lease_ms": 4_000}
    async with nodes(tmp_path, 1, 2, registry=zookeeper.url, **options) as made:
        crowd = Crowd(made.doors, Random(38), clients=2)
        async with crowd.running():
            await crowd.until(100)
            made.send(1, signal.SIGSTOP)
            await crowd.until(100)
            made.send(1, signal.SIGCONT)
            await crowd.until(100)
            await made.kill(2)
            crowd.doors = made.doors
            await crowd.until(100)
        assert crowd.longest_s < TAKEN_OVER_S + BUSY_S
        await crowd.check()


@pytest.mark.soak
@pytest.mark.timeout(4 * 3_600)
async def test_nodes_that_are_killed_and_stopped_for_hours_lose_nothing(tmp_path: Path) -> None:
    kills = int(os.environ.get("MUSTERTEST_KILLS", KILLS_LONG))
    random = Random(39)
    async with nodes(tmp_path, 1, 2, 3) as made:
        crowd = Crowd(made.doors, random)
        async with crowd.running():
            for turn in range(kills):
                number = random.choice(list(made.ports))
                if turn % 5 == 4:
                    made.send(number, signal.SIGSTOP)
                    await crowd.until(60)
                    made.send(number, signal.SIGCONT)
                    await crowd.until(60)
                    continue
                await made.kill(number)
                crowd.doors = made.doors
                await crowd.until(random.randrange(20, 100))
                await made.start(number)
                crowd.doors = made.doors
        assert crowd.longest_s < TAKEN_OVER_S + BUSY_S
        await crowd.check()
