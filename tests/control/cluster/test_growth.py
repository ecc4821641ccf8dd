"""A layer doubles: with any coordinator, with interruptions anywhere, and no node is passed over."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from muster_server.control.cli.grow import OperatedHosts
from muster_server.control.cluster.growth import Coordinator, Report
from muster_server.control.errors import UserError
from muster_server.control.registry.places import Ack, Count, Growth, Node, encode
from muster_server.control.registry.tree import Refused
from tests.control.fleet import EVERY, RECORD, Fallible, Fleet, Make, directory, steps
from tests.waiting import PATIENT_S, until

SERIAL_MAX = (1 << 32) - 1


@pytest.mark.parametrize("role", ["broker", "router"])
async def test_everybody_goes_through_every_step_of_every_doubling(fleet: Fleet, make: Make, role: str) -> None:
    fleet.role = role
    old = dict(fleet.players)
    reports: list[Report] = []
    assert await make(tell=reports.append).grow(4) == 4
    await until(lambda: fleet.agrees(4))
    assert [steps(player, role == "router") for player in old.values()] == [EVERY] * 4
    layers = {"broker": (1, 0), "router": (1, 0)} | {role: (4, 0)}
    assert all(player.maps[-1][2:] == (layers, []) for player in old.values())
    assert set(fleet.players) == {1, 2, 3, 4, 101, 102, 103}
    seen = [(report.partitions, report.to, report.step) for report in reports]
    assert sorted(set(seen), key=seen.index) == [
        (1, 2, "prepare"),
        (1, 2, "switched"),
        (2, 2, "final"),
        (2, 4, "prepare"),
        (2, 4, "switched"),
        (4, 4, "final"),
    ]
    assert fleet.count == 4
    entries = [node for node in old[3].enrolment._directory.snapshot.nodes if node.acks]
    assert entries == [], "acknowledgements are no part of the map"


async def test_what_is_so_already_is_a_success_and_less_is_refused(fleet: Fleet, make: Make) -> None:
    assert await make().grow(1) == 1
    assert await make().grow(2) == 2
    assert await make().grow(2) == 2
    with pytest.raises(UserError, match="broker/main has 2 partitions; their number cannot be reduced"):
        await make().grow(1)


# --- interrupted ------------------------------------------------------------------------------------------------------


async def interrupted(fleet: Fleet, coordinator: Coordinator, step: str) -> None:
    """Let a coordinator get this far and no further, held up by the gateway, and die."""
    fleet.hold(3, step)
    reports: list[Report] = []
    coordinator.tell = reports.append
    growing = asyncio.ensure_future(coordinator.grow(2))
    await until(lambda: reports and reports[-1].step == step)  # not before it had the step's nodes started
    growing.cancel()
    await asyncio.gather(growing, return_exceptions=True)


@pytest.mark.parametrize("step", ["prepare", "switched", "final"])
async def test_another_one_finishes_what_was_interrupted(fleet: Fleet, make: Make, step: str) -> None:
    await interrupted(fleet, make(), step)
    assert fleet.step() == step
    with pytest.raises(UserError, match=rf"a growth to 2 partitions is in progress \({step}\): --resume continues it"):
        await make().grow(2)
    fleet.hold(3)
    assert await make().grow(None, resume=True) == 2
    await until(lambda: fleet.agrees(2))
    assert fleet.step() == "none"
    assert [steps(fleet.players[number]) for number in (1, 2, 3, 4)] == [EVERY[:4]] * 4


async def test_what_is_resumed_may_go_further_and_never_less_far(fleet: Fleet, make: Make) -> None:
    await interrupted(fleet, make(), "prepare")
    fleet.hold(3)
    assert await make().grow(4, resume=True) == 4
    assert await make().grow(None, resume=True) == 4, "nothing is under way"


async def test_what_went_further_elsewhere_is_finished_by_who_starts_nodes(fleet: Fleet, make: Make) -> None:
    await interrupted(fleet, make(), "prepare")
    fleet.hold(3)
    reports: list[Report] = []
    elsewhere = asyncio.create_task(make(hosts=OperatedHosts(), tell=reports.append).grow(4, resume=True))
    waits = ("a replica of partition 2", "a replica of partition 3")
    await until(lambda: elsewhere.done() or (reports and reports[-1].waits == waits))
    assert not elsewhere.done(), elsewhere.exception()
    elsewhere.cancel()
    await asyncio.gather(elsewhere, return_exceptions=True)
    assert (fleet.record().partitions, fleet.step()) == (2, "prepare")
    assert await make().grow(None, resume=True) == 4
    await until(lambda: fleet.agrees(4))
    assert set(fleet.players) == {1, 2, 3, 4, 101, 102, 103}


async def test_what_was_interrupted_between_two_doublings_still_knows_how_far_it_goes(fleet: Fleet, make: Make) -> None:
    coordinator = dies_once_it_wrote(make(), lambda: fleet.record().partitions == 2 and fleet.step() != "final")
    with pytest.raises(Killed):
        await coordinator.grow(4)
    with pytest.raises(UserError, match=r"a growth to 4 partitions is in progress \(prepare\): --resume continues it"):
        await make().grow(4)
    assert await make().grow(None, resume=True) == 4
    await until(lambda: fleet.agrees(4))
    assert set(fleet.players) == {1, 2, 3, 4, 101, 102, 103}


async def test_one_whose_next_doubling_is_given_up_at_once_does_not_begin_it_again(fleet: Fleet, make: Make) -> None:
    coordinator, other, given_up = make(), make(), list[int]()
    write = coordinator._write

    async def overtaken(before: Count, version: int, after: Count, *, checked: bool = False) -> bool:
        done = await write(before, version, after, checked=checked)
        if fleet.record().partitions == 2 and fleet.step() == "prepare" and not given_up:
            given_up.append(await other.abort())
        return done

    coordinator._write = overtaken  # type: ignore[method-assign]
    with pytest.raises(UserError, match="the growth to 4 partitions was undone meanwhile"):
        await coordinator.grow(4)
    assert (fleet.record().partitions, fleet.step(), given_up) == (2, "none", [2])


class Killed(Exception):
    """The coordinator is dead."""


def dies_once_it_wrote(coordinator: Coordinator, last: Callable[[], bool]) -> Coordinator:
    """Does nothing more once this holds."""
    write = coordinator._write

    async def wrote(before: Count, version: int, after: Count, *, checked: bool = False) -> bool:
        done = await write(before, version, after, checked=checked)
        if last():
            raise Killed
        return done

    coordinator._write = wrote  # type: ignore[method-assign]
    return coordinator


async def test_of_two_coordinators_one_is_fenced_and_the_other_finishes(fleet: Fleet, make: Make) -> None:
    fleet.hold(3, "prepare", "switched", "final")
    first = asyncio.create_task(make().grow(2))
    await until(lambda: fleet.step() == "prepare")
    second = asyncio.create_task(make().grow(None, resume=True))
    with pytest.raises(UserError, match="another muster cluster grow has taken over"):
        await first
    assert not second.done()
    fleet.hold(3)
    assert await second == 2
    assert fleet.agrees(2)


async def test_one_that_stood_still_can_write_nothing_over_what_came_meanwhile(fleet: Fleet, make: Make) -> None:
    """All were ready when it looked; before it wrote, another coordinator took over."""
    other = make()
    went: list[asyncio.Task[int]] = []

    def overtaken() -> None:
        if not went:
            went.append(asyncio.ensure_future(other.grow(None, resume=True)))

    stale = make(before=overtaken)
    stale._write = _late(stale)  # type: ignore[method-assign]
    with pytest.raises(UserError, match="another muster cluster grow has taken over"):
        await stale.grow(2)
    assert await went[0] == 2
    await until(lambda: fleet.agrees(2))


def _late(coordinator: Coordinator) -> Any:
    """Its checked writes wait until another one has written, and rest on nothing but the record's version then."""
    write, tree = coordinator._write, coordinator._tree
    assert isinstance(tree, Fallible)

    async def late(before: Count, version: int, after: Count, *, checked: bool = False) -> bool:
        if checked:
            tree.before()
            tree.before = lambda: None
            async with asyncio.timeout(PATIENT_S):
                while (entry := await tree.get(RECORD)) is None or entry.version == version:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        return await write(before, version, after)

    return late


