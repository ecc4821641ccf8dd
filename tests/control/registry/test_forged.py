"""A stranger's writes into the registry are refused in one line, the last good map stays, and true values still
arrive."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import pytest
import structlog

from muster_server.control.registry.directory import Directory
from muster_server.control.registry.epoch import EPOCH_MAX
from muster_server.control.registry.places import CLUSTERS_MAX, Count, Growth, Node, encode
from muster_server.control.registry.tree import Create, Tree
from tests.control.registry.services import Service, connected
from tests.control.registry.zookeeper import ZooKeeper
from tests.waiting import PATIENT_S, until

FLOOD: Final = 10_000
COUNTS: Final = {"broker/main": 1, "broker/chat": 2, "router": 1}


def node(number: int, role: str, **more: Any) -> Node:
    return Node(number, role, "127.0.0.1", 7_000 + number, **more)


NODES: Final = (
    node(1, "broker"),
    node(2, "broker", cluster="chat"),
    node(3, "router"),
    node(4, "gateway", client=("127.0.0.1", 7_104), public_key="ab" * 32),
)


class Cluster:
    """Several processes in a registry, its readers, and a stranger who writes there."""

    def __init__(self, made: Sequence[Directory], watching: Directory, stranger: Tree) -> None:
        self.made, self.watching, self.stranger = made, watching, stranger

    def map(self) -> list[tuple[int, str, str]]:
        return [(each.node, each.cluster, each.state) for each in self.watching.snapshot.nodes]

    async def write(self, path: str, data: bytes) -> None:
        """Over the existing value."""
        if await self.stranger.get(f"/pubsub/{path}") is None:
            await self.stranger.create(f"/pubsub/{path}", data)
        else:
            await self.stranger.set(f"/pubsub/{path}", data)

    async def refused(self, path: str, data: bytes, cause: str) -> None:
        """Write this; it is refused for this cause, and nothing else changes."""
        good = self.watching.snapshot
        await self.write(path, data)
        await until(lambda: cause in self.watching.refused.get(path, ""), PATIENT_S)
        assert self.watching.snapshot is good, path

    async def lives(self) -> None:
        """Registered nodes' values still reach all."""
        for state in ("draining", "running"):
            for each in self.made:
                each.update(state)
                await each.settled()
            await until(lambda state=state: {each[2] for each in self.map()} == {state}, PATIENT_S)  # type: ignore[misc]


@pytest.fixture
async def cluster(
    make: Callable[..., Tree],
) -> AsyncIterator[Cluster]:
    log = structlog.get_logger()
    async with contextlib.AsyncExitStack() as stack:

        async def opened() -> Directory:
            return await stack.enter_async_context(
                Directory(make(PATIENT_S), log, poll_s=60.0, spread_s=0.05, hold_s=60.0)
            )

        made = [await opened() for _ in NODES]
        for directory, each in zip(made, NODES, strict=True):
            await directory.identity(f"node-{each.node}", each.node)
            directory.announce(f"node-{each.node}", each, COUNTS.get(f"broker/{each.cluster}", 1))
            await directory.settled()
        stranger = make(PATIENT_S)
        await connected(stranger)
        found = Cluster(made, await opened(), stranger)
        await until(lambda: len(found.map()) == len(NODES), PATIENT_S)
        yield found


def broker(**changed: Any) -> bytes:
    """An entry of the second cluster, with a change in its text."""
    known: dict[str, Any] = {"node": 9, "role": "broker", "host": "127.0.0.1", "link_port": 7_009, "cluster": "chat"}
    return json.dumps(known | changed).encode()


