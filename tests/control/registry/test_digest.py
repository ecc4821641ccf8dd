"""Many nodes read a digest of the registry: it is never wrong, never goes back, and outlives who keeps it."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from muster_server.control.registry import digest, keeper, readings
from muster_server.control.registry.digest import Copy, Editor, Head, base_of, difference, read_part
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.keeper import Keeper
from muster_server.control.registry.places import Node
from muster_server.control.registry.tree import Entry, Tree
from tests.control.registry.services import SESSION_S, Service, connected
from tests.control.registry.zookeeper import ZooKeeper
from tests.waiting import PATIENT_S, until

LOG = structlog.get_logger()
Open = Callable[..., Any]
NODES = 6

# --- the encoding ---------------------------------------------------------------------------------------------------

State = dict[str, Entry]
PATHS = [f"proxy/r{at}" for at in range(6)]
entries = st.builds(Entry, st.binary(max_size=200).map(lambda data: data * 10), st.integers(0, 5))
states = st.dictionaries(st.sampled_from(PATHS), entries)


class Shelf:
    """What the tree holds of a digest."""

    def __init__(self) -> None:
        self.head: Head | None = None
        self.parts: dict[str, bytes] = {}

    def read(self, copy: Copy) -> bool:
        """Bring a copy up to date, as a reader does; False: a part is gone, and it tries again later."""
        head = self.head
        if head is None or (head.series == copy.series and head.version <= copy.version):
            return True
        lacks = copy.lacks(head)
        names = base_of(head) if lacks is None else lacks
        if not set(names) <= self.parts.keys():
            return False
        if lacks is None:
            copy.entries = {}
        for name in names:
            copy.apply(read_part(self.parts[name]))
        copy.series, copy.version = head.series, head.version
        return True


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), states),
            st.tuples(st.just("crash"), states),
            st.tuples(st.just("take over"), st.none()),
            st.tuples(st.just("read"), st.integers(0, 2)),
        ),
        max_size=60,
    )
)
def test_each_copy_is_a_state_that_was_written_and_never_an_earlier_one(steps: list[tuple[str, Any]]) -> None:
    shelf, copies, written = Shelf(), [Copy() for _ in range(3)], dict[tuple[int, int], State]()
    made = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "PART_MAX", 900)
        patch.setattr(digest, "CHANGES_MAX", 4)
        patch.setattr(digest, "SINCE_MAX", 3)
        editor = Editor(None, 7, "k0")
        present: State = {}
        for step, what in steps:
            if step == "take over":
                editor = Editor(shelf.head, 8, f"k{next(made)}")
            elif step == "read":
                before = copies[what].version, dict(copies[what].entries)
                assert shelf.read(copies[what]), "the writer left what its head names"
                copy = copies[what]
                assert copy.version >= before[0]
                if copy.version:
                    assert copy.entries == written[copy.series, copy.version]
            elif changes := difference(present, what):
                edition = editor.edition(changes, what)
                shelf.parts |= edition.made
                if step == "crash":  # before the head
                    editor = Editor(shelf.head, 9, f"k{next(made)}")
                    continue
                shelf.head, present = edition.head, what
                editor.done(edition)
                for name in edition.dropped:
                    shelf.parts.pop(name, None)
                written[edition.head.series, edition.head.version] = what
        for copy in copies:
            assert shelf.read(copy)
            assert copy.entries == present or not written


def test_a_reader_that_is_one_version_behind_reads_the_head_alone() -> None:
    before, after = {"a": Entry(b"1", 0)}, {"a": Entry(b"2", 1), "b": Entry(b"x", 0)}
    editor = Editor(None, 7, "k0")
    editor.done(editor.edition(difference({}, before), before))
    head = editor.edition(difference(before, after), after).head
    copy = Copy(7, head.version - 1, dict(before))
    assert copy.apply(read_part(head.inline)) == {"a", "b"}
    assert copy.entries == after


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02", b"\x90"])
def test_a_spoilt_node_is_an_error_with_a_name(data: bytes) -> None:
    for read in (digest.read_head, digest.read_beat):
        with pytest.raises(digest.Broken):
            read(data)


# --- the processes --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _among_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were many."""
    monkeypatch.setattr(readings, "FEW", 3)
    monkeypatch.setattr(keeper, "BEAT_S", 0.1)
    monkeypatch.setattr(readings, "BEAT_S", 0.1)
    monkeypatch.setattr(readings, "FIRST_S", 0.2)


