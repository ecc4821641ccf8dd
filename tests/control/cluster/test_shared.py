"""Nodes that share a process under `muster up`: each is a child of its own, and the process is everyone's."""

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from muster_server.control.cluster import instance
from muster_server.control.cluster.instance import Folder
from muster_server.control.cluster.shared import SharedProcess
from muster_server.control.cluster.supervisor import Supervisor
from muster_server.control.cluster.template import Node
from muster_server.control.config.layout import groups
from muster_server.control.config.load import Loaded
from muster_server.control.errors import ConfigError
from muster_server.control.node.shared import Order
from tests import strikes
from tests.control.cluster.test_supervisor import FAKE, LOG, alive, settings
from tests.waiting import PATIENT_S, until

MACHINES = ("router", "broker", "gateway", "proxy")


def process(place: Folder, name: str) -> instance.Process:
    return next(each for each in instance.find(place).processes if each.name == name)


def words(pid: int) -> bytes:
    """The command line of a process, as `ps` shows it."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")


def tell(node: instance.Process, word: str) -> None:
    """Send a fake engine a word."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(word.encode(), node.link)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("apart", []),
        ("together", [MACHINES]),
        ("first", [MACHINES]),
        ("gateway+proxy, broker+router", [("gateway", "proxy"), ("broker", "router")]),
        ("gateway", [("gateway",)]),
    ],
)
def test_which_roles_share_a_process(text: str, found: list[tuple[str, ...]]) -> None:
    assert groups(text) == found


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "invalid role ''"),
        ("apart,together", "invalid role 'apart'"),
        ("gateway+prober", "invalid role 'prober'"),
        ("gateway+proxy,proxy", "role proxy is named twice"),
    ],
)
def test_a_role_that_has_no_process_to_share_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=f"up.processes: {wrong}"):
        settings(tmp_path, up__processes=text)


async def test_nodes_of_one_process_have_its_pid_and_its_log_and_names_of_their_own(tmp_path: Path) -> None:
    config = settings(tmp_path, up__processes="gateway+proxy", up__gateways=2)
    async with Supervisor(config, LOG, command=FAKE, logs_to_files=True) as supervisor:
        record = supervisor.record()
        pids = {each.name: each.pid for each in record.processes}
        shown = words(pids["proxy"])
    assert pids["gateway"] == pids["gateway-1"] == pids["proxy"]
    assert len({pids["gateway"], pids["broker"], pids["router"]}) == 3
    assert shown == b"muster gateway+proxy"
    logs = supervisor.folder.logs
    assert {file.name for file in logs.iterdir()} == {"gateway+proxy.log", "broker.log", "router.log"}
    lines = [json.loads(line) for line in (logs / "gateway+proxy.log").read_text().splitlines()]
    told = {(line["name"], line["role"], line["node"]) for line in lines}
    sharing = [each for each in record.processes if each.role in {"gateway", "proxy"}]
    assert told == {(f"muster-{each.name}", each.role, each.node) for each in sharing}
    assert alive(list(pids.values())) == []


async def test_the_first_of_each_role_share_a_process_and_others_have_their_own(tmp_path: Path) -> None:
    config = settings(tmp_path, up__processes="first", up__gateways=2, up__brokers="1x3")
    async with Supervisor(config, LOG, command=FAKE) as supervisor:
        pids = {each.name: each.pid for each in supervisor.record().processes}
    assert len({pids[role] for role in MACHINES}) == 1
    assert len({*pids.values()}) == 4
    assert pids.keys() == {*MACHINES, "gateway-1", "broker-1", "broker-2"}


async def test_a_killed_process_is_back_with_all_its_nodes(tmp_path: Path) -> None:
    config = settings(tmp_path, up__processes="together")
    place = instance.folder(config)
    async with Supervisor(config, LOG, command=FAKE) as supervisor:
        before = {each.name: each for each in supervisor.record().processes}
        strikes.kill(before["broker"].pid)
        await until(
            lambda: all(
                (now := process(place, name)).ready and now.pid not in (0, before[name].pid) for name in before
            ),
            PATIENT_S,
        )
        after = {each.name: each for each in supervisor.record().processes}
        assert len({each.pid for each in after.values()}) == 1
    for name, was in before.items():
        assert (after[name].restarts, after[name].link, after[name].admin) == (1, was.link, was.admin)
        assert after[name].epoch > was.epoch


async def test_a_terminated_process_drains_all_its_nodes_and_they_are_back_in_another(tmp_path: Path) -> None:
    config = settings(tmp_path, up__processes="together")
    place = instance.folder(config)
    async with Supervisor(config, LOG, command=FAKE, logs_to_files=True) as supervisor:
        before = process(place, "broker").pid
        os.kill(before, signal.SIGTERM)
        await until(
            lambda: all(each.ready and each.pid not in (0, before) for each in instance.find(place).processes),
            PATIENT_S,
        )
        assert len({each.pid for each in supervisor.record().processes}) == 1
        lines = [json.loads(line) for line in supervisor.folder.log("+".join(MACHINES)).read_text().splitlines()]
        assert {line["name"] for line in lines if line["event"] == "ended"} == {f"muster-{role}" for role in MACHINES}