async def test_of_many_who_begin_at_once_one_does(fleet: Fleet, make: Make) -> None:
    every = await asyncio.gather(*(make().grow(2) for _ in range(4)), return_exceptions=True)
    assert every.count(2) == 1
    refused = [str(each) for each in every if isinstance(each, UserError)]
    assert len(refused) == 3
    assert all("a growth to 2 partitions is in progress" in each for each in refused)
    assert fleet.record().serial == 4


# --- given up ---------------------------------------------------------------------------------------------------------


async def test_what_is_only_prepared_can_be_undone_and_begun_again(fleet: Fleet, make: Make) -> None:
    fleet.hold(3, "prepare", "switched", "final")
    first = asyncio.create_task(make().grow(2))
    await until(lambda: fleet.step() == "prepare" and 101 in fleet.players and fleet.players[101].enrolment.registered)
    await until(lambda: steps(fleet.players[2])[-1] == (1, 1))
    assert await make().abort() == 1
    with pytest.raises(UserError, match="the growth to 2 partitions was undone meanwhile"):
        await first
    await until(lambda: 101 not in fleet.players)
    await until(lambda: fleet.agrees(1))
    assert all(set(player.states()) == {1, 2, 3, 4} for player in fleet.players.values())
    fleet.hold(3)
    assert await make().grow(2) == 2
    await until(lambda: fleet.agrees(2))
    assert steps(fleet.players[2]) == [(1, 0), (1, 1), (1, 0), (1, 1), (1, 2), (2, 0)]