@pytest.fixture
async def opened(make: Callable[..., Tree]) -> AsyncIterator[Open]:
    async with _opening(make) as one:
        yield one


@contextlib.asynccontextmanager
async def _opening(make: Callable[..., Tree]) -> AsyncIterator[Open]:
    async with contextlib.AsyncExitStack() as stack:

        async def one(name: str, *, session_s: float = PATIENT_S, **options: Any) -> "Member":
            chosen = {"poll_s": 0.5, "spread_s": 0.02, "hold_s": 0.5, "back_s": 0.2} | options
            directory = await stack.enter_async_context(Directory(make(session_s), LOG, **chosen))
            member = Member(name, directory)
            await member.register()
            return member

        yield one


class Member:
    """A node, which says by its weight how often it has changed."""

    def __init__(self, name: str, directory: Directory) -> None:
        self.name, self.directory, self.weights = name, directory, dict[int, list[int]]()
        directory.on_snapshot = self._on_snapshot
        self.number = 0

    async def register(self) -> None:
        identity = await self.directory.identity(self.name)
        await self.directory.known()
        self.number = identity.node
        node = Node(identity.node, "proxy", "127.0.0.1", 7_000, epoch=identity.epoch, weight=1)
        self.directory.announce(self.name, node)
        await self.directory.settled()

    def _on_snapshot(self, snapshot: Any) -> None:
        for node in snapshot.nodes:
            self.weights.setdefault(node.node, []).append(node.weight)

    @property
    def numbers(self) -> set[int]:
        return {node.node for node in self.directory.snapshot.nodes}

    @property
    def leads(self) -> bool:
        return self.directory._readings.keeper.leads

    @property
    def follows(self) -> bool:
        return self.directory._readings.follows


def everybody(members: list[Member]) -> bool:
    """All know all, and one writes the digest that the others read."""
    numbers = {member.number for member in members}
    leading = [member for member in members if member.leads]
    return (
        all(member.numbers == numbers for member in members)
        and len(leading) == 1
        and all(member.follows for member in members if not member.leads)
    )


def says(members: list[Member], number: int, weight: int) -> bool:
    return all(
        [node.weight for node in member.directory.snapshot.nodes if node.node == number] == [weight]
        for member in members
    )


async def several(opened: Open, count: int = NODES, **options: Any) -> list[Member]:
    members = list(await asyncio.gather(*(opened(f"n-{index}", **options) for index in range(count))))
    await until(lambda: everybody(members), PATIENT_S)
    return members


async def test_among_many_one_keeps_the_digest_and_the_others_follow_each_change(opened: Open) -> None:
    members = await several(opened)
    for weight in range(2, 8):
        for member in members[:2]:
            member.directory.weigh(weight)
        await until(lambda: says(members, members[0].number, weight), PATIENT_S)  # noqa: B023
        await until(lambda: says(members, members[1].number, weight), PATIENT_S)  # noqa: B023
    late = await opened("late")
    await until(lambda: everybody([*members, late]), PATIENT_S)
    await late.directory.leave()
    await until(lambda: everybody(members), PATIENT_S)
    for member in members:
        for weights in member.weights.values():
            assert weights == sorted(weights), "no reading is older than the one before"


async def test_who_keeps_the_digest_dies_and_another_one_continues(opened: Open, service: Service) -> None:
    members = await several(opened)
    for weight in range(2, 5):
        (leading,) = [member for member in members if member.leads]
        changing = next(member for member in members if not member.leads)
        changing.directory.weigh(weight)
        await service.expire(leading.directory._tree)
        await until(lambda: says(members, changing.number, weight), PATIENT_S)  # noqa: B023
        await until(lambda: everybody(members), PATIENT_S)
    for member in members:
        for weights in member.weights.values():
            assert weights == sorted(weights)


