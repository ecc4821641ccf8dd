"""A process in the registry: it has an identity, registers again after each loss, and knows all nodes."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from muster_server.control.registry.directory import MEND_S, POLL_S, Directory
from muster_server.control.registry.identities import LONG_GONE_S, LOOKS_S, IdentityTaken, numbers
from muster_server.control.registry.places import Ack, Count, Growth, Identity, Node, Snapshot, encode, read_identity
from muster_server.control.registry.tree import Create, Delete, Operation, Refused, Result, Set, Tree, Unavailable
from tests.control.nodes import growth, partitions
from tests.control.registry.services import Service, connected
from tests.fakes.memory import Memory, MemoryTree
from tests.waiting import PATIENT_S, until

LOG = structlog.get_logger()
Make = Callable[..., Tree]
Open = Callable[..., Any]


def template(number: int = 1, role: str = "broker", **more: Any) -> Node:
    return Node(number, role, "127.0.0.1", 7_000 + number % 1_000, **more)


@pytest.fixture
async def open_directory(make: Make) -> AsyncIterator[Open]:
    async with contextlib.AsyncExitStack() as stack:

        async def opened(**options: Any) -> Directory:
            chosen = {"poll_s": 60.0, "spread_s": 0.01, "hold_s": 0.5, "back_s": 0.2} | options
            return await stack.enter_async_context(Directory(make(), LOG, **chosen))

        yield opened


def places(directory: Directory) -> list[tuple[int, str]]:
    return [(node.node, node.state) for node in directory.snapshot.nodes]


# --- identities -----------------------------------------------------------------------------------------------------


async def test_a_name_keeps_its_number_and_its_epochs_grow(open_directory: Open) -> None:
    one, other = await open_directory(wall=lambda: 100.0), await open_directory(wall=lambda: 50.0)
    first = await one.identity("broker-a")
    assert (first.node, first.epoch) == (next(numbers("broker-a")), 100)
    assert (await other.identity("gateway-a")).node == next(numbers("gateway-a"))
    again = await other.identity("broker-a")
    assert (again.node, again.epoch) == (first.node, 101)
    assert (await one.identity("broker-a", epoch=500)).epoch == 501
    assert (await one.identity("third", node=7)).node == 7
    with pytest.raises(IdentityTaken, match=r"node 7 is third; .* delete /pubsub/ids/third"):
        await one.identity("fifth", node=7)
    with pytest.raises(IdentityTaken, match=f"belongs to node {first.node}, not 2"):
        await one.identity("broker-a", node=2)


async def test_a_number_that_was_given_where_instances_have_theirs_stays(open_directory: Open, make: Make) -> None:
    tree, directory = make(), await open_directory(wall=lambda: 9.0)
    await connected(tree)
    await tree.create("/pubsub/ids/broker-a", encode(Identity(5, 8)))
    assert await directory.identity("broker-a") == Identity(5, 9)
    assert (await directory.identity("broker-a", had=6)).node == 5


async def test_many_who_start_at_once_get_numbers_of_their_own(open_directory: Open) -> None:
    several = [await open_directory() for _ in range(4)]
    names = [f"n-{index}" for index in range(16)]
    taken = await asyncio.gather(*(several[index % 4].identity(name) for index, name in enumerate(names)))
    assert len({identity.node for identity in taken}) == 16


async def test_two_names_of_one_number_get_one_each(open_directory: Open) -> None:
    directory = await open_directory()
    wanted = numbers("broker-a")
    first, second = next(wanted), next(wanted)
    await directory.identity("somebody", node=first)
    assert (await directory.identity("broker-a")).node == second
    assert (await directory.identity("broker-b", had=first)).node == next(numbers("broker-b"))


async def test_in_a_registry_that_forgot_everything_nobody_gets_the_number_of_a_node_that_still_runs(
    open_directory: Open, service: Service
) -> None:
    running, late = await open_directory(), await open_directory()
    others = {(await late.identity(f"n-{index}")).node for index in range(16)}
    taken = await running.identity("broker-a")
    await service.wipe()
    for index in reversed(range(16)):
        assert (await late.identity(f"n-{index}")).node in others
    assert (await late.identity("never-seen")).node not in {*others, taken.node}
    assert (await running.identity("broker-a")).node == taken.node


async def test_who_had_a_number_lets_others_come_back_first_to_a_registry_that_forgot_it(
    open_directory: Open, service: Service
) -> None:
    running, late = await open_directory(), await open_directory(back_s=2.0)
    taken = await running.identity("broker-a")
    running.announce("broker-a", template(taken.node, epoch=taken.epoch))
    await running.settled()
    await service.wipe()
    # Without the pause it would be first: its number is what that one's was when both were new.
    waits = asyncio.create_task(late.identity("broker-b", had=taken.node))
    await until(lambda: running.sessions_lost > 0)
    assert (await running.settled()).node == taken.node
    assert (await waits).node == next(numbers("broker-b"))


async def test_whose_number_the_registry_gave_away_is_told_to_end_and_takes_another_one_when_it_begins_again(
    open_directory: Open, service: Service
) -> None:
    running, other = await open_directory(), await open_directory()
    taken = await running.identity("broker-a")
    running.announce("broker-a", template(taken.node, epoch=taken.epoch))
    await running.settled()
    told: list[str] = []
    running.on_displaced = told.append
    await other.known()
    await other._tree.delete("/pubsub/ids/broker-a")
    await other.identity("broker-b", taken.node, taken.epoch + 9)
    await service.expire(running._tree)
    await until(lambda: told)
    assert f"node {taken.node} is broker-b" in told[0]
    assert await running.settled() is None
    again = await other.identity("broker-a", had=taken.node)
    assert again.node not in {taken.node, next(numbers("broker-b"))}


async def test_what_a_process_takes_is_kept_before_it_goes_by_it(open_directory: Open, service: Service) -> None:
    directory = await open_directory()
    kept: list[Identity] = []

    async def keep(identity: Identity) -> None:
        kept.append(identity)

    directory.on_identity(keep)
    taken = await directory.identity("broker-a")
    assert kept == [taken]
    directory.announce("broker-a", template(taken.node, epoch=taken.epoch))
    await directory.settled()
    await service.expire(directory._tree)
    await until(lambda: directory.sessions_lost == 1)
    again = await directory.settled()
    assert kept[1:] == [Identity(taken.node, again.epoch)]


async def test_two_of_one_name_never_get_one_epoch(open_directory: Open) -> None:
    several = [await open_directory(wall=lambda: 9.0) for _ in range(4)]
    taken = await asyncio.gather(*(several[index % 4].identity("same") for index in range(12)))
    assert sorted(identity.epoch for identity in taken) == list(range(9, 21))


async def test_a_spoilt_identity_is_named_and_not_taken_for_nothing(open_directory: Open, make: Make) -> None:
    tree = make()
    await connected(tree)
    await tree.create("/pubsub/ids/broken", b"junk")
    directory = await open_directory()
    with pytest.raises(IdentityTaken, match="/pubsub/ids/broken"):
        await directory.identity("broken")
    assert (await directory.identity("new")).node == next(numbers("new"))
    assert await directory.identity("broken", had=7, epoch=1 << 31) == Identity(7, (1 << 31) + 1)
    assert await directory.names() == {7: "broken", next(numbers("new")): "new"}


async def test_names_that_nobody_goes_by_any_more_make_room_for_new_ones_once_there_are_many(
    open_directory: Open, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, long_gone = 100_000_000, 100_000_000 - LONG_GONE_S - 1
    passed = 0
    tree, directory = make(), await open_directory(wall=lambda: float(now + passed))
    await connected(tree)
    directory.announce("running", template(5, "proxy", epoch=9))
    await directory.settled()
    await tree.create("/pubsub/ids/running", encode(Identity(5, 9)))
    await tree.create("/pubsub/ids/spoilt", b"junk")
    for at in range(4):
        await tree.create(f"/pubsub/ids/old-{at}", encode(Identity(20 + at, long_gone + 10_000 * at)))
        await tree.create(f"/pubsub/ids/late-{at}", encode(Identity(30 + at, now - 9)))
    await directory.identity("first")
    passed = LOOKS_S
    await directory.identity("second")
    assert len(await tree.children("/pubsub/ids")) == 12, "there are few"
    monkeypatch.setattr("muster_server.control.registry.identities.NAMES_ENOUGH", 8)
    await directory.identity("third")
    assert len(await tree.children("/pubsub/ids")) == 13, "a process has looked within the hour"
    passed = 2 * LOOKS_S
    await directory.identity("fourth")
    stay = {"running", "spoilt", "first", "second", "third", "fourth", *(f"late-{at}" for at in range(4))}
    left = set(await tree.children("/pubsub/ids"))
    assert left == stay | {"old-1", "old-2", "old-3"}, "whose epochs are not long ago"
    assert (await directory.identity("old-0", had=20)).node == 20


async def test_names_of_a_version_without_an_index_keep_their_numbers(open_directory: Open, make: Make) -> None:
    tree, directory = make(), await open_directory()
    await connected(tree)
    await tree.create("/pubsub/ids", b"")
    first = next(numbers("new"))
    await tree.create("/pubsub/ids/old", encode(Identity(first, 9)))
    assert (await directory.identity("new")).node != first
    entry = await tree.get("/pubsub/ids")
    assert entry is not None
    later = next(numbers("newer"))
    # as such a node adds a name
    await tree.transaction(
        [Set("/pubsub/ids", b"", entry.version), Create("/pubsub/ids/older", encode(Identity(later, 9)))]
    )
    assert (await directory.identity("newer")).node != later
    with pytest.raises(IdentityTaken, match=f"node {later} is older"):
        await directory.identity("newest", node=later)
    await tree.delete("/pubsub/ids/older")
    assert (await directory.identity("newest", node=later)).node == later


async def test_a_new_name_costs_as_many_reads_among_many_as_among_few(open_directory: Open) -> None:
    directory, costs = await open_directory(), list[int]()
    await directory.known()
    for index in range(200):
        before = directory._tree.requests
        await directory.identity(f"n-{index}")
        costs.append(directory._tree.requests - before)
    assert max(costs[150:]) <= max(costs[1:50]) <= 8


# --- registration ---------------------------------------------------------------------------------------------------


async def test_everybody_sees_who_registers_what_it_says_and_that_it_leaves(open_directory: Open, make: Make) -> None:
    watching, broker, proxy = [await open_directory() for _ in range(3)]
    seen: list[Snapshot] = []
    watching.on_snapshot = seen.append
    broker.announce("broker-a", template(1, state="init", partition=1, version="1"), partitions=2)
    registered = await broker.settled()
    assert registered.epoch > 0
    proxy.announce("proxy-a", template(2, "proxy", client=("127.0.0.1", 9), public_key="ab" * 32))
    await until(lambda: places(watching) == [(1, "init"), (2, "running")])
    assert partitions(watching.snapshot) == (2, 1)
    assert watching.snapshot.nodes[0] == registered
    broker.update("running")
    await until(lambda: places(watching) == [(1, "running"), (2, "running")])
    broker.update("draining")
    await until(lambda: places(watching)[0] == (1, "draining"))
    await broker.leave()
    await until(lambda: places(watching) == [(2, "running")])
    epochs = [snapshot.epoch for snapshot in seen]
    assert epochs == sorted(set(epochs))
    tree = make()
    await connected(tree)
    assert set(await tree.children("/pubsub")) == {"ids", "numbers", "broker", "proxy"}
    (entry,) = (await tree.children("/pubsub/proxy")).values()
    assert b'"node":2' in entry.data


async def test_an_expired_session_registers_again_with_a_higher_epoch(
    service: Service, open_directory: Open, make: Make
) -> None:
    watching = await open_directory()
    tree = make()
    async with Directory(tree, LOG, poll_s=60.0, spread_s=0.01) as mine:
        mine.announce("gateway-a", template(3, "gateway"))
        await mine.settled()
        await until(lambda: places(mine))
        epochs = [_epoch(mine)]
        for _ in range(3):
            await service.expire(tree)
            await until(lambda: _epoch(mine) > epochs[-1])
            epochs.append(_epoch(mine))
        await mine.settled()
        await until(lambda: [node.epoch for node in watching.snapshot.nodes] == [_epoch(mine)])
    assert epochs == sorted(set(epochs))


def _epoch(directory: Directory) -> int:
    return next((node.epoch for node in directory.snapshot.nodes), 0)


async def test_wiped_data_brings_registration_anew_with_number_count_and_a_higher_epoch(
    service: Service, open_directory: Open, make: Make
) -> None:
    mine, watching = await open_directory(), await open_directory()
    identity = await mine.identity("broker-a")
    mine.announce("broker-a", template(identity.node, epoch=identity.epoch), partitions=4)
    assert (await mine.settled()).epoch == identity.epoch
    await until(lambda: partitions(watching.snapshot) == (4, 1) and places(watching))
    maps: list[Snapshot] = []
    watching.on_snapshot = maps.append
    await service.wipe()
    await until(lambda: _epoch(watching) > identity.epoch)
    await mine.settled()
    assert all(places(watching) and partitions(snapshot) == (4, 1) for snapshot in maps)
    tree = make()
    await connected(tree)
    count = await tree.get("/pubsub/broker/main/partition_num")
    assert count is not None
    assert count.data == b'{"partitions":4}'
    kept = await tree.get("/pubsub/ids/broker-a")
    assert kept is not None
    assert read_identity(kept.data).node == identity.node


async def test_a_registry_that_is_away_leaves_the_map_and_takes_what_was_said_meanwhile(
    service: Service, open_directory: Open
) -> None:
    mine, watching = await open_directory(), await open_directory()
    mine.announce("gateway-a", template(3, "gateway", state="init"))
    await until(lambda: places(watching) == [(3, "init")])
    await service.stop()
    await until(lambda: watching.session == mine.session == "suspended")
    mine.update("running")
    before = watching.snapshot
    await until(lambda: watching.session != "connected")
    assert watching.snapshot is before
    await service.start()
    await until(lambda: places(watching) == [(3, "running")])


async def test_who_starts_before_the_registry_does_not_need_it(service: Service, open_directory: Open) -> None:
    await service.stop()
    early = await open_directory()
    early.announce("proxy-a", template(4, "proxy"))
    assert early.snapshot == Snapshot()
    await service.start()
    await until(lambda: places(early) == [(4, "running")])


async def test_what_somebody_spoils_or_deletes_is_mended(open_directory: Open, make: Make) -> None:
    mine, vandal = await open_directory(), make()
    await connected(vandal)
    mine.announce("proxy-a", template(4, "proxy"))
    first = await mine.settled()
    (name,) = await vandal.children("/pubsub/proxy")
    await vandal.set(f"/pubsub/proxy/{name}", b"nonsense")
    await _until_data(vandal, f"/pubsub/proxy/{name}", encode(first))
    await vandal.delete(f"/pubsub/proxy/{name}")
    await until(lambda: _epoch(mine) > first.epoch)
    await mine.settled()
    assert [read for read in await vandal.children("/pubsub/proxy") if read != name]


async def _until_data(tree: Tree, path: str, wanted: bytes) -> None:
    async with asyncio.timeout(PATIENT_S):
        while (entry := await tree.get(path)) is None or entry.data != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_what_is_acknowledged_is_read_by_all_and_kept_through_a_lost_session(
    service: Service, open_directory: Open, make: Make
) -> None:
    watching = await open_directory()
    tree = make()
    ack = Ack("router", 3, True)
    async with Directory(tree, LOG, poll_s=60.0, spread_s=0.01) as mine:
        mine.announce("gateway-a", template(3, "gateway"))
        await mine.settled()
        await until(lambda: _epoch(watching))
        before = _epoch(watching)
        mine.acknowledge((ack,))
        await until(lambda: watching.acks == {3: (ack,)})
        await service.expire(tree)
        await until(lambda: _epoch(watching) > before)
        await until(lambda: watching.acks == {3: (ack,)})
        mine.acknowledge(())
        await until(lambda: watching.acks == {3: ()})


async def test_a_growth_that_the_registry_forgot_is_written_again_by_who_knows_it_best(
    open_directory: Open, make: Make
) -> None:
    gateway, tree = await open_directory(), make()
    await connected(tree)
    gateway.announce("gateway-a", template(3, "gateway"))
    await gateway.settled()
    path = "/pubsub/router/partition_num"
    known = encode(Count(1, 2, Growth(2, "switched", 2, "somebody")))
    await tree.create(path, known)
    await until(lambda: growth(gateway.snapshot) == (0, 2))
    await tree.set(path, encode(Count(1, 1, Growth(2, "prepare", 2, "somebody"))))
    await _until_data(tree, path, known)
    await tree.set(path, b'{"partitions":1}')
    await _until_data(tree, path, known)
    await tree.set(path, b"nonsense")
    await until(lambda: "malformed" in gateway.refused.get("router/partition_num", ""))
    assert growth(gateway.snapshot) == (0, 2)


async def test_who_only_reads_does_not_bring_a_former_cluster_s_count_into_a_new_one(
    open_directory: Open, make: Make
) -> None:
    path, former, tree = "/pubsub/router/partition_num", await open_directory(), make()
    await connected(tree)
    await tree.create(path, encode(Count(4, serial=9)))
    await until(lambda: former.snapshot.counts == {"router": Count(4, serial=9)})
    await tree.delete(path)
    await tree.delete("/pubsub/router")
    routers = [await open_directory() for _ in range(2)]
    for number, each in enumerate(routers, 1):
        each.announce(f"router-{number}", template(number, "router", partition=number - 1), partitions=2)
        await each.settled()
    await until(lambda: "must not fall" in former.refused.get("router/partition_num", ""))
    await asyncio.sleep(2 * MEND_S)
    await former.again()
    entry = await tree.get(path)
    assert entry is not None
    assert entry.data == encode(Count(2))
    late = await open_directory()
    await until(lambda: late.snapshot.counts == {"router": Count(2)})


async def test_who_takes_the_steps_of_a_growth_writes_again_what_the_registry_forgot_before_others_knew(
    open_directory: Open, make: Make
) -> None:
    path, coordinator, tree = "/pubsub/router/partition_num", await open_directory(), make()
    coordinator.takes_steps_of = "router"
    await connected(tree)
    known = encode(Count(1, 2, Growth(2, "switched", 2, "x")))
    await tree.create(path, known)
    await until(lambda: coordinator.snapshot.counts)
    await tree.set(path, encode(Count(1, 1, Growth(2, "prepare", 2, "x"))))
    async with asyncio.timeout(PATIENT_S):
        while (entry := await tree.get(path)) is None or entry.data != known:
            await coordinator.again()


async def test_a_process_whose_identity_a_later_one_has_leaves_and_says_so(open_directory: Open) -> None:
    old, new = await open_directory(), await open_directory()
    told: list[str] = []
    old.on_superseded, new.on_superseded = lambda: told.append("old"), lambda: told.append("new")
    old.announce("proxy-a", template(4, "proxy"))
    first = await old.settled()
    identity = await new.identity("proxy-a", epoch=first.epoch)
    new.announce("proxy-a", template(4, "proxy", epoch=identity.epoch))
    assert (await new.settled()).epoch > first.epoch
    old.update("draining")
    assert await old.settled() is None
    assert told == ["old"]
    await until(lambda: [node.epoch for node in old.snapshot.nodes] == [identity.epoch])


async def test_of_two_processes_of_one_name_in_different_roles_the_later_one_stays(
    open_directory: Open, make: Make
) -> None:
    old, new, tree = await open_directory(), await open_directory(), make()
    await connected(tree)
    told: list[str] = []
    old.on_superseded, new.on_superseded = lambda: told.append("old"), lambda: told.append("new")
    first = await old.identity("n1")
    old.announce("n1", template(first.node, "gateway", epoch=first.epoch))
    await old.settled()
    later = await new.identity("n1")
    new.announce("n1", template(later.node, "proxy", epoch=later.epoch))
    await until(lambda: told)

    async def alone() -> bool:
        """Return whether the later process has the name: with its epoch, or a later one if its session was lost."""
        await new.again()
        entry = await tree.get("/pubsub/ids/n1")
        assert entry is not None
        own = read_identity(entry.data)
        assert own.node == later.node
        return own.epoch >= later.epoch and [(each.role, each.epoch) for each in new.snapshot.nodes] == [
            ("proxy", own.epoch)
        ]

    for pause in (0.0, 1.0):  # the later one stays
        await asyncio.sleep(pause)
        async with asyncio.timeout(PATIENT_S):
            while not await alone():  # noqa: ASYNC110 - the tree of ZooKeeper is another process
                await asyncio.sleep(0.01)
    assert told == ["old"]


# --- what only a tree of ours can do ----------------------------------------------------------------------------------


class Faulty(MemoryTree):
    """Does the first creations and denies it; deletes nothing; allows no reads; never reports changes, and keeps old
    answers.

    Counts the reads.
    """

    def __init__(self, memory: Memory, *, lost_answers: int = 0, deaf: bool = False) -> None:
        super().__init__(memory)
        self.lost_answers, self.deaf, self.keeps, self.refuses = lost_answers, deaf, False, False
        self.reading, self.reading_max, self.readings = 0, 0, 0
        self.kept: dict[str, Any] = {}

    def forget(self) -> None:
        self.kept.clear()

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        return super().watch(path, (lambda: None) if self.deaf else callback)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
        made = await super().create(path, data, ephemeral=ephemeral, sequence=sequence)
        if self.lost_answers and ephemeral:
            self.lost_answers -= 1
            raise Unavailable("the answer was lost")
        return made

    async def transaction(self, operations: Sequence[Operation]) -> list[Result]:
        if self.keeps and any(isinstance(each, Delete) for each in operations):
            raise Unavailable("it is away")
        return await super().transaction(operations)

    async def children(self, path: str) -> Any:
        if path == "/pubsub/broker":
            self.readings += 1
            self.reading += 1
            self.reading_max = max(self.reading_max, self.reading)
        try:
            if self.refuses:
                raise Refused("not for this one")
            found = self.kept[path] if path in self.kept else await super().children(path)
            if self.deaf:
                self.kept[path] = found
            return found
        finally:
            self.reading -= path == "/pubsub/broker"


async def test_a_registration_whose_answer_was_lost_is_found_and_not_repeated() -> None:
    memory = Memory()
    tree = Faulty(memory, lost_answers=1)
    async with Directory(tree, LOG, spread_s=0.0, poll_s=60.0) as mine:
        mine.announce("proxy-a", template(4, "proxy"))
        await mine.settled()
        assert list(memory.store.children("/pubsub/proxy")) == ["r0000000000"]


async def test_who_was_superseded_ends_though_the_later_process_died_before_it_could_leave() -> None:
    memory = Memory()
    tree = Faulty(memory)
    async with Directory(tree, LOG, spread_s=0.0, poll_s=60.0) as old:
        told: list[str] = []
        old.on_superseded = lambda: told.append("old")
        old.announce("proxy-a", template(4, "proxy"))
        first = await old.settled()
        assert first is not None
        tree.keeps = True
        async with Directory(memory.tree(), LOG, spread_s=0.0, poll_s=60.0) as new:
            identity = await new.identity("proxy-a", epoch=first.epoch)
            new.announce("proxy-a", template(4, "proxy", epoch=identity.epoch))
            await until(lambda: isinstance(old.trouble, Unavailable))
        tree.keeps = False
        await until(lambda: old.trouble is None)
        assert await old.settled() is None
        assert told == ["old"]
        assert memory.store.children("/pubsub/proxy") == {}


async def test_a_poll_finds_what_no_watch_told() -> None:
    memory = Memory()
    async with Directory(Faulty(memory, deaf=True), LOG, poll_s=0.05, spread_s=0.0) as deaf:
        await deaf.known()
        async with Directory(memory.tree(), LOG) as other:
            other.announce("proxy-a", template(4, "proxy"))
            await until(lambda: places(deaf) == [(4, "running")])
            other.update("draining")
            await until(lambda: places(deaf) == [(4, "draining")])


async def test_before_what_is_gone_is_let_go_the_server_is_asked_whether_it_is_back() -> None:
    memory = Memory()
    tree = memory.tree()
    await connected(tree)
    path = await tree.create("/pubsub/proxy/r", encode(template(4, "proxy")))
    async with Directory(Faulty(memory, deaf=True), LOG, poll_s=60.0, spread_s=0.0, hold_s=0.5) as deaf:
        sizes: list[int] = []
        deaf.on_snapshot = lambda snapshot: sizes.append(len(snapshot.nodes))
        await deaf.known()
        await tree.delete(path)
        await deaf.again()
        assert (places(deaf), deaf.present()) == ([(4, "running")], [])
        await tree.create("/pubsub/proxy/r", encode(template(4, "proxy")))
        await until(deaf.present)
    assert sizes == [1]


async def test_who_asks_for_the_map_again_gets_it_of_the_server() -> None:
    memory = Memory()
    async with Directory(Faulty(memory, deaf=True), LOG, poll_s=60.0, spread_s=0.0) as deaf:
        await deaf.known()
        async with Directory(memory.tree(), LOG) as other:
            other.announce("proxy-a", template(4, "proxy"))
            await other.settled()
            await deaf.again()
            assert places(deaf) == [(4, "running")]


async def test_many_changes_are_few_readings_and_one_at_a_time() -> None:
    memory = Memory()
    tree, changing = Faulty(memory), memory.tree()
    await connected(changing)
    async with Directory(tree, LOG, poll_s=60.0, spread_s=0.1) as watching:
        watching.announce("broker-a", template(101))
        await until(lambda: places(watching) == [(101, "running")])
        before = tree.readings
        for number in range(1, 101):
            await changing.create("/pubsub/proxy/r", encode(template(number, "proxy")), sequence=True)
        await until(lambda: len(places(watching)) == 101)
        assert tree.readings - before <= 10
        assert tree.reading_max == 1


@pytest.mark.parametrize("stopped", [True, False])
async def test_what_is_held_for_too_long_hurries_nobody_while_the_registry_is_away_or_refuses(stopped: bool) -> None:
    memory, dice = Memory(), Dice()
    tree, changing = Faulty(memory), memory.tree()
    await connected(changing)
    paths = [
        await changing.create("/pubsub/gateway/r", encode(template(number, "gateway")), sequence=True)
        for number in range(1, 5)
    ]
    async with Directory(tree, LOG, poll_s=60.0, hold_s=0.3, dice=dice) as watching:
        await until(lambda: len(places(watching)) == 4)
        for path in paths[1:]:
            await changing.delete(path)
        await until(lambda: watching.doubts == 3)
        if stopped:
            memory.stop()
        else:
            tree.refuses = True
        await asyncio.sleep(0.5)
        before = len(dice.most), tree.readings
        await asyncio.sleep(2.0)
        assert len(dice.most) - before[0] <= 10
        assert tree.readings - before[1] <= 10
        assert len(places(watching)) == 4
        memory.start()
        tree.refuses = False
        await until(lambda: places(watching) == [(1, "running")])


class Dice(random.Random):
    """Remembers the longest requested waits."""

    def __init__(self) -> None:
        super().__init__()
        self.most: list[float] = []

    def uniform(self, a: float, b: float) -> float:
        if a == 0:
            self.most.append(b)
        return a


async def test_who_begins_among_few_reads_at_once_until_it_serves() -> None:
    memory, dice, until_served = Memory(), Dice(), list[float]()
    async with Directory(memory.tree(), LOG, poll_s=60.0, spread_s=6.4, dice=dice) as mine:

        def heard(_: Snapshot) -> None:
            if places(mine) == [(1, "running")] and not until_served:
                until_served.extend(dice.most)

        mine.on_snapshot = heard
        mine.announce("broker-a", template(1, state="init"))
        await until(lambda: places(mine) == [(1, "init")])
        mine.update("running")
        await until(lambda: places(mine) == [(1, "running")])
        assert max(until_served) == pytest.approx(0.1)
        async with Directory(memory.tree(), LOG) as other:
            other.announce("proxy-a", template(4, "proxy"))
            await until(lambda: len(places(mine)) == 2)
        assert max(dice.most) == pytest.approx(6.4)


async def test_a_map_that_cannot_be_taken_does_not_end_the_watch() -> None:
    memory = Memory()
    changing = memory.tree()
    await connected(changing)
    async with Directory(memory.tree(), LOG, poll_s=60.0, spread_s=0.0) as watching:
        given: list[Snapshot] = []

        def raises(snapshot: Snapshot) -> None:
            given.append(snapshot)
            raise RuntimeError("a bug")

        watching.on_snapshot = raises
        for number in (1, 2):
            await changing.create("/pubsub/proxy/r", encode(template(number, "proxy")), sequence=True)
            await _until_size(watching, number)
        assert len(given) == 2


async def _until_size(directory: Directory, size: int) -> None:
    await until(lambda: len(places(directory)) == size)


@pytest.mark.parametrize(("nodes", "pause_s"), [(0, 5.0), (300, 5.0), (500, 12.5), (4_000, 800.0)])
def test_many_nodes_poll_so_seldom_that_the_servers_carry_it(nodes: int, pause_s: float) -> None:
    directory = Directory(Memory().tree(), LOG)
    directory._view.snapshot = Snapshot(1, tuple(template(number, "proxy") for number in range(1, nodes + 1)))
    assert directory._pause_s() == pause_s


async def test_polls_are_spread() -> None:
    directory = Directory(Memory().tree(), LOG)
    pauses = [directory._jittered(POLL_S) for _ in range(200)]
    assert min(pauses) >= POLL_S / 2
    assert max(pauses) <= POLL_S * 3 / 2
    assert len(set(pauses)) == 200


# --- counts that cannot be ------------------------------------------------------------------------------------------

COUNT_OF_BROKERS = "/pubsub/broker/main/partition_num"


@pytest.mark.parametrize("spoilt", [b"nonsense", b'{"partitions":256}', b'{"partitions":3,"serial":9}'])
async def test_a_count_that_cannot_be_is_mended_by_who_goes_by_the_good_one_and_not_believed_by_who_begins(
    open_directory: Open, make: Make, spoilt: bytes
) -> None:
    brokers, vandal = [await open_directory() for _ in range(2)], make()
    await connected(vandal)
    for number, each in enumerate(brokers, 1):
        each.announce(f"broker-{number}", template(number))
        await each.settled()
    for each in brokers:
        await until(lambda each=each: len(places(each)) == 2)  # type: ignore[misc]
        await until(lambda each=each: each._view.said("broker/main", 0) == {1})  # type: ignore[misc]
    good = await vandal.get(COUNT_OF_BROKERS)
    assert good is not None
    with capture_logs() as lines:
        await vandal.set(COUNT_OF_BROKERS, spoilt)
        late = await open_directory()
        await late.known()
        assert late.snapshot.counts == {} or late.snapshot.counts["broker/main"] == Count(1)
        await _until_data(vandal, COUNT_OF_BROKERS, good.data)
        await until(lambda: not any(each.refused for each in (*brokers, late)))
        assert places(late) == [(1, "running"), (2, "running")]
    mended = [line for line in lines if line["event"] == "registry: mended"]
    assert len(mended) == 1, "of all who know one writes"
    assert (mended[0]["path"], mended[0]["partitions"]) == ("broker/main/partition_num", 1)


async def test_a_number_that_falls_is_no_later_step_whatever_its_serial_number(
    open_directory: Open, make: Make
) -> None:
    known = Count(2, serial=4)
    brokers, vandal = [await open_directory() for _ in range(2)], make()
    await connected(vandal)
    await vandal.create(COUNT_OF_BROKERS, encode(known))
    for number, each in enumerate(brokers, 1):
        each.announce(f"broker-{number}", template(number, partition=number - 1, among=2))
    for each in brokers:
        await until(lambda each=each: len(places(each)) == 2 and not each.refused)  # type: ignore[misc]
        assert each.snapshot.counts["broker/main"] == known
    await vandal.set(COUNT_OF_BROKERS, encode(Count(1, serial=9)))
    await _until_data(vandal, COUNT_OF_BROKERS, encode(known))
    await until(lambda: not any(each.refused for each in brokers))


async def test_a_step_of_a_growth_that_somebody_refuses_for_now_is_never_undone(
    open_directory: Open, make: Make
) -> None:
    mine, coordinator = await open_directory(), make()
    await connected(coordinator)
    mine.announce("broker-1", template(1))
    await until(lambda: places(mine) == [(1, "running")])
    # No node is seen to run there yet: it is refused, but may still be a step.
    grown = encode(Count(2, serial=4))
    await coordinator.set(COUNT_OF_BROKERS, grown)
    await until(lambda: mine.refused)
    await asyncio.sleep(2 * MEND_S)
    await mine.again()
    entry = await coordinator.get(COUNT_OF_BROKERS)
    assert entry is not None
    assert entry.data == grown
    await coordinator.create("/pubsub/broker/main/partition1/new", encode(template(2, partition=1, among=2)))
    await until(lambda: not mine.refused and partitions(mine.snapshot) == (2, 1))


async def test_two_who_go_by_different_counts_of_one_serial_number_do_not_write_against_each_other(
    open_directory: Open, make: Make
) -> None:
    mine, other = await open_directory(), make()
    await connected(other)
    mine.announce("broker-1", template(1))
    await until(lambda: places(mine) == [(1, "running")])
    await other.create("/pubsub/broker/main/partition0/other", encode(template(2, among=256)))
    await until(lambda: len(places(mine)) == 2)
    await other.set(COUNT_OF_BROKERS, b'{"partitions":256}')
    await until(lambda: mine.refused)
    await asyncio.sleep(2 * MEND_S)
    await mine.again()
    entry = await other.get(COUNT_OF_BROKERS)
    assert entry is not None
    assert entry.data == b'{"partitions":256}'


async def test_a_clock_far_ahead_takes_no_epochs(open_directory: Open) -> None:
    wrong = await open_directory(wall=lambda: float((1 << 32) - 95))
    with pytest.raises(IdentityTaken, match="the clock of this machine says 2106"):
        await wrong.identity("broker-a")
