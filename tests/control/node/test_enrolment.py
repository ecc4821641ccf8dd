"""A role in the registry, without its engine: its registrations, the maps that the engine gets, and its end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from muster_server.control.errors import ConfigError
from muster_server.control.node import enrolment
from muster_server.control.node.enrolment import Enrolment, enrolled, tree
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.places import Count, Growth, Node, Step, encode, grown
from muster_server.control.registry.tree import Create, Delete, Denied, Set
from muster_server.plane.spec import SpecError
from tests.control.players import Player, spec
from tests.fakes.memory import Memory, MemoryTree
from tests.waiting import PATIENT_S, until

LOG = structlog.get_logger()
COUNT_PATH = "/pubsub/broker/main/partition_num"


Begin = Callable[..., Any]


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
async def begin(memory: Memory) -> AsyncIterator[Begin]:
    async with contextlib.AsyncExitStack() as stack:

        async def begun(number: int, role: str, *arguments: Any, serves: bool = True, **where: Any) -> Player:
            directory = Directory(memory.tree(), LOG, spread_s=0.01, poll_s=60.0, hold_s=0.5)
            await stack.enter_async_context(directory)
            made = Enrolment(spec(number, role, *arguments, **where), directory, LOG)
            player = Player(made, await made.begin())
            player.attach()
            if serves:
                made.serve()
            return player

        yield begun


async def test_everybody_gets_the_same_map_with_itself_in_it_as_soon_as_it_begins(begin: Begin) -> None:
    router, broker = await begin(1, "router"), await begin(2, "broker", serves=False)
    assert router.states()[1] in {"init", "running"}
    assert broker.states()[2] == broker.begun.nodes[-1][5] == "init"
    await until(lambda: router.states() == broker.states() == {1: "running", 2: "init"})
    broker.enrolment.serve()
    await until(lambda: router.states() == broker.states() == {1: "running", 2: "running"})
    assert router.maps[-1][1:] == broker.maps[-1][1:]
    for player in (router, broker):
        epochs = [epoch for epoch, *_ in player.maps]
        assert epochs == sorted(epochs)


async def test_it_is_told_once_when_the_map_says_that_it_serves(begin: Begin) -> None:
    broker = await begin(2, "broker", serves=False)
    told: list[bool] = []
    broker.enrolment.on_registered = lambda: told.append(True)
    await until(lambda: broker.enrolment.status()["state"] == "init")
    assert not broker.enrolment.registered
    broker.enrolment.serve()
    await until(lambda: told)
    broker.enrolment.serve()
    await begin(1, "router")
    await until(lambda: 1 in broker.states())
    assert told == [True]


async def test_who_starts_with_others_says_when_it_knows_that_all_of_them_serve(begin: Begin) -> None:
    fellows = {"fellows": [1, 2, 4]}
    broker, proxy = await begin(2, "broker", **fellows), await begin(4, "proxy", serves=False, **fellows)
    told: list[bool] = []
    broker.enrolment.on_registered = lambda: told.append(broker.enrolment.acquainted)
    await until(lambda: told)
    await begin(1, "router", **fellows)
    await until(lambda: 1 in broker.states())
    assert told == [False]
    proxy.enrolment.serve()
    await until(lambda: broker.enrolment.acquainted and proxy.enrolment.acquainted)
    assert told == [False, True]
    alone = await begin(3, "gateway")
    await until(lambda: alone.enrolment.registered)
    assert alone.enrolment.acquainted


async def test_a_proxy_is_found_only_once_it_serves(begin: Begin) -> None:
    router, proxy = await begin(1, "router"), await begin(4, "proxy", serves=False)
    await begin(3, "gateway")
    await until(lambda: 3 in router.states())
    assert 4 not in router.states()
    assert 4 in proxy.states()
    proxy.enrolment.serve()
    await until(lambda: router.states().get(4) == "running")


async def test_nodes_are_known_by_their_names_and_each_step_of_a_growth_is_logged(memory: Memory) -> None:
    with capture_logs() as told:
        async with Directory(memory.tree(), structlog.get_logger(), spread_s=0.01, poll_s=60.0) as directory:
            made = Enrolment(spec(2, "broker"), directory, structlog.get_logger())
            Player(made, await made.begin()).attach()
            made.serve()
            await until(lambda: made.name_of(2))
            assert (made.name_of(2), made.name_of(9)) == ("muster-broker-2", "")
            steps: list[tuple[int, Growth | None]] = [
                (1, Growth(2, "prepare", 2, "me")),
                (1, Growth(2, "switched", 2, "me")),
                (2, Growth(2, "final", 2, "me")),
                (2, None),
            ]
            await memory.trees[0].set(COUNT_PATH, encode(Count(1, 1, steps[0][1])))
            await until(lambda: told[-1]["event"] == "growth")
            for partitions, growth in (*steps[:1], *steps):
                made._say_growth({"broker/main": Count(partitions, 1, growth)})
    assert [(line["event"], line["layer"], line.get("step")) for line in told if "growth" in line["event"]] == [
        ("growth", "broker/main", "prepare"),
        ("growth", "broker/main", "switched"),
        ("growth", "broker/main", "final"),
        ("growth has ended", "broker/main", None),
    ]


async def test_each_life_has_a_higher_epoch_and_none_below_that_of_the_process(begin: Begin, memory: Memory) -> None:
    lives = [(await begin(2, "broker")).begun.epoch for _ in range(3)]
    assert lives == sorted(set(lives))
    assert min(lives) >= 7


async def test_a_node_brings_number_and_epoch_to_a_registry_that_forgot_it_whatever_its_clock_says(
    memory: Memory, tmp_path: Path
) -> None:
    file = tmp_path / "number.json"

    async def life(name: str, wall: float) -> tuple[int, int]:
        async with Directory(memory.tree(), LOG, spread_s=0.01, back_s=0.01, wall=lambda: wall) as directory:
            told = msgspec.structs.replace(spec(0, "gateway", name=name, number_file=str(file)), epoch=1)
            begun = await Enrolment(told, directory, LOG).begin()
        return begun.node, begun.epoch

    taken = await life("gateway-a", 2_000.0)
    memory.wipe()
    assert await life("gateway-a", 50.0) == (taken[0], 2_001)
    file.unlink()
    memory.wipe()
    assert (await life("gateway-a", 50.0))[0] == taken[0], "the number follows from the name"
    file.write_bytes(b"junk")
    with pytest.raises(SpecError, match=r"number.json: invalid number and epoch: .*; delete the file"):
        await life("gateway-a", 50.0)


async def test_who_begins_waits_until_the_number_of_its_partitions_can_be_believed(
    begin: Begin, memory: Memory
) -> None:
    first = await begin(2, "broker")
    await until(lambda: first.enrolment.registered)
    path = "/pubsub/broker/main/partition_num"
    await memory.trees[0].set(path, b"nonsense")
    second = await asyncio.wait_for(begin(6, "broker"), PATIENT_S)
    assert second.begun.layers == {"broker": (1, 0), "router": (1, 0)}
    assert memory.store.get(path).data == b'{"partitions":1}'  # type: ignore[union-attr]
    assert {entry[0] for entry in second.begun.nodes} == {2, 6}


async def test_the_first_one_that_asks_for_a_partition_too_many_is_told_which_key_says_how_many(begin: Begin) -> None:
    said = "has 1 partitions, by serve.broker_partitions, as no node has registered yet, so there is no partition 3"
    with pytest.raises(SpecError, match=said):
        await begin(2, "broker", 3, grown=True)


async def test_whom_the_registry_does_not_take_has_a_mistake_in_its_configuration(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def denies(*arguments: Any) -> Any:
        raise Denied("/pubsub/ids/muster-broker-2: NoAuthError")

    monkeypatch.setattr(MemoryTree, "transaction", denies)
    with pytest.raises(
        ConfigError, match=r"NoAuthError; check registry.auth, registry.user and registry.password_file"
    ):
        await begin(2, "broker")


async def test_whose_number_is_another_s_meanwhile_is_told_to_end(begin: Begin, memory: Memory) -> None:
    broker = await begin(2, "broker")
    await until(lambda: broker.enrolment.registered)
    ended: list[str] = []
    broker.enrolment.on_displaced = lambda: ended.append(broker.enrolment.displaced)
    memory.store.apply(0, [Delete("/pubsub/ids/muster-broker-2"), Create("/pubsub/ids/thief", b'{"node":2,"epoch":9}')])
    memory.store.apply(0, [Set("/pubsub/numbers/2", b"thief")])
    memory.trees[0].expire()
    await until(lambda: ended)
    assert "node 2 is thief" in ended[0]
    assert not broker.enrolment.superseded


async def test_with_the_registry_away_or_empty_the_map_in_force_stays(begin: Begin, memory: Memory) -> None:
    router, broker = await begin(1, "router"), await begin(2, "broker")
    await until(lambda: router.states() == broker.states() == {1: "running", 2: "running"})
    count = len(broker.maps)
    memory.stop()
    await until(lambda: broker.enrolment.status()["session"] == "suspended")
    assert broker.maps[count - 1 :] == [broker.maps[-1]]
    memory.start()
    memory.wipe()
    before = broker.enrolment.status()["placement_epoch"]
    await until(lambda: broker.enrolment.status()["placement_epoch"] > before)
    await until(lambda: broker.enrolment.status()["state"] == "running")
    for player in (router, broker):
        assert all({entry[0] for entry in nodes} == {1, 2} for _, nodes, *_ in player.maps[count:])
    counts = {name: value for name, _, value in broker.enrolment.counters()}
    assert counts["registry_sessions_lost"] == 1


async def test_who_serves_all_gets_every_cluster_at_a_place_that_it_keeps_and_brokers_and_proxies_their_own(
    begin: Begin,
) -> None:
    gateway, router, main = await begin(1, "gateway"), await begin(6, "router"), await begin(2, "broker")
    late = await begin(3, "broker", 1, (2, 1), cluster="late")

    def brokers(player: Player) -> list[list[int]]:
        _, nodes, _, beside = player.maps[-1]
        return [[entry[0] for entry in part if entry[1] == "broker"] for part in (nodes, *(each for each, _ in beside))]

    # A node that sees both at once orders them by name.
    await until(lambda: all(brokers(player) == [[2], [3]] for player in (gateway, router)))
    early = await begin(4, "broker", 0, (1, 1), cluster="early")  # its name would come first
    proxy = await begin(5, "proxy", 0, (1, 1), cluster="early")
    every = [[2], [3], [4]]
    wanted = {main: [[2]], late: [[3]], early: [[4]], proxy: [[4]], router: every, gateway: every}
    await until(lambda: all(len(player.states()) >= 4 for player in wanted) and brokers(gateway) == every)
    await until(lambda: router.maps[-1][1:] == gateway.maps[-1][1:])
    assert [brokers(player) for player in wanted] == list(wanted.values())
    assert [layers["broker"] for _, layers in gateway.maps[-1].beside] == [(2, 0), (1, 0)]
    assert [player.maps[-1].layers["broker"] for player in (main, late, early)] == [(1, 0), (2, 0), (1, 0)]


@pytest.mark.parametrize("role", ["router", "gateway"])
async def test_who_serves_all_gets_the_brokers_of_the_only_cluster_whatever_that_is_called(
    begin: Begin, role: str
) -> None:
    serves = await begin(1, role)
    await begin(2, "broker", cluster="chat")

    def said() -> list[tuple[int, str]]:
        return [(entry[0], entry[5]) for brokers, _ in serves.maps[-1].beside for entry in brokers]

    await until(lambda: said() == [(2, "running")])
    assert not [entry for entry in serves.maps[-1][1] if entry[1] == "broker"]


async def test_clients_are_told_of_servers_that_run_and_have_a_weight_and_by_a_proxy_of_those_of_its_cluster(
    begin: Begin, memory: Memory
) -> None:
    def where(number: int, cluster: str = "main") -> dict[str, Any]:
        return {"client": ("192.0.2.1", number), "public_key": f"{number:02x}" * 32, "cluster": cluster}

    def ports(player: Player) -> tuple[list[int], list[int]]:
        gateways, proxies = (player.named[-1][role] for role in ("gateway", "proxy"))
        assert all(host == "192.0.2.1" and key == bytes([port]) * 32 for host, port, key, _ in [*gateways, *proxies])
        return [port for _, port, _, _ in gateways], [port for _, port, _, _ in proxies]

    await begin(1, "router")
    gateway, other = await begin(3, "gateway", **where(3)), await begin(5, "gateway", serves=False, **where(5))
    proxy, beside = await begin(4, "proxy", **where(4)), await begin(6, "proxy", **where(6, "second"))
    await until(lambda: ports(gateway) == ([3], [4, 6]))
    await until(lambda: ports(proxy) == ([3], [4]) and ports(beside) == ([3], [6]))
    other.enrolment.serve()
    await until(lambda: ports(proxy) == ports(proxy) == ([3, 5], [4]))
    other.enrolment.weigh(0)
    proxy.enrolment.weigh(7)
    await until(lambda: ports(gateway) == ([3], [4, 6]) and gateway.named[-1]["proxy"][0][3] == 7)
    assert gateway.enrolment.status()["weights"] == {"3": 1, "4": 7, "5": 0, "6": 1}
    other.enrolment.weigh(1)
    await until(lambda: ports(gateway)[0] == [3, 5])
    memory.stop()
    await asyncio.sleep(0)
    assert ports(gateway) == ([3, 5], [4, 6])


async def test_numbers_of_partitions_come_from_the_registry_and_must_be_those_configured(
    begin: Begin, memory: Memory
) -> None:
    broker = await begin(2, "broker", 1, (2, 4))
    assert broker.maps[-1].layers == {"broker": (2, 0), "router": (4, 0)}, "those of the start, while nobody said more"
    await until(lambda: broker.enrolment.status()["state"] == "running")
    with pytest.raises(SpecError, match=r"broker/main has 2 partitions, but up\.brokers asks for 4"):
        await begin(6, "broker", 3, (4, 4))
    with pytest.raises(SpecError, match=r"has 2 partitions, but up\.brokers asks for 1; start it with 2$"):
        await begin(6, "broker", 0, (1, 4))
    router = await begin(1, "router", 0, (4, 4))
    assert router.begun.layers == {"broker": (2, 0), "router": (4, 0)}
    owner = Node(9, "broker", "127.0.0.1", 7_009, partition=3)
    await memory.trees[0].create("/pubsub/broker/main/partition3/r", encode(owner))
    await memory.trees[0].set("/pubsub/broker/main/partition_num", encode(Count(4)))
    await until(lambda: router.maps[-1].layers == {"broker": (4, 0), "router": (4, 0)})


@pytest.mark.parametrize(
    ("step", "says", "partition", "wrong"),
    [
        ("prepare", 2, 1, ""),
        ("prepare", 4, 3, ""),
        ("prepare", 8, 3, "has 2 partitions, but up.brokers asks for 8"),
        ("prepare", 4, 4, "has 2 partitions, so there is no partition 4"),
        ("switched", 4, 3, ""),
        ("switched", 2, 1, "has 4 partitions, but up.brokers asks for 2"),
        ("final", 4, 3, ""),
        ("final", 2, 1, "has 4 partitions, but up.brokers asks for 2"),
    ],
)
async def test_who_begins_while_partitions_double_has_one_of_those_that_own_rooms(
    begin: Begin, memory: Memory, step: Step, says: int, partition: int, wrong: str
) -> None:
    await begin(1, "router")
    count = Count(4 if step == "final" else 2, 1, Growth(4, step, 4, "somebody"))
    await memory.trees[0].create("/pubsub/broker/main/partition_num", encode(count))
    if wrong:
        with pytest.raises(SpecError, match=wrong):
            await begin(2, "broker", partition, (says, 1))
    else:
        broker = await begin(2, "broker", partition, (says, 1))
        assert broker.begun.layers["broker"] == (count.partitions, grown(count))


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_a_broker_with_a_successor_drains_until_nothing_moves(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrolment, "QUIET_S", 0.2)
    one, other = await begin(2, "broker"), await begin(6, "broker")
    await until(lambda: one.states() == other.states() == {2: "running", 6: "running"})
    asked = 0

    def moved() -> int:
        nonlocal asked
        asked += 1
        return min(asked, 20)

    ending = asyncio.create_task(one.enrolment.hand_over(moved, dict))
    await until(lambda: one.states() == other.states() == {2: "draining", 6: "running"})
    await asyncio.wait_for(ending, PATIENT_S)
    assert asked > 20


@pytest.mark.parametrize("stands_still", [{}, {3: 5}])
async def test_a_broker_that_drains_waits_for_a_gateway_that_does_not_answer(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, stands_still: dict[int, int]
) -> None:
    monkeypatch.setattr(enrolment, "QUIET_S", 0.1)
    one, *_ = await begin(2, "broker"), await begin(6, "broker"), await begin(3, "gateway")
    await until(lambda: one.states() == {2: "running", 3: "running", 6: "running"})
    in_flight, asked = stands_still, 0

    def flying() -> dict[int, int]:
        nonlocal asked
        asked += 1
        return in_flight

    ending = asyncio.create_task(one.enrolment.hand_over(lambda: 0, flying))
    await until(lambda: asked > 10)
    assert not ending.done()
    in_flight = {3: 0}
    await asyncio.wait_for(ending, PATIENT_S)


@pytest.mark.parametrize("elsewhere", [None, ("broker", 1), ("router", 0)])
async def test_a_broker_without_a_successor_stays_the_owner(begin: Begin, elsewhere: tuple[str, int] | None) -> None:
    broker = await begin(2, "broker", 0, (2, 1))
    if elsewhere is not None:
        await begin(6, *elsewhere, (2, 1))
    await until(lambda: len(broker.states()) == 1 + (elsewhere is not None) and broker.enrolment.registered)
    await broker.enrolment.hand_over(lambda: 0, dict)
    assert broker.states()[2] == broker.enrolment.status()["state"] == "running"


async def test_a_broker_whose_successor_goes_too_waits_no_longer(begin: Begin) -> None:
    one, other = await begin(2, "broker"), await begin(6, "broker")
    await until(lambda: one.states() == other.states() == {2: "running", 6: "running"})
    async with asyncio.timeout(enrolment.HAND_OVER_S):
        await asyncio.gather(*(each.enrolment.hand_over(iter(range(1 << 30)).__next__, dict) for each in (one, other)))


async def test_without_the_registry_an_end_is_not_put_off(begin: Begin, memory: Memory) -> None:
    one, _ = await begin(2, "broker"), await begin(6, "broker")
    await until(lambda: one.states() == {2: "running", 6: "running"})
    memory.stop()
    await one.enrolment.hand_over(lambda: 0, dict)
    assert one.states()[2] == "running"


async def test_an_engine_that_is_gone_is_given_and_asked_nothing(begin: Begin, memory: Memory) -> None:
    one, asked = await begin(3, "gateway"), list[bool]()
    one.settled = lambda: asked.append(True) or False  # type: ignore[func-returns-value]
    growing = Count(2, 1, Growth(4, "prepare", 4, "somebody"))
    await memory.trees[0].create("/pubsub/broker/main/partition_num", encode(growing))
    await until(lambda: asked)
    one.enrolment.detach()
    counts = len(one.maps), len(asked)
    other = await begin(1, "router")
    await until(lambda: len(other.states()) == len(one.enrolment.placement()["nodes"]) == 2)
    assert (len(one.maps), len(asked)) == counts


# --- the way there ------------------------------------------------------------------------------------------------------


async def test_a_registry_that_does_not_answer_is_waited_for_and_named(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.stop()
    monkeypatch.setattr(enrolment, "PATIENCE_S", 0.01)
    monkeypatch.setattr(enrolment, "tree", lambda where: memory.tree())
    said: list[str] = []
    async with asyncio.TaskGroup() as tasks:

        async def start() -> int:
            async with enrolled(spec(2, "broker"), LOG, said.append) as (begun, _):
                return begun.epoch

        starting = tasks.create_task(start())
        await until(lambda: said)
        assert not starting.done()
        memory.start()
    assert starting.result() >= 7
    assert said == ["the registry embedded"]


async def test_an_identity_that_is_somebody_elses_ends_the_start_in_one_line(begin: Begin, memory: Memory) -> None:
    await begin(2, "broker")
    directory = Directory(memory.tree(), LOG)
    async with directory:
        taken = Enrolment(spec(2, "broker", name="another"), directory, LOG)
        with pytest.raises(SpecError, match="registry embedded: /pubsub/ids: node 2 is muster-broker-2"):
            await taken.begin()


@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        ({"url": "zk://h"}, "registry.url: invalid server 'h' in 'zk://h' .expected HOST:PORT"),
        (
            {"url": "zk://h:1", "auth": "digest", "user": "me", "password_file": "/none"},
            "registry.password_file: /none",
        ),
    ],
)
def test_a_registry_that_cannot_be_used_is_said_in_one_line(where: dict[str, Any], wrong: str) -> None:
    registration = spec(2, "broker", **where).registry
    assert registration is not None
    with pytest.raises(SpecError, match=wrong):
        tree(registration)


@pytest.mark.parametrize("auth", ["digest", "sasl"])
def test_credentials_come_from_their_file_and_stay_out_of_the_spec(tmp_path: Path, auth: str) -> None:
    file = tmp_path / "password"
    file.write_text("canary\n")
    made = spec(2, "broker", url="zk://h:1", auth=auth, user="me", password_file=str(file))
    assert made.registry is not None
    assert b"canary" not in msgspec.json.encode(made)
    found: Any = tree(made.registry)
    expected = {"digest": "me:canary"} if auth == "digest" else {}
    assert found._where.digest == expected.get("digest", "")
    assert dict(found._where.sasl).get("password", "canary") == "canary"