async def test_a_registry_that_lost_everything_gets_another_digest(opened: Open, service: Service) -> None:
    members = await several(opened, session_s=SESSION_S)
    await service.wipe()
    await until(lambda: all(member.directory.sessions_lost for member in members), PATIENT_S)
    await until(lambda: everybody(members), PATIENT_S)


async def test_a_digest_that_stands_still_is_left_and_each_node_reads_by_itself(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = await several(opened)
    monkeypatch.setattr(readings, "WAIT_S", 0.2)
    monkeypatch.setattr(readings, "OWN_READS_S", 1_000)

    async def nothing(self: Keeper, reading: Mapping[str, Entry]) -> float:
        return 0.1

    monkeypatch.setattr(Keeper, "write", nothing)
    members[0].directory.weigh(9)
    await until(lambda: says(members, members[0].number, 9), PATIENT_S)
    monkeypatch.undo()


async def test_what_a_process_writes_it_knows_itself_whatever_the_digest_says(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = await several(opened)
    following = next(member for member in members if not member.leads)

    async def nothing(self: Keeper, reading: Mapping[str, Entry]) -> float:
        return 0.1

    monkeypatch.setattr(Keeper, "write", nothing)
    epoch = (await following.directory.settled()).epoch  # type: ignore[union-attr]
    following.directory.weigh(7)
    await until(lambda: says([following], following.number, 7), PATIENT_S)
    node = await following.directory.settled()
    assert node is not None
    assert node.epoch == epoch, "it is still registered"


async def test_again_is_read_from_the_server_and_not_from_the_digest(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = await several(opened)
    following = [member for member in members if not member.leads]

    async def nothing(self: Keeper, reading: Mapping[str, Entry]) -> float:
        return 0.1

    monkeypatch.setattr(Keeper, "write", nothing)
    following[0].directory.weigh(5)
    await following[0].directory.settled()
    await following[1].directory.again()
    assert says(following[1:2], following[0].number, 5)


@pytest.mark.parametrize("junk", [b"", b"junk"])
async def test_a_spoilt_digest_is_written_again(opened: Open, make: Callable[..., Tree], junk: bytes) -> None:
    members, tree = await several(opened, hold_s=60.0), make()
    await connected(tree)
    await tree.set("/pubsub/digest/head", junk)
    members[0].directory.weigh(3)
    await until(lambda: says(members, members[0].number, 3), PATIENT_S)
    await until(lambda: everybody(members), PATIENT_S)


async def test_a_reading_that_is_due_at_once_does_not_stop_the_writer(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Keeper.write

    async def at_once(self: Keeper, reading: Mapping[str, Entry]) -> float:
        return min(await write(self, reading), 0.0004)  # uvloop takes this as now, with a handle that has no time

    monkeypatch.setattr(Keeper, "write", at_once)
    members = await several(opened)
    for weight in range(2, 5):
        members[0].directory.weigh(weight)
        await until(lambda: says(members, members[0].number, weight), PATIENT_S)  # noqa: B023


async def test_a_reader_that_is_no_node_reads_the_digest_and_keeps_none(
    opened: Open, make: Callable[..., Tree]
) -> None:
    members = await several(opened)
    async with Directory(make(PATIENT_S), LOG, spread_s=0.01) as reader:
        snapshot = await reader.known()
        assert {node.node for node in snapshot.nodes} == {member.number for member in members}
        assert reader._readings.follows
        assert not reader._readings.keeper.joined


async def test_a_change_costs_another_node_a_read_however_many_there_are(zookeeper: ZooKeeper) -> None:
    async with _opening(zookeeper.tree) as opened:
        members = await several(opened, 12, poll_s=60.0)
        keeps = [member for member in members if member.directory._readings.keeper.joined]
        other, following = [member for member in members if member not in keeps][:2]
        other.directory.weigh(2)
        await until(lambda: says(members, other.number, 2), PATIENT_S)
        before = following.directory._tree.requests
        for weight in range(3, 13):
            other.directory.weigh(weight)
            await until(lambda: says(members, other.number, weight), PATIENT_S)  # noqa: B023
        assert following.directory._tree.requests - before <= 2 * 10