ENTRIES: Final = [
    (b"nonsense", "malformed"),
    (b"", "truncated"),
    (b"\xff\xfe\x00", "malformed"),
    (broker(host="\udcff".encode("utf-8", "surrogatepass").decode("latin-1")), "invalid address"),
    (b'{"node":9,"role":"broker","host":"\xff\xff","link_port":1,"cluster":"chat"}', "utf-8"),
    (broker(link_port=0), "no port for links"),
    (broker(link_port=99_999), "<= 65535"),
    (broker(link_port="7009"), "Expected `int`"),
    (broker(host="everywhere"), "invalid address"),
    (broker(host="0.0.0.0"), "cannot be the address of a process"),
    (broker(host="127.0.0.1" * 20), "length <= 64"),
    (broker(client=["127.0.0.1", 0]), ">= 1"),
    (broker(admin=["::", 7_490]), "cannot be the address of a process"),
    (broker(cluster="main"), "broker/main"),
    (broker(partition=1), "has partition 1 of broker/chat"),
    (broker(partition=-1), ">= 0"),
    (broker(node=0), ">= 1"),
    (broker(epoch=1 << 32), "<= 4294967295"),
    (broker(version="x" * 60_000), "too long"),
]


async def test_entries_of_a_second_cluster_that_cannot_be_are_refused(cluster: Cluster) -> None:
    for number, (data, cause) in enumerate(ENTRIES):
        await cluster.refused(f"broker/chat/partition0/x{number}", data, cause)
    await cluster.lives()


async def test_a_number_that_two_have_is_the_one_s_that_had_it_which_takes_the_other_away(cluster: Cluster) -> None:
    good = cluster.watching.snapshot
    _, true, *_ = good.nodes
    twins = {
        "broker/chat/partition0/twin": node(2, "broker", cluster="chat", epoch=true.epoch, version="forged"),
        "broker/main/partition0/twin": node(2, "broker", epoch=true.epoch),
        "gateway/twin": node(2, "gateway", epoch=true.epoch),
        "gateway/later": node(2, "gateway", epoch=EPOCH_MAX),
        "router/partition0/former": node(2, "router", epoch=1),
    }
    for path, twin in twins.items():
        await cluster.write(path, encode(twin))
        async with asyncio.timeout(PATIENT_S):
            while await cluster.stranger.get(f"/pubsub/{path}") is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    await cluster.watching.again()
    assert cluster.watching.snapshot is good
    (mine,) = await cluster.stranger.children("/pubsub/broker/chat/partition0")
    assert mine == "r0000000000"
    await cluster.lives()


async def test_who_claims_to_be_a_later_process_of_a_name_is_believed_only_where_the_name_has_that_epoch(
    cluster: Cluster,
) -> None:
    _, true, *_ = cluster.watching.snapshot.nodes
    path = "broker/chat/partition0/later"
    await cluster.write(path, encode(node(2, "broker", cluster="chat", epoch=true.epoch + 1)))
    async with asyncio.timeout(PATIENT_S):
        while await cluster.stranger.get(f"/pubsub/{path}") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await until(lambda: true in cluster.watching.snapshot.nodes, PATIENT_S)
    await cluster.lives()


GROWTH: Final = '{"partitions":%d,"serial":%d,"growth":{"to":%d,"step":"%s","goal":%d,"coordinator":"x"}}'
RECORDS: Final = [
    (b"nonsense", "malformed"),
    (b'{"partitions":3}', "expected a power of two"),
    (b'{"partitions":0}', ">= 1"),
    (b'{"partitions":512}', "<= 256"),
    (b'{"partitions":"2"}', "Expected `int`"),
    (b'{"partitions":1' + b" " * 60_000 + b"}", "too long"),
]