async def test_one_that_stood_still_while_it_was_given_up_leaves_no_node_behind(fleet: Fleet, make: Make) -> None:
    goes_on, calls = asyncio.Event(), list[tuple[str, int]]()

    class Suspended(OperatedHosts):
        async def provide(self, partitions: int) -> Mapping[int, str]:
            await asyncio.wait_for(goes_on.wait(), PATIENT_S)
            calls.append(("provide", partitions))
            return await fleet.provide(partitions)

        async def withdraw(self, partitions: int) -> None:
            calls.append(("withdraw", partitions))
            await fleet.withdraw(partitions)

    stale = asyncio.create_task(make(hosts=Suspended()).grow(2))
    await until(lambda: fleet.step() == "prepare")
    assert await make().abort() == 1
    goes_on.set()
    with pytest.raises(UserError, match="the growth to 2 partitions was undone meanwhile"):
        await stale
    assert calls == [("provide", 2), ("withdraw", 1)]


@pytest.mark.parametrize("left", [Count(1), Count(1, serial=9)])
async def test_one_that_finds_a_record_which_nobody_can_have_written_ends_no_node(
    fleet: Fleet, make: Make, left: Count
) -> None:
    coordinator = make()
    switched = Count(1, 2, Growth(2, "switched", 2, coordinator.name))
    await fleet.memory.trees[0].set(RECORD, encode(left))
    fleet.withdraw = lambda partitions: pytest.fail("rooms may be dealt to it")  # type: ignore[method-assign]
    assert switched.growth is not None
    await coordinator._advance(switched, switched.growth, 0)


async def test_who_gives_up_ends_no_node_of_what_another_one_has_begun_since(fleet: Fleet, make: Make) -> None:
    fleet.hold(3, "prepare")
    begun: list[asyncio.Task[int]] = []
    aborting, other = make(), make()
    write = aborting._write

    async def overtaken(before: Count, version: int, after: Count) -> bool:
        assert await write(before, version, after)
        begun.append(asyncio.create_task(other.grow(2)))
        await until(lambda: fleet.step() == "prepare" and 101 in fleet.players)
        return True

    await interrupted(fleet, make(), "prepare")
    aborting._write = overtaken  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"a growth to 2 partitions is in progress \(prepare\), begun since"):
        await aborting.abort()
    fleet.hold(3)
    assert await begun[0] == 2


@pytest.mark.parametrize("step", ["switched", "final"])
async def test_what_is_switched_can_only_be_finished(fleet: Fleet, make: Make, step: str) -> None:
    await interrupted(fleet, make(), step)
    with pytest.raises(UserError, match=rf"\({step}\): too late to undo it; --resume finishes it"):
        await make().abort()
    fleet.hold(3)
    assert await make().grow(None, resume=True) == 2


async def test_where_nothing_is_under_way_there_is_nothing_to_undo(fleet: Fleet, make: Make) -> None:
    assert await make().abort() == 1
    assert await make().grow(2) == 2
    assert await make().abort() == 2
    await until(lambda: fleet.agrees(2))


# --- nobody is passed over --------------------------------------------------------------------------------------------


