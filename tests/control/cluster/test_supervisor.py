"""`muster up` with role processes that hold fake engines: they start, restart, die together and end cleanly."""

import asyncio
import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
import structlog
from msgspec import UNSET
from structlog.testing import capture_logs

import muster
import muster.testing
from muster.instance import start_time
from muster_server.control.cluster import instance, programs, sdk, specs
from muster_server.control.cluster import supervisor as module
from muster_server.control.cluster.instance import Endpoint, Folder, Record
from muster_server.control.cluster.supervisor import Supervisor, fault_rules
from muster_server.control.config.layout import FIRST_NUMBERS, seats
from muster_server.control.config.load import load
from muster_server.control.config.options import LINKS, ROLES, Config
from muster_server.control.errors import ConfigError, NotRunning, UserError
from muster_server.control.host.ports import Ports
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.places import Identity, encode
from muster_server.plane.kinds import system_of
from tests import strikes
from tests.control.nodes import configured
from tests.fakes.memory import Memory
from tests.waiting import PATIENT_S, until

LOG = structlog.get_logger()
FAKE = (sys.executable, "-m", "tests.fakes.node")
ROOT = Path(__file__).parents[3]
DIES = """
import sys
from muster_server.control.node.template import started
started(sys.argv[1:], lambda words: None)
raise SystemExit(3)
"""
RUN = """
import asyncio, structlog, sys
from muster_server.control.config.load import load
from muster_server.control.cluster.supervisor import Supervisor
async def main():
    config = load(flags={"instance.dir": (sys.argv[1], "--dir"), "probes.every_ms": (0, "flag")}).config
    async with Supervisor(config, structlog.get_logger(), command=(sys.executable, "-m", "tests.fakes.node")):
        print("up", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def settings(tmp_path: Path, **flags: object) -> Config:
    """Without a prober, for which there is no fake. Each node has a process of its own unless `flags` say otherwise."""
    wanted = {"instance.dir": str(tmp_path / "i"), "probes.every_ms": 0, "up__processes": "apart", **flags}
    values = {name.replace("__", "."): (value, "flag") for name, value in wanted.items()}
    return load(environment={}, flags=values).config


def made(config: Config) -> Supervisor:
    return Supervisor(config, LOG, command=FAKE)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if start_time(pid) is not None]


async def test_an_instance_is_found_by_its_file_and_leaves_nothing_behind(tmp_path: Path) -> None:
    config = settings(tmp_path)
    place = instance.folder(config)
    async with made(config) as supervisor:
        record = instance.find(place)
        assert record == supervisor.record()
        assert {process.role for process in record.processes} == {"router", "broker", "gateway", "proxy"}
        assert all(process.ready for process in record.processes)
        assert len(alive([process.pid for process in record.processes])) == 4
        assert len(bytes.fromhex(record.gateways[0].public_key)) == 32
        assert stat.S_IMODE(place.path.stat().st_mode) == 0o700
        secret_files = [
            place.token,
            place.jwt_secret,
            place.signing_key,
            place.probe_token,
            place.cluster_secret,
            place.name_key,
            place.reset_secret,
            place.server_key("gateway"),
        ]
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in secret_files)
    assert alive([process.pid for process in record.processes]) == []
    with pytest.raises(NotRunning, match="muster up"):
        instance.find(place)


async def test_secrets_stay_and_epochs_grow_from_start_to_start(tmp_path: Path) -> None:
    config = settings(tmp_path)
    async with made(config) as supervisor:
        first = supervisor.record()
        token = supervisor.folder.token.read_bytes()
    async with made(config) as supervisor:
        second = supervisor.record()
        assert supervisor.folder.token.read_bytes() == token
    assert first.gateways[0].public_key == second.gateways[0].public_key
    for before, after in zip(first.processes, second.processes, strict=True):
        assert after.epoch > before.epoch


async def test_a_node_keeps_its_key_and_its_epochs_when_others_come_and_go(tmp_path: Path) -> None:
    records: list[Record] = []
    for count in (1, 3, 1, 2):
        async with made(
            settings(tmp_path, up__gateways=count, up__proxies=count, up__brokers=f"1x{count}")
        ) as supervisor:
            records.append(supervisor.record())
            names = {process.node: process.name for process in records[-1].processes}
            assert len(records[-1].gateways) == len(records[-1].proxies) == count
            assert len(set(names.values())) == len(records[-1].processes) == 3 * count + 1
            assert {end.node for end in records[-1].gateways} == {3 + 4 * index for index in range(count)}
    keys: dict[int, str] = {}
    epochs: dict[int, int] = {}
    for record in records:
        for end in (*record.gateways, *record.proxies):
            assert keys.setdefault(end.node, end.public_key) == end.public_key
        for process in record.processes:
            assert process.epoch > epochs.get(process.node, 0)
            epochs[process.node] = process.epoch
    assert len(set(keys.values())) == 6, "each has a key of its own"


async def test_a_port_that_is_named_is_the_first_of_several(tmp_path: Path) -> None:
    with Ports() as ports:
        first = next(port for port in range(30_000, 32_000, 4) if _free(ports, port))
    bind = f"127.0.0.1:{first}"
    async with made(
        settings(tmp_path, up__gateways=2, gateway__bind=bind, up__brokers="2", broker__bind=f"127.0.0.1:{first + 2}")
    ) as supervisor:
        record = supervisor.record()
    assert [end.port for end in record.gateways] == [first, first + 1]
    assert [process.link[1] for process in record.processes if process.role == "broker"] == [first + 2, first + 3]
    with pytest.raises(
        UserError, match=rf"proxy.bind: 127\.0\.0\.1:{first + 1} is the address of gateway.bind already"
    ):
        async with made(settings(tmp_path, up__gateways=2, gateway__bind=bind, proxy__bind=f"127.0.0.1:{first + 1}")):
            pass


def _free(ports: Ports, first: int) -> bool:
    try:
        return all(ports.udp("test", "127.0.0.1", first + more) for more in range(4))
    except UserError:
        return False


async def test_each_node_logs_to_a_file_of_its_own(tmp_path: Path) -> None:
    config = settings(tmp_path, up__gateways=2)
    async with Supervisor(config, LOG, command=FAKE, logs_to_files=True) as supervisor:
        nodes = {process.name: process.node for process in supervisor.record().processes}
    for name, node in nodes.items():
        lines = supervisor.folder.log(name).read_text().splitlines()
        assert {json.loads(line)["node"] for line in lines} == {node}
    assert {file.name for file in supervisor.folder.logs.iterdir()} == {f"{name}.log" for name in nodes}


@pytest.mark.parametrize("role", ["router", "broker", "gateway", "proxy"])
async def test_a_killed_role_is_back_where_it_was_with_a_greater_epoch(tmp_path: Path, role: str) -> None:
    config = settings(tmp_path)
    place = instance.folder(config)
    with capture_logs() as logged:
        async with made(config):
            before = _process(place, role)
            strikes.kill(before.pid)
            await until(lambda: (found := _process(place, role)).ready and found.pid not in (0, before.pid), PATIENT_S)
            after = _process(place, role)
    ended = [(line["child"], line["restart_in_s"]) for line in logged if line["event"] == "ended by itself"]
    assert ended == [(before.name, 0.0)], "it waits for nothing"
    assert (after.link, after.admin) == (before.link, before.admin)
    assert after.epoch > before.epoch
    assert after.restarts == 1


def _process(place: Folder, role: str) -> instance.Process:
    return next(process for process in instance.find(place).processes if process.role == role)


async def test_roles_are_kept_up_while_their_file_cannot_be_written(tmp_path: Path) -> None:
    config = settings(tmp_path)
    place = instance.folder(config)
    async with made(config) as supervisor:
        before = supervisor.record().processes[0]
        place.record.unlink()
        place.record.mkdir()
        strikes.kill(before.pid)
        await until(lambda: (now := supervisor.record().processes[0]).ready and now.pid not in (0, before.pid))
        place.record.rmdir()
        await until(place.record.is_file)
        assert instance.find(place) == supervisor.record()


async def test_an_epoch_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    config = settings(tmp_path)
    place = instance.folder(config)
    instance.prepare(place)
    (place.epochs / "node-2").write_text("what?")
    async with asyncio.timeout(PATIENT_S):
        with pytest.raises(UserError, match=r"broker cannot start: .*node-2: cannot read the last epoch"):
            async with made(config):
                pass


async def test_who_is_cancelled_while_an_instance_ends_lets_it_end(tmp_path: Path) -> None:
    supervisor = made(settings(tmp_path))
    ending = asyncio.Event()

    async def up() -> None:
        async with supervisor:
            strikes.stop(supervisor.record().processes[-1].pid)
            ending.set()

    running = asyncio.create_task(up())
    await ending.wait()
    processes = supervisor.record().processes
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0)
    os.kill(processes[-1].pid, signal.SIGCONT)
    await running
    assert not alive([process.pid for process in processes])
    assert not supervisor.folder.record.exists()
    assert not (supervisor.folder.path / "requests.sock").exists()


async def test_a_second_instance_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    config = settings(tmp_path)
    async with made(config):
        with pytest.raises(UserError, match="already running") as caught:
            async with made(config):
                pass
        assert caught.value.exit_code == 1
        assert instance.find(instance.folder(config)), "the refused one takes nothing away"


async def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError, match=f"gateway.bind: {address} is in use"):
            async with made(settings(tmp_path, gateway__bind=address)):
                pass


async def test_a_role_that_cannot_start_says_why(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("too short")
    with pytest.raises(UserError, match=r"cannot start: .*secret: is not hex"):
        async with made(settings(tmp_path, cluster__secret_file=str(secret))):
            pass


async def test_a_system_that_cannot_start_keeps_no_other_one_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    users = tmp_path / "users"
    users.write_text("no password\n")
    config = settings(tmp_path, systems__enabled="likes", likes__users_file=str(users))
    async with Supervisor(config, LOG) as supervisor:
        told = {process.role: process for process in supervisor.record().processes}
        assert all(told[role].ready for role in ROLES if role in told and role != "likes")
        assert not told["likes"].ready
        assert "expected USER:PASSWORD" in str(told["likes"].waits)
        async with muster.connect(instance.folder(config).path) as client:
            await client.publish("lobby", b"x")
        users.write_text("shop:secret\n")
        await until(lambda: all(process.ready for process in supervisor.record().processes))
        assert not any(process.waits for process in supervisor.record().processes)


async def test_a_taken_port_of_a_system_keeps_no_other_one_back_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.05)
    taken = socket.socket()
    with taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = settings(tmp_path, systems__enabled="likes", likes__bind=address)
        supervisor = Supervisor(config, LOG)
        await supervisor.__aenter__()
    try:
        told = {process.role: process for process in supervisor.record().processes}
        assert all(told[role].ready for role in ROLES if role in told and role != "likes")
        assert str(told["likes"].waits).startswith(f"likes.bind: {address} is in use by another process")
        await until(lambda: all(process.ready for process in supervisor.record().processes))
        assert supervisor.record().processes[-1].waits is UNSET
    finally:
        await supervisor.__aexit__(None, None, None)


async def test_a_missing_program_keeps_back_its_system_alone_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (module, programs):
        monkeypatch.setattr(where, "AGAIN_S", 0.3)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setattr(programs, "FOLDERS", ())
    config = settings(tmp_path, systems__enabled="presence", presence__sites=1, registry__url="embedded")
    async with Supervisor(config, LOG) as supervisor:
        record = supervisor.record()
        told = {process.role: process for process in record.processes}
        assert all(told[role].ready for role in ROLES if role in told and system_of(role) == "rooms")
        assert record.programs
        (program,) = record.programs
        assert not program.ready
        assert "is not installed" in str(program.waits)
        waiting = {role for role, process in told.items() if "is not installed" in str(process.waits)}
        assert waiting
        assert {system_of(role) for role in waiting} == {"presence"}
        monkeypatch.setenv("PATH", path)
        await until(lambda: all(each.ready for each in supervisor.record().processes if each.role in waiting))
        beside = supervisor.record().programs
        assert beside
        (program,) = beside
        assert program.ready
        assert program.waits is UNSET


@pytest.mark.parametrize("processes", ["apart", "first"])
async def test_a_role_that_only_dies_ends_the_start_soon(tmp_path: Path, processes: str) -> None:
    config = settings(tmp_path, up__processes=processes)
    supervisor = Supervisor(config, LOG, command=(sys.executable, "-c", DIES))
    async with asyncio.timeout(PATIENT_S):
        with pytest.raises(UserError, match="died 3 times before it was ready"):
            async with supervisor:
                pass
    assert not supervisor.folder.record.exists()


async def test_children_die_with_a_killed_supervisor_and_the_stale_file_is_seen(tmp_path: Path) -> None:
    place = Folder(tmp_path / "i")
    with subprocess.Popen(  # noqa: ASYNC220 - its line is read in a thread
        [sys.executable, "-c", RUN, str(place.path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as supervisor:
        assert supervisor.stdout is not None
        assert await asyncio.to_thread(supervisor.stdout.readline) == "up\n"
        record: Record = instance.find(place)
        strikes.kill(supervisor.pid)
    await until(lambda: not alive([process.pid for process in record.processes]))
    with pytest.raises(NotRunning, match="died"):
        instance.find(place)
    async with made(settings(tmp_path)):
        assert instance.find(place).pid == os.getpid()


async def test_the_folder_of_another_user_or_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "i").symlink_to(tmp_path / "real")
    with pytest.raises(UserError, match=r"instance\.dir"):
        async with made(settings(tmp_path)):
            pass


async def test_a_default_folder_that_somebody_else_made_is_no_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    default = instance.folder(Config())
    assert default.path == tmp_path / "muster"
    with pytest.raises(NotRunning):
        instance.find(default)
    async with muster.testing.instance() as address:
        instance.prepare(default)
        default.token.write_bytes(address.token)
        instance.write(default, record_of(address, default))
        async with sdk.connect(default) as client:
            await client.publish("r", b"x")
        monkeypatch.setattr(os, "getuid", lambda: 4_294_967_294)
        with pytest.raises(ConfigError, match="belongs to another user or is a link"):
            async with sdk.connect(default):
                pass
        with pytest.raises(ConfigError, match="belongs to another user or is a link"):
            specs.reader(Config(), "embedded")
        assert instance.find(Folder(default.path)), "who names it means it"


def record_of(address: muster.Address, place: Folder) -> Record:
    """Of an instance in this process."""

    def ends(known: Sequence[tuple[str, int, str]]) -> list[Endpoint]:
        return [Endpoint(node=3, host=host, port=port, public_key=key) for host, port, key in known]

    return Record(
        name="mine",
        version="1",
        pid=os.getpid(),
        started=start_time(os.getpid()) or 0,
        token_file=str(place.token),
        gateways=ends(address.gateways),
        proxies=ends(address.proxies),
        processes=[],
        faults=False,
    )


def test_a_record_of_another_pid_namespace_counts_while_the_folder_is_locked(tmp_path: Path) -> None:
    place = Folder(tmp_path / "i")
    instance.prepare(place)
    address = muster.Address((), (), b"")
    foreign = {"pid": 1 << 22, "started": 1, "pid_namespace": "pid:[1]"}
    instance.write(place, msgspec.structs.replace(record_of(address, place), **foreign))
    with instance.lock(place):
        assert instance.find(place).pid == 1 << 22
    with pytest.raises(NotRunning, match="died"):
        instance.find(place)


def test_the_supervisor_says_in_which_pid_namespace_it_lives(tmp_path: Path) -> None:
    config = load(None, {}, {"instance.dir": (str(tmp_path / "i"), "flag")}).config
    supervisor = made(config)
    instance.prepare(supervisor.folder, [seat.name for seat in seats(config)])
    supervisor._choose(supervisor._roster.seats)
    assert supervisor.record().pid_namespace == os.readlink("/proc/self/ns/pid")


def test_every_link_of_every_node_gets_its_rule_once_and_client_links_both_directions(tmp_path: Path) -> None:
    file = tmp_path / "muster.toml"
    file.write_text(
        '[up]\ngateways = 2\nbrokers = "2x2"\nrouters = "2x1"\nproxies = 3\n'
        '[faults]\nloss = 0.1\nburst = 4\n[faults.links."gateway->client"]\nloss = 0.5\nburst = 1.5\n'
    )
    config = load(file, {}, {"instance.dir": (str(tmp_path / "i"), "flag")}).config
    supervisor = made(config)
    instance.prepare(supervisor.folder, [seat.name for seat in seats(config)])
    supervisor._choose(supervisor._roster.seats)
    rules = {role: fault_rules(role, config.faults, supervisor.snapshot) for role in ROLES}
    links = {
        role: {(node.host, node.link_port) for node in supervisor.snapshot.nodes if f"{role}->{node.role}" in LINKS}
        for role in ROLES
    }
    for role in ROLES:
        peers = [rule[1] for rule in rules[role] if rule[1] is not None]
        assert len(peers) == len(set(peers))
        assert set(peers) == links[role]
    rooms, edges, presence = [2 + 4 + 2, 2 + 2 + 3, 2 + 4, 4], [2 + 4], [2, 2, 2 + 3]
    assert [len(links[role]) for role in ROLES] == rooms + edges + presence
    clients = [(rule[0], rule[2], rule[-1]) for rule in rules["gateway"] if rule[1] is None]
    assert clients == [("out", 0.5, 1.5), ("in", 0.1, 4)]
    assert [(rule[0], rule[2]) for rule in rules["router"] if rule[1] is None] == []


async def test_a_record_that_cannot_be_written_is_said_once_and_so_is_that_it_can_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, left = made(settings(tmp_path)), [True, False, False, False]

    def write(place: Folder, record: object) -> None:
        if not left.pop():
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(supervisor, "record", lambda: None)
    monkeypatch.setattr("muster_server.control.cluster.supervisor.instance.write", write)
    monkeypatch.setattr("muster_server.control.cluster.supervisor.WRITE_AGAIN_S", 0.01)
    with capture_logs() as logged:
        supervisor._write_record()
        await until(lambda: not left)
    assert [line["event"] for line in logged] == ["cannot be written", "written again"]


async def test_an_instance_has_the_numbers_of_one_in_its_folder_whose_name_begins_with_its_own(tmp_path: Path) -> None:
    supervisor, opened = made(settings(tmp_path, instance__name="muster")), Memory().tree()
    before = {f"muster-{seat.name}": seat.node for seat in seats(configured(brokers="2x2", gateways=3))}
    before |= {"muster-router-9": 37, "elsewhere": FIRST_NUMBERS + 9, "muster-elsewhere": FIRST_NUMBERS + 10}
    others = {"muster-eu-broker": 2, "muster-eu-gateway-9": 39, "muster-eu-router": 1_001, "other-proxy": 4}
    async with Directory(opened, LOG) as directory:
        for name, number in (before | others).items():
            await opened.create(f"/pubsub/ids/{name}", encode(Identity(number, 1)))
        await supervisor._free_numbers(directory, opened)
        assert set(await opened.children("/pubsub/ids")) == set(before)
