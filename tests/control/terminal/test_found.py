"""The nodes that a command asks: one on another host's loopback is not asked, and the error says how to reach it.

And a registry that is away: a command waits no longer than a person does.
"""

import asyncio
import contextlib
import functools
import socket
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import structlog

from muster_server.control.cli import status
from muster_server.control.cluster import specs
from muster_server.control.cluster.instance import Process, Record
from muster_server.control.config.load import load
from muster_server.control.config.options import ROLES
from muster_server.control.config.zookeeper import Servers
from muster_server.control.errors import UserError
from muster_server.control.node import admin
from muster_server.control.registry import reach
from muster_server.control.registry.places import Count, Node, encode
from muster_server.control.registry.server import RegistryServer
from muster_server.control.registry.tree import Entry, NoNode, Refused, Tree, TreeError, Unavailable
from muster_server.control.registry.zookeeper import ZooKeeperTree
from muster_server.control.terminal import common, found
from muster_server.control.terminal.found import Target, reading
from muster_server.control.terminal.readings import read
from muster_server.plane.role import Role
from muster_server.plane.server import Server
from muster_server.systems.rooms.cli import ls as rooms
from muster_server.systems.rooms.cli import trace
from tests.control.command import Command
from tests.control.nodes import processes
from tests.control.registry.services import connected
from tests.control.registry.zookeeper import ZooKeeper
from tests.fakes.engine import FakeEngine
from tests.ports import free_ports
from tests.together import together
from tests.waiting import PATIENT_S

ELSEWHERE = ("192.0.2.1", 7_410)
"""No address of this machine, by RFC 5737."""


@pytest.mark.parametrize(
    ("link", "admin", "said"),
    [
        (ELSEWHERE, ("127.0.0.1", 7_490), "only on its own host, 192.0.2.1, at 127.0.0.1:7490; set serve.admin there"),
        (("2001:db8::1", 7_410), ("::1", 7_490), "only on its own host, 2001:db8::1, at [::1]:7490"),
        (ELSEWHERE, ("", 0), "has registered no admin address"),
        (("127.0.0.1", 7_410), ("127.0.0.1", 1), "does not answer on 127.0.0.1:1"),
    ],
)
def test_who_cannot_be_asked_from_here_is_one_line(link: tuple[str, int], admin: tuple[str, int], said: str) -> None:
    process = msgspec.structs.replace(processes()[0], link=link, admin=admin)
    with pytest.raises(UserError, match=f"^{process.name} ") as caught:
        common.get(process, "/api/v1/status")
    assert said in str(caught.value)
    assert caught.value.exit_code == 75


NODES = Record(
    name="muster",
    version="0",
    pid=1,
    started=1,
    token_file="",
    gateways=[],
    proxies=[],
    processes=processes(gateways=3, brokers="2x2"),
    faults=False,
)


