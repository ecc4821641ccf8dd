"""Nodes come and go while `muster up` runs: the supervisor's work for each request, and its refusals in one line."""

import asyncio
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from muster_server.control.cluster import instance, requests
from muster_server.control.cluster.requests import (
    SOCKET,
    Add,
    Counted,
    Look,
    Provide,
    Remove,
    Seated,
    Withdraw,
    answered,
)
from muster_server.control.cluster.supervisor import Supervisor
from muster_server.control.cluster.template import Template
from muster_server.control.config.layout import NODES_MAX, REPLICAS_MAX
from muster_server.control.config.load import load
from muster_server.control.errors import FAILURE, TRY_LATER, NotRunning, UserError
from muster_server.control.registry.certified import Certified
from muster_server.control.registry.places import Certificate, Node
from muster_server.plane import calls
from muster_server.plane.certificate import public_half
from muster_server.plane.sockets import address
from muster_server.plane.spec import read, secret
from tests.waiting import PATIENT_S, until

LOG = structlog.get_logger()
FAKE = (sys.executable, "-m", "tests.fakes.node")
ADDRESS = ("127.0.0.1", 7_001)


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    """Two partitions of brokers, in the embedded registry."""
    flags: dict[str, tuple[object, str]] = {
        "instance.dir": (str(tmp_path / "i"), "flag"),
        "probes.every_ms": (0, "flag"),
        "registry.url": ("embedded", "flag"),
        "up.brokers": ("2x1", "flag"),
    }
    async with Supervisor(load(environment={}, flags=flags).config, LOG, command=FAKE) as made:
        yield made


async def runs(supervisor: Supervisor, program: str) -> None:
    """Nodes that start from now on run this program."""
    begins = (
        "import sys; from muster_server.control.node.template import started; started(sys.argv[1:], lambda words: None)"
    )
    await supervisor._template.close()
    supervisor._template = Template((sys.executable, "-c", f"{begins}; {program}"))


async def ask(supervisor: Supervisor, request: requests.Request) -> list[Seated]:
    """As a command does, through the socket."""
    return await requests.ask(supervisor.folder.path, request)


def names(supervisor: Supervisor) -> dict[str, bool]:
    """The nodes of the record, and whether they serve."""
    return {process.name: process.ready for process in instance.find(supervisor.folder).processes}


async def test_a_node_that_is_added_registers_in_its_partition_and_one_that_is_removed_does_not_come_back(
    supervisor: Supervisor,
) -> None:
    before = names(supervisor)
    (added,) = await ask(supervisor, Add(role="broker", partition=1))
    assert (added.name, added.partition, added.node) == ("broker-2", 1, 10)
    await until(lambda: names(supervisor) == before | {"broker-2": True}, PATIENT_S)
    (gone,) = await ask(supervisor, Remove(node=6))
    assert (gone.name, gone.leaving) == ("broker-1", True)
    await until(lambda: "broker-1" not in names(supervisor), PATIENT_S)
    assert names(supervisor) == {name: True for name in (*before, "broker-2") if name != "broker-1"}
    (again,) = await ask(supervisor, Add(role="broker", partition=1))
    assert again.name == "broker-3", "no number is given twice"
    everybody = {each.name: each for each in await ask(supervisor, Look())}
    assert set(everybody) == {"router", "broker", "gateway", "proxy", "broker-2", "broker-3"}


async def test_the_last_that_runs_of_a_partition_stays_however_it_is_asked(supervisor: Supervisor) -> None:
    with pytest.raises(UserError, match="broker-1 is the last running node of partition 1 of broker") as refused:
        await ask(supervisor, Remove(node=6))
    assert refused.value.exit_code == TRY_LATER
    with pytest.raises(UserError, match="gateway is the last running node of every gateway"):
        await ask(supervisor, Remove(node=3))
    await ask(supervisor, Add(role="broker", partition=1))
    await until(lambda: names(supervisor).get("broker-2"), PATIENT_S)
    first, second = await asyncio.gather(
        *(ask(supervisor, Remove(node=node)) for node in (6, 10)), return_exceptions=True
    )
    assert sorted([isinstance(first, UserError), isinstance(second, UserError)]) == [False, True]