@pytest.mark.parametrize("of", ["broker/chat", "router"])
async def test_counts_and_growths_of_any_layer_that_cannot_be_are_refused(cluster: Cluster, of: str) -> None:
    now = COUNTS[of]
    growths = [
        (GROWTH % (now, 1, 8 * now, "prepare", 8 * now), "a growth must double"),
        (GROWTH % (now, 1, 2 * now, "prepare", 6), "has the goal 6"),
        (GROWTH % (now, 0, 2 * now, "prepare", 2 * now), "has no serial number"),
        (GROWTH % (now, 1, 2 * now, "leap", 2 * now), "Invalid enum value"),
        (GROWTH % (now, 1, 2 * now, "prepare", 512), "<= 256"),
    ]
    wide = [
        (Count(256), "no replica of"),
        (Count(2 * now, serial=7), "no replica of"),
        (Count(now, serial=1 << 31), "after"),
    ]
    records = [
        *RECORDS,
        *((text.encode(), cause) for text, cause in growths),
        *((encode(a), cause) for a, cause in wide),
    ]
    for data, cause in records:
        await cluster.refused(f"{of}/partition_num", data, cause)
    await cluster.lives()
    await cluster.write(f"{of}/partition_num", encode(Count(now)))
    await until(lambda: f"{of}/partition_num" not in cluster.watching.refused, PATIENT_S)
    chat = {"cluster": "chat"} if of == "broker/chat" else {}
    owner = node(9, of.partition("/")[0], partition=now, **chat)
    await cluster.write(f"{of}/partition{now}/owner", encode(owner))
    await cluster.write(f"{of}/partition_num", encode(Count(2 * now, serial=7)))
    await until(lambda: owner in cluster.watching.snapshot.nodes, PATIENT_S)
    await cluster.refused(f"{of}/partition_num", encode(Count(now, serial=9)), "the number must not fall")


async def test_a_count_where_no_layer_is_is_refused(cluster: Cluster) -> None:
    growing = encode(Count(1, 1, Growth(2, "prepare", 2, "x")))
    for of in ("router/partition0", "broker/chat/partition0", "proxy", "gateway"):
        await cluster.refused(f"{of}/partition_num", growing, "unexpected count at this path")
    await cluster.lives()


async def test_thousands_of_entries_and_clusters_hold_up_nobody(make: Callable[..., Tree], service: Service) -> None:
    flood = (
        5_000 if isinstance(service, ZooKeeper) else FLOOD
    )  # more than all processes ask for together, within minutes
    stranger, log = make(PATIENT_S), structlog.get_logger()
    await connected(stranger)
    for first in range(0, flood, 50):
        paths = [f"/pubsub/gateway/x{number}" for number in range(first, first + 50)]
        await stranger.transaction([Create(path, b"{}") for path in paths])
    for number in range(CLUSTERS_MAX + 6):
        await stranger.create(f"/pubsub/broker/a{number}/partition_num", encode(Count(1)))
    async with Directory(make(PATIENT_S), log) as mine, Directory(make(PATIENT_S), log) as watching:
        mine.announce("node-2", node(2, "broker", cluster="chat", epoch=1))
        await mine.settled()
        mine.update("draining")
        await mine.settled()
        await until(lambda: [each.state for each in mine.snapshot.of("broker")] == ["draining"], PATIENT_S)
        await until(lambda: len(watching.refused) == flood + 7, PATIENT_S)
        # its own is among those that count
        await until(lambda: sum(path.startswith("broker/a") for path in mine.refused) == 7, PATIENT_S)


async def test_what_only_a_stranger_to_muster_writes_into_zookeeper_holds_up_nobody(
    cluster: Cluster, service: Service
) -> None:
    if not isinstance(service, ZooKeeper):
        pytest.skip("no other registry takes it")
    from kazoo.client import KazooClient

    client = KazooClient(service.hosts)
    client.start(PATIENT_S)
    try:
        odd = ["/pubsub/broker/no name", "/pubsub/broker/é", "/pubsub/broker/" + "x" * 300, "/pubsub/proxy/ä b"]
        for path in odd:
            client.create(service.root + path, b"", makepath=True)
        client.create(f"{service.root}/pubsub/broker/chat/partition0/large", b"x" * 1_000_000)
        client.create(f"{service.root}/pubsub/broker/chat/partition0/not text", b"\xc3\x28")
    finally:
        client.stop()
        client.close()
    await until(lambda: len(cluster.watching.refused) == len(odd) + 2, PATIENT_S)
    assert cluster.watching.refused["broker/chat/partition0/large"] == "too long: 1000000 bytes (limit 4096)"
    await cluster.lives()