async def test_who_is_registered_and_does_not_hear_holds_it_up_and_is_named_until_it_is_gone(
    fleet: Fleet, make: Make
) -> None:
    deaf = fleet.memory.tree()
    reports: list[Report] = []
    async with directory(deaf) as opened:
        opened.announce("gateway-9", Node(9, "gateway", "127.0.0.1", 7_009))
        await until(lambda: 9 in fleet.players[1].states())
        with pytest.raises(
            UserError,
            match=r"a growth to 2 partitions is in progress \(prepare\) still waiting after 0\.5 s for gateway 9 to learn",
        ):
            await make(patience_s=0.5).grow(2)
        growing = asyncio.create_task(make(tell=reports.append).grow(None, resume=True))
        await until(lambda: reports and reports[-1].waits == ("gateway 9 to learn of it",))
    assert await growing == 2, "its session is over"


@pytest.mark.parametrize("number", [1, 2, 3, 4])
async def test_whoever_has_not_settled_is_waited_for_at_every_step(fleet: Fleet, make: Make, number: int) -> None:
    reports: list[Report] = []
    waits = (f"muster-{fleet.players[number].begun.role}-{number} to settle",)
    fleet.hold(number, "prepare", "switched", "final")
    growing = asyncio.create_task(make(tell=reports.append).grow(2))
    for step, *rest in (("prepare", "switched", "final"), ("switched", "final"), ("final",)):
        await until(lambda: reports and (reports[-1].step, reports[-1].waits) == (step, waits))  # noqa: B023
        assert fleet.step() == step
        fleet.hold(number, *rest)
    assert await growing == 2


async def test_where_others_start_nodes_partitions_without_a_replica_are_named(fleet: Fleet, make: Make) -> None:
    fleet.starts = False
    reports: list[Report] = []
    growing = asyncio.create_task(make(tell=reports.append).grow(4))
    await until(lambda: reports and reports[-1].waits == ("a replica of partition 1",))
    await fleet.begin(6, "broker", 1)
    await until(lambda: reports[-1].waits == ("a replica of partition 2", "a replica of partition 3"))
    await fleet.begin(14, "broker", 3)
    await until(lambda: reports[-1].waits == ("a replica of partition 2",))
    await fleet.begin(10, "broker", 2)
    assert await growing == 4


async def test_a_replica_that_dies_before_the_switch_is_written_prevents_it(fleet: Fleet, make: Make) -> None:
    """Hole H15: all ran when the coordinator looked."""
    died: list[str] = []
    reports: list[Report] = []

    def dies() -> None:
        if not died:
            died.append(fleet.step())
            reports.clear()
            fleet.memory.store.end(fleet.trees[101]._id)

    assert await make(before=dies, tell=reports.append).grow(2) == 2
    assert died == ["prepare"]
    assert reports[0].step == "prepare", "it looks again, for what it rested on is not so any more"
    serials = fleet.record().serial
    assert serials == 4, "each step was written once"