async def test_what_cannot_be_added_or_removed_is_said_in_one_line(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="broker has no partition 2; its last one is 1"):
        await ask(supervisor, Add(role="broker", partition=2))
    with pytest.raises(UserError, match="the instance has no node 99"):
        await ask(supervisor, Remove(node=99))
    with pytest.raises(UserError, match=r"one node serves it; to mend: start likes with likes\.partitions = 16"):
        await ask(supervisor, Add(role="likes"))
    monkeypatch.setattr("muster_server.control.cluster.roster.REPLICAS_MAX", 1)
    with pytest.raises(UserError, match=r"partition 0 of router has 1 replicas already \(limit 1\)"):
        await ask(supervisor, Add(role="router"))
    monkeypatch.setattr("muster_server.control.cluster.supervisor.NODES_MAX", len(names(supervisor)))
    with pytest.raises(UserError, match="too many nodes in one instance"):
        await ask(supervisor, Add(role="proxy"))
    assert all(names(supervisor).values())
    assert REPLICAS_MAX < NODES_MAX


def certificate(file: Path) -> Certificate:
    """That which a server reads."""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return msgspec.json.decode(file.read_bytes(), type=Certificate)


async def test_nodes_are_told_of_certificates_and_the_signing_key_stays_with_the_supervisor(
    supervisor: Supervisor,
) -> None:
    await ask(supervisor, Add(role="gateway"))
    await until(lambda: names(supervisor).get("gateway-1"), PATIENT_S)
    place = supervisor.folder
    judge = Certified([public_half(secret(str(place.signing_key), 32))])
    servers = 0
    for name in names(supervisor):
        spec = read(place.spec(name))
        assert spec.registry is not None
        assert spec.registry.signing_key_file == ""
        assert str(place.signing_key) not in place.spec(name).read_text()
        if spec.registry.certificate_file:
            servers += 1
            where = spec.registry
            node = Node(spec.node, spec.role, *ADDRESS, client=where.client, public_key=where.public_key)
            shown = msgspec.structs.replace(node, certificate=certificate(Path(where.certificate_file)))
            assert judge.doubt(shown) == ""
    assert servers == 3, "two gateways and a proxy"


async def test_a_node_that_is_added_has_a_key_and_is_in_the_file_by_which_clients_find_it(
    supervisor: Supervisor,
) -> None:
    await ask(supervisor, Add(role="gateway"))
    await until(lambda: names(supervisor).get("gateway-1"), PATIENT_S)
    first, second = instance.find(supervisor.folder).gateways
    assert first.public_key != second.public_key
    assert len(bytes.fromhex(second.public_key)) == 32
    await ask(supervisor, Remove(node=first.node))
    await until(lambda: instance.find(supervisor.folder).gateways == [second], PATIENT_S)


async def test_new_partitions_get_as_many_replicas_as_those_they_split_once_however_often_they_are_asked_for(
    supervisor: Supervisor,
) -> None:
    before = set(names(supervisor))
    await ask(supervisor, Add(role="broker", partition=1))
    first = await ask(supervisor, Provide(role="broker", partitions=4))
    assert [(each.name, each.partition) for each in first] == [("broker-3", 2), ("broker-4", 3), ("broker-5", 3)]
    assert [each.name for each in await ask(supervisor, Provide(role="broker", partitions=4))] == [
        each.name for each in first
    ]
    with pytest.raises(UserError, match="broker has 2 partitions, which can only be doubled, not grown to 8"):
        await ask(supervisor, Provide(role="broker", partitions=8))

    gone = await ask(supervisor, Withdraw(role="broker", partitions=2))
    assert {each.name for each in gone} == {each.name for each in first}
    assert await ask(supervisor, Withdraw(role="broker", partitions=2)) == []
    await until(lambda: set(names(supervisor)) == {*before, "broker-2"}, PATIENT_S)

    again = await ask(supervisor, Provide(role="broker", partitions=4))
    assert [each.name for each in again] == ["broker-6", "broker-7", "broker-8"]
    await ask(supervisor, Counted(role="broker", partitions=4))
    assert supervisor.spec(supervisor._roster.seats[0]).layers == {"broker": (4, 0), "router": (1, 0)}
    with pytest.raises(UserError, match="broker has 4 partitions; their number cannot be reduced"):
        await ask(supervisor, Withdraw(role="broker", partitions=2))