@pytest.mark.parametrize(
    ("ask", "roles", "names"),
    [
        (lambda: status.show(Target(), as_json=False), ROLES, True),
        (lambda: rooms.show(Target(), "room", as_json=False), ROLES, True),
        (lambda: rooms.ls(Target(), 0, 10, as_json=False), {"gateway"}, True),
        (lambda: trace._known(NODES, "room", ["main"]), {"broker", "gateway"}, False),
    ],
    ids=["status", "rooms show", "rooms ls", "trace"],
)
def test_nodes_that_do_not_answer_are_waited_for_at_once_and_named_in_their_order(
    ask: Callable[[], object],
    roles: Collection[str],
    names: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, *silent = (each.name for each in NODES.processes if each.role in roles)
    all_asked = threading.Barrier(1 + len(silent))

    def get(process: Process, path: str) -> tuple[int, object]:
        all_asked.wait(PATIENT_S)
        if process.name != first:
            raise UserError(f"{process.name} does not answer", 75)
        return 404, {"state": "ready", "role": process.role, "node": process.node}

    monkeypatch.setattr(common, "get", get)
    for command in (status, rooms):
        monkeypatch.setattr(command, "once", lambda where: NODES)
    with contextlib.suppress(UserError):  # nobody has the room
        ask()
    said = capsys.readouterr().err.splitlines()
    assert said == [f"muster: {name} does not answer" for name in silent if names]


async def test_a_node_that_is_about_to_end_is_one_that_does_not_answer() -> None:
    engine = FakeEngine(link_bind=("127.0.0.1", 0))
    server = Server(Role(engine), structlog.get_logger())
    server.closed = True
    http = admin.http(admin.Admin(server, {"role": "router", "node": 1, "name": "router", "version": "0"}))
    listener = admin.listen(("127.0.0.1", 0))
    process = msgspec.structs.replace(processes()[0], admin=listener.getsockname()[:2])
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    try:
        said = await asyncio.to_thread(read, process)
    finally:
        http.end()
        await serving
        engine.close()
    assert str(said.error) == f"{process.name} is ending; try again"


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """A server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


ASKING = [
    tuple(words.split())
    for words in ("status", "links", "top --once", "cluster show", "trace room", "cluster grow broker --to 2")
]


@dataclass(frozen=True)
class Away:
    """A registry without a working server, and the result of each command that used it."""

    closed: str
    silent: str
    done: Mapping[tuple[str, ...], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory, silent: str) -> Away:
    """All commands at once: each waits as long as a person does."""
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    muster = Command(tmp_path_factory.mktemp("away") / "instance")
    ask = functools.partial(muster, MUSTER_REGISTRY__URL=f"zk://{closed},{silent}/muster")
    return Away(closed, silent, together(ask, ASKING, len(ASKING)))


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_a_registry_that_is_away_is_one_line_that_says_what_each_server_did(away: Away, words: tuple[str, ...]) -> None:
    done = away.done[words]
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == (
        f"muster: the registry zk://{away.closed},{away.silent}/muster does not answer within 3 s "
        f"({away.closed}: Connection refused, {away.silent}: accepts connections but gives no session); "
        "check ZooKeeper, and the network to it\n"
    )


async def test_a_password_that_the_registry_does_not_take_is_no_registry_that_is_away(
    tmp_path: Path, muster: Command, zookeeper: ZooKeeper
) -> None:
    password = tmp_path / "password"
    tree = ZooKeeperTree(Servers(zookeeper.hosts, zookeeper.root, digest="muster:right"))
    try:
        await connected(tree)
        await tree.create("/pubsub/broker/main/partition_num", encode(Count(1)))
        where = {
            "MUSTER_REGISTRY__URL": zookeeper.url,
            "MUSTER_REGISTRY__AUTH": "digest",
            "MUSTER_REGISTRY__USER": "muster",
            "MUSTER_REGISTRY__PASSWORD_FILE": str(password),
        }
        password.write_text("wrong")
        done = await asyncio.to_thread(functools.partial(muster, "status", **where))
        assert (done.returncode, done.stdout) == (78, "")
        assert done.stderr == (
            f"muster: the registry {zookeeper.url} refuses this client: /pubsub: NoAuthError; "
            "check registry.auth, registry.user and registry.password_file\n"
        )
        password.write_text("right")
        done = await asyncio.to_thread(functools.partial(muster, "status", **where))
        assert (done.returncode, done.stderr.count("has no node")) == (69, 1), done.stderr
    finally:
        await tree.close()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            Refused("/pubsub/ids: NoAuthError"),
            78,
            "refuses this client: /pubsub/ids: NoAuthError; check registry.auth,",
        ),
        (Unavailable("no answer within 5 s"), 75, "stopped answering: no answer within 5 s; try again"),
        (NoNode("/pubsub"), 75, "stopped answering: /pubsub; try again"),
    ],
)
async def test_what_the_registry_says_no_to_later_is_one_line_too(
    tmp_path: Path, error: TreeError, code: int, said: str
) -> None:
    where = specs.reader(load(environment={"MUSTER_INSTANCE__DIR": str(tmp_path)}).config, "embedded")
    async with RegistryServer(tmp_path, structlog.get_logger()):
        with pytest.raises(UserError, match=r"^the registry embedded ") as caught:
            async with found.reading(where):
                raise error
    assert said in str(caught.value)
    assert caught.value.exit_code == code


async def test_nodes_whose_names_the_registry_does_not_give_now_are_called_by_role_and_number(tmp_path: Path) -> None:
    settings = load(environment={"MUSTER_INSTANCE__DIR": str(tmp_path)}).config
    async with (
        RegistryServer(tmp_path, structlog.get_logger()),
        found.reading(specs.reader(settings, "embedded")) as (tree, directory),
    ):
        await tree.create("/pubsub/gateway/r1", encode(Node(7, "gateway", "127.0.0.1", 7_007)))
        await directory.again()

        async def away(path: str) -> dict[str, Entry]:
            raise Unavailable(f"{path}: no answer within 5 s")

        tree.children = away  # type: ignore[method-assign]
        record = await found.RegisteredNodes(settings, directory, ()).record()
    assert [process.name for process in record.processes] == ["gateway-7"]


def test_an_embedded_registry_that_does_not_answer_names_its_instance(muster: Command) -> None:
    done = muster("status", "--registry", "embedded")
    assert (done.returncode, done.stdout) == (69, "")
    assert f"the muster up in {muster.folder} serves it" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_server_that_takes_no_connection_holds_up_nobody_who_has_another_one(silent: str) -> None:
    (closed,) = free_ports(1)
    tried = reach.tried(f"127.0.0.1:{closed},{silent}")
    assert tried == {f"127.0.0.1:{closed}": "Connection refused", silent: ""}
    assert reach.tried(f"192.0.2.1:2181,{silent}", one=True)[silent] == ""
    assert reach.split("[::1]:2181,zoo.example:2182") == {
        "[::1]:2181": ("::1", 2181),
        "zoo.example:2182": ("zoo.example", 2182),
    }


async def test_a_server_of_the_registry_that_was_away_at_first_is_asked_once_another_has_gone(tmp_path: Path) -> None:
    first, later = ZooKeeper(tmp_path / "first"), ZooKeeper(tmp_path / "later")
    settings = load(environment={}, flags={"registry.url": (f"zk://{later.hosts},{first.hosts}", "test")}).config
    await first.start()
    try:
        async with reading(specs.reader(settings, settings.registry.url)) as (tree, _):
            await later.start()
            await first.stop()
            async with asyncio.timeout(PATIENT_S):
                while tree.session != "connected" or not await is_answered(tree):  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(0.05)
    finally:
        first.end()
        later.end()


async def is_answered(tree: Tree) -> bool:
    """Whether some server says what is there."""
    try:
        await tree.children("/")
    except TreeError:
        return False
    return True