# --- the registry -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["prepare", "switched", "final"])
@pytest.mark.parametrize("wiped", [False, True])
async def test_a_registry_that_is_away_or_forgets_everything_only_delays(
    fleet: Fleet, make: Make, step: str, wiped: bool
) -> None:
    fleet.hold(3, step)
    growing = asyncio.create_task(make().grow(2))
    await until(lambda: fleet.step() == step and 101 in fleet.players)
    if wiped:
        fleet.memory.wipe()
        await until(lambda: fleet.memory.store.get(RECORD), PATIENT_S)
    else:
        fleet.memory.stop()
        await asyncio.sleep(0)
        fleet.memory.start()
    fleet.hold(3)
    assert await asyncio.wait_for(growing, PATIENT_S) == 2
    await until(lambda: fleet.agrees(2))


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
async def test_a_step_whose_answer_was_lost_is_found_done(
    fleet: Fleet, make: Make, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster_server.control.cluster.growth.AGAIN_S", 0.01)
    assert await make(lost_answers=lost).grow(2) == 2
    assert fleet.record() == Count(2, serial=4)


async def test_a_serial_number_that_nobody_can_have_acknowledged_is_not_counted_on_from(
    fleet: Fleet, make: Make
) -> None:
    tree, ack = fleet.memory.trees[0], Ack("broker/main", SERIAL_MAX, True)
    await tree.create("/pubsub/gateway/forged", encode(Node(99, "gateway", "127.0.0.1", 7_099, acks=(ack,))))
    coordinator = make()
    await until(lambda: coordinator._directory.acks.get(99))
    growing = asyncio.create_task(coordinator.grow(2))
    await until(lambda: fleet.step() == "prepare")
    await tree.delete("/pubsub/gateway/forged")
    assert await asyncio.wait_for(growing, PATIENT_S) == 2
    assert fleet.record().serial == 4


async def test_a_step_that_nobody_would_follow_is_not_written(fleet: Fleet, make: Make) -> None:
    last = Count(1, serial=SERIAL_MAX)
    await fleet.memory.trees[0].set(RECORD, encode(last))
    with pytest.raises(UserError, match=f"{RECORD}: the next step is not valid: .* <= {SERIAL_MAX}"):
        await make().grow(2)
    assert fleet.record() == last


async def test_a_record_that_is_missing_or_nonsense_is_said_in_a_line(fleet: Fleet, make: Make) -> None:
    await fleet.memory.trees[0].set(RECORD, b"nonsense")
    with pytest.raises(UserError, match=f"{RECORD}: JSON is malformed"):
        await make().grow(2)
    fleet.role = "router"
    await fleet.memory.trees[0].delete("/pubsub/router/partition_num")
    nobody = make()
    nobody._path = "/pubsub/broker/other/partition_num"
    with pytest.raises(UserError, match="no router has ever registered there"):
        await nobody.grow(2)


async def test_no_step_is_taken_while_a_new_partition_s_only_replica_is_merely_kept_in_the_map(
    fleet: Fleet, make: Make
) -> None:
    fleet.hold(3, "prepare")
    reports: list[Report] = []
    coordinator = make(tell=reports.append)
    growing = asyncio.create_task(coordinator.grow(2))
    await until(lambda: any(report.waits == ("muster-gateway-3 to settle",) for report in reports))
    fleet.starts = False
    coordinator._directory._view._hold_s = 60.0
    fleet.players.pop(101).enrolment.detach()
    await fleet._ends.pop(101).aclose()  # as if killed: it did not register as draining
    await until(lambda: coordinator._directory.doubts)
    fleet.hold(3)
    reports.clear()
    await until(lambda: len(reports) > 20 or fleet.step() != "prepare")
    assert fleet.step() == "prepare"
    assert "a replica of partition 1" in reports[-1].waits
    await fleet.begin(102, "broker", 1)
    fleet.players[101] = fleet.players.pop(102)
    fleet._ends[101] = fleet._ends.pop(102)
    coordinator._new = {}
    assert await asyncio.wait_for(growing, PATIENT_S) == 2


async def test_a_step_rests_on_a_replica_of_each_new_partition_before_all_others(fleet: Fleet) -> None:
    tree = fleet.memory.trees[0]
    for number in range(1_000, 1_128):
        where = f"/pubsub/router/partition{number - 1_000}/r{number}"
        await tree.create(where, encode(Node(number, "router", "127.0.0.1", number, partition=number - 1_000)))
    of = "/pubsub/broker/main/partition"
    for number, partition in ((201, 2), (202, 2), (203, 3), (204, 3), (205, 1)):
        state: Any = "draining" if number == 203 else "running"
        node = Node(number, "broker", "127.0.0.1", number, partition, state)
        await tree.create(f"{of}{partition}/r{number}", encode(node))
    await tree.set("/pubsub/router/partition_num", encode(Count(128, serial=21)))
    await tree.set(RECORD, encode(Count(4, serial=6)))
    reader = fleet.players[3].enrolment._directory
    await until(lambda: len(reader.snapshot.nodes) == 4 + 128 + 5, PATIENT_S)
    paths = [check.path for check in reader.checks("broker/main", 2)]
    assert {path[: len(of) + 1] for path in paths[:2]} == {f"{of}2", f"{of}3"}
    assert f"{of}3/r203" not in paths[:2], "it drains"
    assert all(path.startswith(of) for path in paths[:6])
    assert len(paths) == 4 + 128 + 5


@pytest.mark.parametrize("call", ["get", "transaction"])
async def test_a_registry_that_refuses_is_said_in_a_line(
    fleet: Fleet, make: Make, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = make()

    async def refuses(*arguments: Any) -> Any:
        raise Refused(f"{RECORD}: NoAuthError")

    monkeypatch.setattr(coordinator._tree, call, refuses)
    with pytest.raises(UserError, match=r"the registry refuses .*: NoAuthError"):
        await coordinator.grow(2)