async def test_a_node_that_ends_by_a_defect_starts_again_beside_the_others(tmp_path: Path) -> None:
    config = settings(tmp_path, up__processes="together")
    place = instance.folder(config)
    async with Supervisor(config, LOG, command=FAKE) as supervisor:
        before = {each.name: each for each in supervisor.record().processes}
        tell(before["broker"], "raise")
        await until(lambda: (now := process(place, "broker")).ready and now.epoch > before["broker"].epoch, PATIENT_S)
        after = {each.name: each for each in supervisor.record().processes}
    assert {each.pid for each in after.values()} == {before["broker"].pid}
    assert {name: each.restarts for name, each in after.items()} == {**dict.fromkeys(before, 0), "broker": 1}


async def test_a_reload_reaches_each_node_of_the_process(tmp_path: Path) -> None:
    config = settings(tmp_path, up__processes="together")
    async with Supervisor(config, LOG, command=FAKE, logs_to_files=True) as supervisor:
        loud = msgspec.structs.replace(config, log=msgspec.structs.replace(config.log, level="debug"))
        supervisor.reload(lambda: Loaded(loud, {}, None))
        log = supervisor.folder.log("+".join(MACHINES))

        def reloaded() -> set[str]:
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            return {line["name"] for line in lines if line["event"] == "reloaded"}

        await until(lambda: reloaded() == {f"muster-{role}" for role in MACHINES}, PATIENT_S)


async def test_nodes_that_wait_for_the_registry_end_at_once_when_they_are_asked_to(tmp_path: Path) -> None:
    with socket.socket() as nobody, capture_logs() as logged:
        nobody.bind(("127.0.0.1", 0))
        url = f"zk://127.0.0.1:{nobody.getsockname()[1]}/here"
        config = settings(tmp_path, up__processes="together", registry__url=url)
        supervisor = Supervisor(config, structlog.get_logger(), command=FAKE)
        starting = asyncio.create_task(supervisor.__aenter__())

        def wait() -> bool:
            told = [each.waits for each in supervisor.record().processes] if supervisor.folder.record.exists() else []
            return len(told) == len(MACHINES) and all(told)

        await until(wait, PATIENT_S)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert "did not end in time, killed" not in {line["event"] for line in logged}


# --- the process alone ----------------------------------------------------------------------------------------------


class Host(Node):
    """A process that only notes its orders."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.orders: list[Order] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.orders += [msgspec.json.decode(line, type=Order) for line in data.splitlines()]

    def close(self) -> None:
        self.closed = True
        self.die(0)

    def say(self, **said: object) -> None:
        self.stdout.feed_data(msgspec.json.encode(said) + b"\n")

    def die(self, code: int) -> None:
        self.returncode = code
        self.stdout.feed_eof()
        self._over.set_result(code)

    def kill(self) -> None:
        self.die(-signal.SIGKILL)


class Hosts:
    """Starts them."""

    def __init__(self) -> None:
        self.made: list[Host] = []

    async def start(self, spec: str) -> Host:
        self.made.append(Host(1_000 + len(self.made)))
        return self.made[-1]


@pytest.fixture
def hosts() -> Hosts:
    return Hosts()


async def test_each_node_hears_what_is_said_of_it_and_orders_are_its_own(hosts: Hosts) -> None:
    shared = SharedProcess(hosts.start, structlog.get_logger())
    one, two = await shared.start("one", "1.json"), await shared.start("two", "2.json")
    (host,) = hosts.made
    assert (one.pid, two.pid) == (host.pid, host.pid)
    two.send_signal(signal.SIGHUP)
    one.terminate()
    assert host.orders == [
        Order("one", "start", "1.json"),
        Order("two", "start", "2.json"),
        Order("two", "reload"),
        Order("one", "end"),
    ]
    host.say(name="two", state="ready")
    with capture_logs() as logged:
        host.stdout.feed_data(b"Traceback\n")
        host.say(name="nobody", state="ready")
        host.say(name="one", ended=78)
        assert await one.wait() == 78
    assert [line["event"] for line in logged] == ["reported an invalid state of a node"] * 2
    assert json.loads(await two.stdout.readline()) == {"state": "ready"}
    assert await one.stdout.read() == b""
    with pytest.raises(ProcessLookupError):
        one.terminate()
    await shared.close()
    assert host.closed
    assert two.returncode is not None


async def test_a_node_that_starts_while_its_process_dies_is_in_the_old_one_or_the_next_never_in_both(
    hosts: Hosts,
) -> None:
    shared = SharedProcess(hosts.start, LOG)
    for step in range(4):
        last = await shared.start("first", "1.json")
        host = hosts.made[-1]
        starting = asyncio.create_task(shared.start("second", "2.json")) if step % 2 else None
        for _ in range(step):
            await asyncio.sleep(0)
        host.die(-9)
        second = await (starting or shared.start("second", "2.json"))
        assert await last.wait() == -9
        if second.pid == host.pid:
            assert await second.wait() == -9
        else:
            assert second.returncode is None
            hosts.made[-1].say(name="second", ended=0)
            assert await second.wait() == 0
            hosts.made[-1].die(0)
            await until(lambda: shared._hearing is not None and shared._hearing.done())


async def test_a_process_that_does_not_end_without_nodes_is_killed(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster_server.control.cluster.shared.END_S", 0.01)
    monkeypatch.setattr(Host, "close", lambda self: None)
    shared = SharedProcess(hosts.start, structlog.get_logger())
    node = await shared.start("one", "1.json")
    with capture_logs() as logged:
        await shared.close()
    assert (await node.wait(), logged[0]["event"]) == (-signal.SIGKILL, "did not end in time, killed")