async def test_new_nodes_start_in_turns_lest_they_take_the_machine_from_those_that_run(supervisor: Supervisor) -> None:
    supervisor._turns = asyncio.Semaphore(2)
    before, at_once = set(supervisor._roster.seats), set()
    for add in (Add(role="gateway"), Add(role="proxy"), Add(role="broker", partition=1), Add(role="router")):
        await ask(supervisor, add)
    new = set(supervisor._roster.seats) - before

    def all_serve() -> bool:
        children = [supervisor._children[seat] for seat in new]
        at_once.add(sum(bool(child.pid) and not child.begun.is_set() for child in children))
        return all(child.state == "ready" for child in children)

    await until(all_serve, PATIENT_S)
    assert max(at_once) == 2


@pytest.mark.parametrize(("program", "turn_s"), [("sys.stdin.read()", 0.2), ("", PATIENT_S)])
async def test_one_that_does_not_begin_or_that_ends_does_not_keep_the_next_one_for_ever(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, program: str, turn_s: float
) -> None:
    supervisor._turns = asyncio.Semaphore(1)
    monkeypatch.setattr("muster_server.control.cluster.supervisor.TURN_S", turn_s)
    await runs(supervisor, program)
    await ask(supervisor, Provide(role="broker", partitions=4))
    children = [supervisor._children[seat] for seat in supervisor._roster.beyond("broker", 2)]
    began = asyncio.get_running_loop().time()
    await until(lambda: all(child.pid or child.restarts for child in children), PATIENT_S)
    assert asyncio.get_running_loop().time() - began < PATIENT_S / 2


async def test_who_waits_for_its_turn_can_be_withdrawn(supervisor: Supervisor) -> None:
    before = set(names(supervisor))
    supervisor._turns = asyncio.Semaphore(1)
    await runs(supervisor, "sys.stdin.read()")
    await ask(supervisor, Provide(role="broker", partitions=4))
    await ask(supervisor, Withdraw(role="broker", partitions=2))
    await until(lambda: set(names(supervisor)) == before, PATIENT_S)


async def test_without_a_registry_nodes_do_not_come_and_go(tmp_path: Path) -> None:
    flags = {"instance.dir": (str(tmp_path / "i"), "flag"), "probes.every_ms": (0, "flag")}
    config = load(environment={}, flags=flags).config
    async with Supervisor(config, LOG, command=FAKE) as supervisor:
        assert len(await ask(supervisor, Look())) == 4
        with pytest.raises(UserError, match="muster up --registry embedded"):
            await ask(supervisor, Add(role="broker"))
        assert stat.S_IMODE((supervisor.folder.path / SOCKET).stat().st_mode) == 0o600
    with pytest.raises(NotRunning, match="start one: muster up"):
        await requests.ask(supervisor.folder.path, Look())


# --- the channel --------------------------------------------------------------------------------------------------------


class Dance(msgspec.Struct, tag=True):
    """A request of another version."""


async def test_a_request_of_another_version_is_refused_by_a_line(tmp_path: Path) -> None:
    seated = Seated(name="broker", role="broker", node=2, partition=0, state="ready")
    async with answered(tmp_path, lambda request: [seated]):
        strange: list[Any] = [Dance(), Add(role="queen"), Add(role="broker", partition=256)]
        for request in strange:
            with pytest.raises(UserError, match="use one version of muster"):
                await requests.ask(tmp_path, request)
        assert await requests.ask(tmp_path, Look()) == [seated]


async def test_a_command_of_0_2_gets_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wrote a line of JSON, and takes what comes for an answer of another version."""
    monkeypatch.setattr(calls, "PROOF_S", 0.05)
    async with answered(tmp_path, lambda request: []):
        with address(tmp_path / SOCKET) as path:
            reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b'{"ask":"look","format":1}\n')
        assert len(await asyncio.wait_for(reader.read(), PATIENT_S)) == calls.NONCE
        writer.close()


async def test_a_defect_is_answered_and_the_next_is_served(tmp_path: Path) -> None:
    def broken(request: requests.Request) -> list[Seated]:
        raise ZeroDivisionError("a bug")

    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with answered(tmp_path, broken):
        for _ in range(2):
            with pytest.raises(UserError, match="see the log") as error:
                await requests.ask(tmp_path, Look())
            assert error.value.exit_code == FAILURE
    assert [type(each["exception"]) for each in told] == [ZeroDivisionError] * 2


async def test_an_instance_that_ended_without_a_word_is_to_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / SOCKET).touch()
    with pytest.raises(UserError, match="does not answer") as error:
        await requests.ask(tmp_path, Look())
    assert error.value.exit_code == TRY_LATER
