"""`muster serve`: nodes without a supervisor find each other in a registry, end, reload and report to systemd."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog

import muster
from muster_server.control.host.addresses import address_text
from muster_server.control.host.ports import Ports
from muster_server.control.registry.server import RegistryServer
from tests import strikes
from tests.certificates import certificates
from tests.control.registry.zookeeper import ZooKeeper
from tests.faults.hosts import Hosts, Node
from tests.faults.ledger import Ledger
from tests.faults.load import came, loaded, nothing_lost
from tests.faults.test_backends import signing_keys
from tests.slowness import Slowness
from tests.waiting import PATIENT_S, until

ROOMS = [f"room-{number}" for number in range(24)]
"""So many that of two brokers both surely own some."""
RATE = 300.0
STARVED = 5.0
"""Times slower: links of such a node are closed as silent."""
NAMED = ("--registry", "embedded")
"""The commands find the configured ZooKeeper by themselves."""


def states(node: Node) -> dict[int, str]:
    """By node, in this one's map."""
    status, said = node.get("/api/v1/placement")
    return {each["node"]: each.get("state", "running") for each in said["nodes"]} if status == 200 else {}


def number(node: Node) -> tuple[int, int]:
    """Its number and epoch."""
    _, said = node.get("/api/v1/status")
    return said["node"], said["epoch"]


async def diagnosed(hosts: Hosts) -> set[tuple[str, str, str]]:
    """The findings of `muster doctor` if every node answers it: it waits for one second, which is short under load."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            _, said, _ = await hosts.asked("doctor", "--json", *NAMED)
            found = {(each["check"], each["level"], each["text"]) for each in json.loads(said)["findings"]}
            if any(finding[:2] == ("nodes", "ok") for finding in found):
                return found


async def test_nodes_find_each_other_in_zookeeper_and_a_broker_that_ends_loses_no_message(
    tmp_path: Path, zookeeper: ZooKeeper, figures: Callable[..., None]
) -> None:
    hosts, ledger = Hosts(tmp_path, f"{zookeeper.url}/production"), Ledger(ROOMS, rate=RATE)
    with hosts.running():
        first, *others = [
            hosts.start(name, name.partition("-")[0]) for name in ("broker-a", "broker-b", "router", "gateway", "proxy")
        ]
        await hosts.serve(first, *others)
        gateway = others[2]
        await until(lambda: sorted(states(gateway).values()) == ["running"] * 5, PATIENT_S)
        code, said, _ = await hosts.asked("status", "--json")
        assert (code, len(json.loads(said)["nodes"])) == (0, 5)
        async with loaded(hosts.address(), ledger):
            before, owned = number(first), [node.metrics()["messages_published"] for node in (first, others[0])]
            assert min(owned) > 0, "both own rooms"
            assert await first.end() == 0
            assert first.lines("handed over")
            assert not first.lines("not drained in time")
            await came(ledger)
            again = hosts.start("broker-a", "broker")
            await hosts.serve(again)
            assert number(again)[0] == before[0]
            assert number(again)[1] > before[1]
            await until(lambda: states(gateway).get(before[0]) == "running", PATIENT_S)
            await came(ledger)
        codes = [await node.end() for node in (*others, again)]
    figures(owned=owned, gaps=dict(ledger.gaps()))
    nothing_lost(ledger)
    assert codes == [0] * 5


async def test_a_zookeeper_that_is_wiped_while_a_node_waits_for_it_gives_all_their_numbers_back(
    tmp_path: Path, zookeeper: ZooKeeper, figures: Callable[..., None]
) -> None:
    hosts, ledger = Hosts(tmp_path, f"{zookeeper.url}/production"), Ledger(ROOMS, rate=RATE)
    names = ("broker-a", "broker-b", "router", "gateway", "proxy")
    with hosts.running():
        nodes = {name: hosts.start(name, name.partition("-")[0]) for name in names}
        await hosts.serve(*nodes.values())
        before = {name: number(node) for name, node in nodes.items()}
        late = max((name for name in names if name.startswith("broker")), key=lambda name: before[name])
        async with loaded(hosts.address(), ledger):
            await came(ledger)
            await zookeeper.stop()
            nodes[late].kill()
            nodes[late] = hosts.start(late, "broker")
            await until(lambda: "waits for the registry" in nodes[late].said(), PATIENT_S)
            await zookeeper.wipe()
            await hosts.serve(*nodes.values())
            wanted = dict.fromkeys((node for node, _ in before.values()), "running")
            await until(lambda: all(states(node) == wanted for node in nodes.values()), PATIENT_S)
            after = {name: number(node) for name, node in nodes.items()}
            await came(ledger)
    assert {name: node for name, (node, _) in after.items()} == {name: node for name, (node, _) in before.items()}
    figures(late=late, gaps=dict(ledger.gaps()))
    ledger.check()
    assert set(ledger.gaps()) <= {"ended", "slow", "owner_lost"}, "one was killed"


async def test_a_rolling_restart_of_every_role_loses_no_message(hosts: Hosts, figures: Callable[..., None]) -> None:
    ledger, nodes, restarts = Ledger(ROOMS, rate=RATE), list[Node](), dict[str, float]()
    with Ports() as ports:
        fixed = {  # clients know gateways and proxies by their addresses
            f"{role}-{letter}": {f"MUSTER_{role.upper()}__BIND": address_text(*ports.udp(role, "127.0.0.1", 0))}
            for role in ("proxy", "gateway")
            for letter in "ab"
        }
    for role in ("proxy", "broker", "gateway", "router"):
        for name in (f"{role}-a", f"{role}-b"):
            nodes.append(hosts.start(name, role, **fixed.get(name, {})))
    await hosts.serve(*nodes)

    def everybody_runs() -> bool:
        return all(sorted(states(node).values()) == ["running"] * len(nodes) for node in nodes)

    await until(everybody_runs, PATIENT_S)
    async with loaded(hosts.address(), ledger):
        for place, node in enumerate(nodes):
            began = asyncio.get_running_loop().time()
            assert await node.end() == 0
            nodes[place] = hosts.start(node.name, node.role, **fixed.get(node.name, {}))
            await hosts.serve(nodes[place])
            await until(everybody_runs, PATIENT_S)
            restarts[node.name] = round(asyncio.get_running_loop().time() - began, 3)
            await came(ledger)
    figures(restarts_s=restarts, gaps=dict(ledger.gaps()))
    nothing_lost(ledger)


async def test_partitions_begin_with_the_configuration_and_then_hold(hosts: Hosts) -> None:
    hosts.write(serve=hosts.sections["serve"] | {"broker_partitions": 2})
    nodes = [
        hosts.start("router", "router"),
        hosts.start("gateway", "gateway"),
        hosts.start("b", "broker", "--partition", "1"),
    ]
    await hosts.serve(*nodes)
    counts = {"broker/main": 2, "router": 1}
    await until(lambda: nodes[0].get("/api/v1/placement")[1]["partitions"] == counts, PATIENT_S)
    hosts.write(serve=hosts.sections["serve"] | {"broker_partitions": 1})
    code, said = await hosts.said("broker", "--name", "c", "--partition", "2")
    assert code == 1
    assert (
        said.splitlines()[-1] == "muster: registry embedded: broker/main has 2 partitions, so there is no partition 2"
    )
    late = hosts.start("late", "broker", "--partition", "0")
    await hosts.serve(late)


async def test_who_waits_for_the_registry_says_so_also_at_its_admin_port_and_ends_when_told(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "embedded")
    with hosts.running():
        node = hosts.start("router", "router")
        await until(lambda: node.lines("waits for the registry embedded"), PATIENT_S)
        host, port = node.lines("waits for the registry embedded")[0]["admin"]
        code, said, errors = await hosts.asked("status", "--node", f"{host}:{port}")
        assert (code, errors) == (1, "")
        assert "waits for the registry embedded" in said
        assert await node.end() == 0


async def test_a_wrong_file_of_the_admin_port_ends_a_node_at_once_by_one_line_also_without_the_registry(
    tmp_path: Path,
) -> None:
    """It waits for the registry by an admin port, so it needs the port's files before."""
    certificates(tmp_path)
    (tmp_path / "empty").write_text("")
    good = {"token_file": "token", "tls_cert_file": "server.pem", "tls_key_file": "server.key"}
    for key, file, said in (
        ("token_file", "empty", "is empty, which would admit every client"),
        ("tls_cert_file", "token", "cannot use"),
        ("tls_key_file", "names.key", "cannot use"),
    ):
        admin = {name: str(tmp_path / each) for name, each in (good | {key: file}).items()}
        hosts = Hosts(tmp_path, "embedded", admin=admin)
        with hosts.running():
            node = hosts.start("router", "router")
            assert await asyncio.to_thread(node.process.wait, PATIENT_S) == 1, node.said()
            assert "Traceback" not in node.said()
            last = node.said().splitlines()[-1]
            assert last.startswith("muster: "), last
            assert said in last


async def test_who_waits_for_the_registry_keeps_its_ports(tmp_path: Path) -> None:
    """Else another process takes one of them meanwhile, and the node ends when the registry comes."""
    hosts = Hosts(tmp_path, "embedded")
    with hosts.running():
        gateway = hosts.start("gateway", "gateway")
        await until(lambda: gateway.lines("waits for the registry embedded"), PATIENT_S)
        address = tuple(gateway.lines("serving clients")[0]["address"])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        async with RegistryServer(tmp_path, structlog.get_logger()):
            await hosts.serve(gateway, hosts.start("router", "router"), hosts.start("broker", "broker"))


ENDLESS = """
import asyncio, sys
from muster_server.control.cli import main as cli
from muster_server.control.cluster import daemon
from muster_server.control.node import process as node
async def serve_enrolled(spec, log, owner, *_):
    owner.watch(asyncio.Event(), asyncio.Event(), lambda _made: None)
    log.info("registered")
    await asyncio.Event().wait()
node.serve_enrolled = serve_enrolled
daemon.END_S = 0.2
sys.exit(cli.main(sys.argv[1:]))
"""


async def test_a_drain_that_does_not_end_is_ended(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "embedded")
    with hosts.running():
        node = hosts.start_anew((sys.executable, "-c", ENDLESS), "router", "router")
        await until(lambda: node.lines("registered"), PATIENT_S)
        assert await node.end() == 1
        assert node.lines("did not end in time")


async def test_who_finds_a_later_process_of_its_name_says_so_and_ends(hosts: Hosts, tmp_path: Path) -> None:
    nodes = [hosts.start(name, name) for name in ("router", "broker", "gateway")]
    await hosts.serve(*nodes)
    _, _, former = nodes
    with former.log.open() as log:
        log.read()
        later = hosts.start("gateway", "gateway", MUSTER_SERVE__DIR=str(tmp_path / "another-host"))
        assert await asyncio.to_thread(former.process.wait, PATIENT_S) == 78
        await hosts.serve(later)
        assert "muster: a later process registered as gateway, so this one has ended" in log.read()
    await until(lambda: states(nodes[0]).get(number(later)[0]) == "running", PATIENT_S)
    assert later.process.poll() is None


async def test_a_name_is_held_by_one_process(hosts: Hosts) -> None:
    node = hosts.start("router", "router")
    await until(lambda: node.lines("registered"), PATIENT_S)
    code, said = await hosts.said("router", "--name", "router")
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith(f"muster: router runs already: another process holds {hosts.path / 'nodes' / 'router'}")


# --- what operators ask ----------------------------------------------------------------------------------------------


async def test_commands_find_the_nodes_by_the_registry_and_ask_each(hosts: Hosts) -> None:
    names = ("broker-a", "router", "gateway", "proxy")
    nodes = [hosts.start(name, name.partition("-")[0]) for name in names]
    await hosts.serve(*nodes)
    await until(lambda: all(sorted(states(node).values()) == ["running"] * 4 for node in nodes), PATIENT_S)
    async with muster.connect(hosts.address()) as client, client.join("sports:final"):
        code, said, _ = await hosts.asked("rooms", "ls", "--json", *NAMED)
        rooms = [(room["name"], room["gateways"]) for room in json.loads(said)]
        assert (code, rooms) == (0, [("sports:final", ["gateway"])])
        code, said, _ = await hosts.asked("rooms", "show", "sports:final", "--json", *NAMED)
        assert (code, json.loads(said)["gateway"]["members"]) == (0, 1)
        code, said, _ = await hosts.asked("trace", "sports:final", "--message", "x", "--json", *NAMED)
        way = json.loads(said)
        assert (code, way["owner"], way["gateways"]) == (0, "broker-a", ["gateway"])
        assert [each["node"] for each in (*way["asked"], way["acknowledged"], *way["delivered"]) if each["ms"]] == [
            "proxy",
            "proxy",
            "gateway",
        ]
    code, said, _ = await hosts.asked("status", "--json", *NAMED)
    told = json.loads(said)
    assert (code, told["registry"]) == (0, "embedded")
    assert {(each["name"], each["state"], each["registered"]) for each in told["nodes"]} == {
        (name, "ready", "running") for name in names
    }
    assert {each["pid"] for each in told["nodes"]} == {node.process.pid for node in nodes}
    code, said, _ = await hosts.asked("top", "--json", *NAMED)
    assert (code, json.loads(said)["total"]["ready"]) == (0, 4)
    code, said, _ = await hosts.asked("links", "--json", *NAMED)
    ends = {(line["sender"], line["receiver"]) for line in json.loads(said)["links"] if line["up"]}
    assert {("proxy", "broker-a"), ("broker-a", "gateway"), ("gateway", "router")} <= ends
    found = await diagnosed(hosts)
    assert ("instance", "ok", f"4 nodes of muster serve {muster.__version__} in the registry embedded") in found
    assert ("nodes", "ok", "4 of 4 serve") in found


async def test_a_prober_by_itself_probes_the_nodes_of_a_registry_and_links_asks_it(hosts: Hosts) -> None:
    with Ports() as ports:
        admin = address_text(*ports.tcp("admin", "127.0.0.1"))
    hosts.write(probes={"every_ms": 100, "ask": admin})
    nodes = [hosts.start(role, role) for role in ("broker", "router", "gateway", "proxy")]
    gone = str(hosts.path / "gone")  # it has a token of its own, and trusts the public key
    alone = {"MUSTER_CLUSTER__TOKEN_FILE": gone, "MUSTER_CLUSTER__SIGNING_KEY_FILE": gone}
    alone |= {"MUSTER_CLUSTER__SIGNING_KEYS": signing_keys(hosts), "MUSTER_SERVE__ADMIN": admin}
    prober = hosts.start("prober", "prober", **alone)
    await hosts.serve(*nodes)

    async def shown(*words: str) -> list[dict[str, Any]]:
        _, said, _ = await hosts.asked("links", "--json", *words, *NAMED)
        paths: list[dict[str, Any]] = json.loads(said).get("paths", [])
        return [path for path in paths if path["seen"] > 0 and len(path["hops"]) > 1]

    async with asyncio.timeout(PATIENT_S):
        paths = await shown()
        while not any(path["hops"][1]["p50_ms"] > 0 for path in paths):  # the first few may be below what is reported
            paths = await shown()
    assert [(path["proxy"], path["broker"], path["gateway"]) for path in paths] == [("proxy", "broker", "gateway")]
    for path in (*paths, *await shown("--probe", "2")):
        ways = [(hop["asked_by"], hop["node"]) for hop in path["hops"]]
        assert ways == [("proxy", "broker"), ("broker", "gateway")]
        broker, gateway = path["hops"]
        assert broker["max_ms"] >= gateway["p50_ms"] > 0, "who asks waits for whom it asks"
    assert len(await shown("--probe", "2")) == 1
    _, said, _ = await hosts.asked("links", *NAMED)
    assert all(column in said for column in ("broker ms", "gateway ms"))
    times = {name: value for name, value in prober.metrics().items() if name.startswith("probe_path_hop_seconds{")}
    assert len(times) == 2
    assert all(times.values())
    assert await prober.end() == 0
    code, _, errors = await hosts.asked("links", *NAMED)
    assert (code, "prober does not answer" in errors) == (75, True)


async def test_a_gateway_without_the_signing_key_is_certified_by_the_words_of_its_log(hosts: Hosts) -> None:
    file = hosts.path / "gateway.json"
    own = {"MUSTER_CLUSTER__SIGNING_KEY_FILE": "", "MUSTER_CLUSTER__SIGNING_KEYS": signing_keys(hosts)}
    nodes = [hosts.start(role, role) for role in ("broker", "router", "proxy")]
    gateway = hosts.start("gateway", "gateway", MUSTER_SERVE__CERTIFICATE_FILE=str(file), **own)
    await hosts.serve(*nodes, gateway)

    def refused() -> bool:
        _, said = nodes[2].get("/api/v1/status")
        return any(path.startswith("gateway/") for path in said["registry"]["refused"])

    await until(refused, PATIENT_S)
    (line,) = gateway.lines("no valid certificate, so clients will not connect")
    words, _, target = line["mend"].removeprefix("muster ").partition(" > ")
    assert target == str(file)
    code, said, errors = await hosts.asked(*words.split())
    assert (code, errors) == (0, "")
    file.write_text(said)
    await until(lambda: not refused(), PATIENT_S)
    for wrong, text in (
        (("broker", "3", "127.0.0.1:7400"), "needs no certificate"),
        (("gateway", "3", "127.0.0.1:7400"), "needs its public key"),
        (("gateway", "3", "here", "ab" * 32), "'here' is not an IP address and port"),
    ):
        code, said, errors = await hosts.asked("cluster", "certify", *wrong)
        assert (code, said, errors.count("\n")) == (2, "", 1)
        assert text in errors


async def test_a_partition_without_a_broker_is_named_by_all_who_are_asked_and_its_paths_go_on_to_fail(
    hosts: Hosts,
) -> None:
    with Ports() as ports:
        admin = address_text(*ports.tcp("admin", "127.0.0.1"))
    probes = {"every_ms": 200, "failures": 3, "successes": 2, "ask": admin}
    changed = {"registry": {"session_ms": 2_000}, "serve": {"broker_partitions": 2}}
    hosts.write(probes=probes, **{name: hosts.sections[name] | keys for name, keys in changed.items()})
    nodes = [hosts.start(role, role) for role in ("broker", "router", "gateway", "proxy")]
    prober = hosts.start("prober", "prober", MUSTER_SERVE__ADMIN=admin)
    await hosts.serve(*nodes)
    gateway, uncovered = nodes[2], 'registry_partitions_uncovered{layer="broker/main"}'
    words = "partition 1 of broker/main has no running replica"

    async def told() -> list[object]:
        """By `cluster show`, `status`, `doctor` and a node's metrics."""
        _, shown, _ = await hosts.asked("cluster", "show", *NAMED)
        code, status, _ = await hosts.asked("status", *NAMED)
        doctor = ("partitions", "fail", words) in await diagnosed(hosts)
        due = "due: broker/main: partition 1 has no running replica" in shown
        return [due, "no growth is due" in shown, code, words in status, doctor, gateway.metrics()[uncovered]]

    def failing() -> set[int]:
        """The nodes whose paths as brokers fail."""
        return {each["path"][1] for each in prober.get("/api/v1/status")[1]["paths"] if each["failing"]}

    assert await told() == [True, False, 1, True, True, 1.0], "it never had one"
    other = hosts.start("other", "broker", "--partition", "1")
    await hosts.serve(other)
    await until(lambda: gateway.metrics()[uncovered] == 0, PATIENT_S)
    assert await told() == [False, True, 0, False, False, 0.0]
    await until(lambda: prober.get("/api/v1/status")[1]["probed"] == 2, PATIENT_S)
    dead = number(other)[0]
    other.kill()
    await until(lambda: gateway.metrics()[uncovered] == 1, PATIENT_S)
    assert dead not in states(gateway)
    assert await told() == [True, False, 1, True, True, 1.0]
    await until(lambda: failing() == {dead}, PATIENT_S)
    code, said, _ = await hosts.asked("links", "--check", "--json", *NAMED)
    down = [path["broker"] for path in json.loads(said)["paths"] if not path["up"]]
    assert (code, down) == (1, [f"node {dead}"]), "its alarm stands while its rooms have nobody"
    await hosts.serve(hosts.start("other", "broker", "--partition", "1"))
    await until(lambda: prober.get("/api/v1/status")[1]["probed"] == 2 and not failing(), PATIENT_S)


async def test_a_node_that_stands_still_and_a_role_that_is_missing_are_said(hosts: Hosts) -> None:
    nodes = [hosts.start(role, role) for role in ("broker", "router", "gateway")]
    await hosts.serve(*nodes)
    await until(lambda: sorted(states(nodes[0]).values()) == ["running"] * 3, PATIENT_S)
    strikes.stop(nodes[2].process.pid)
    code, said, errors = await hosts.asked("cluster", "show", "--json", *NAMED)
    layers = json.loads(said)["layers"]
    assert [(node["name"], node["state"], node["registered"]) for each in layers for node in each["nodes"]] == [
        ("broker", "ready", "running"),
        ("router", "ready", "running"),
        ("gateway", "no answer", "running"),
    ]
    assert layers[3]["due"] == ["proxy: no node runs: add one"]
    assert (code, errors.count("\n")) == (75, 1)
    assert errors.startswith("muster: gateway does not answer on 127.0.0.1:")


@pytest.mark.parametrize("words", [("status",), ("links",), ("rooms", "ls"), ("top", "--once"), ("cluster", "show")])
async def test_a_registry_that_has_nobody_is_one_line(hosts: Hosts, words: tuple[str, ...]) -> None:
    said = await hosts.asked(*words, *NAMED)
    assert said == (
        69,
        "",
        "muster: no instance runs here, and the registry embedded has no node; start one: muster up, or muster serve\n",
    )


async def test_an_embedded_registry_that_nobody_serves_is_an_instance_that_does_not_run(tmp_path: Path) -> None:
    code, said, errors = await Hosts(tmp_path, "embedded").asked("status")
    assert (code, said) == (69, "")
    assert errors.endswith("start one: muster up\n")


CHAT = ("--cluster", "chat")


async def test_a_replica_of_another_cluster_comes_and_goes_and_the_command_says_what_to_do_and_waits(
    hosts: Hosts,
) -> None:
    nodes = [hosts.start("router", "router"), hosts.start("gateway", "gateway")]
    nodes.append(hosts.start("chat-a", "broker", *CHAT))
    await hosts.serve(*nodes)
    await until(lambda: all(list(states(node).values()) == ["running"] * 3 for node in nodes), PATIENT_S)

    async def told(change: str, *words: str) -> asyncio.subprocess.Process:
        """A command that waits for its user to act."""
        waiting = await hosts.asking("cluster", "replica", change, "broker", "0", *words, *CHAT, "--json", *NAMED)
        assert waiting.stderr is not None
        line = (await waiting.stderr.readline()).decode()
        what = (
            "start it on its host: muster serve broker --cluster chat --partition 0 "
            if change == "add"
            else "stop it on "
        )
        assert line.startswith(f"muster: {what}"), line
        return waiting

    adding = await told("add")
    code, _, errors = await hosts.asked("cluster", "replica", "remove", "broker", "0", "chat-a", *CHAT, *NAMED)
    last = "muster: chat-a is the last running replica of partition 0 of broker/chat: add another one first\n"
    assert (code, errors) == (75, last)
    code, _, errors = await hosts.asked("cluster", "replica", "remove", "broker", "0", "router", *CHAT, *NAMED)
    assert (code, "router is not a replica of partition 0 of broker/chat, whose replicas are chat-a" in errors) == (
        1,
        True,
    )
    code, _, errors = await hosts.asked("cluster", "replica", "add", "broker", "1", *CHAT, *NAMED)
    assert (code, errors) == (1, "muster: broker/chat has no partition 1; its last one is 0\n")
    code, _, errors = await hosts.asked("cluster", "replica", "add", "broker", "0", "--cluster", "chit", *NAMED)
    assert (code, errors) == (1, "muster: there is no layer broker/chit, only broker/chat, router\n")
    assert adding.returncode is None, "it waits until somebody starts one"
    other = hosts.start("chat-b", "broker", *CHAT)
    said, _ = await adding.communicate()
    answer = json.loads(said)
    assert (answer["name"], answer["cluster"], answer["state"]) == ("chat-b", "chat", "running")
    removing = await told("remove", "chat-a")
    assert await nodes[2].end() == 0
    said, _ = await removing.communicate()
    assert [await each.wait() for each in (adding, removing)] == [0, 0]
    assert json.loads(said)["state"] == "removed"
    assert other.serves()
    other.kill()  # it stands in the registry for a while yet, and comes back as the same node
    adding = await told("add")
    other = hosts.start("chat-b", "broker", *CHAT)
    async with asyncio.timeout(PATIENT_S):
        said, _ = await adding.communicate()
    assert (json.loads(said)["name"], adding.returncode) == ("chat-b", 0)
    await hosts.serve(other)


# --- SIGHUP ----------------------------------------------------------------------------------------------------------


def catches(node: Node, number: signal.Signals) -> bool:
    """Whether the process handles a signal itself."""
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


LOADED = """
import runpy, signal, sys
class Watching:
    def find_spec(self, name, *_):
        if name == "msgspec":
            caught = signal.getsignal(signal.SIGHUP) not in (signal.SIG_DFL, signal.SIG_IGN)
            print('{"event": "msgspec is loaded", "caught": %s}' % str(caught).lower(), file=sys.stderr)
sys.meta_path.insert(0, Watching())
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a Python script and returns whether SIGHUP was caught before the slow imports."""


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.3])
async def test_sighup_while_a_node_starts_does_not_end_it_and_is_a_reload_later(hosts: Hosts, after_s: float) -> None:
    script = str(Path(sys.executable).with_name("muster"))
    node = hosts.start_anew((sys.executable, "-c", LOADED, script), "router", "router")
    await until(lambda: catches(node, signal.SIGHUP), PATIENT_S)
    await asyncio.sleep(after_s)
    node.process.send_signal(signal.SIGHUP)
    await until(lambda: node.lines("registered") or node.process.poll() is not None, PATIENT_S)
    assert node.process.poll() is None
    await until(lambda: node.lines("reloaded"), PATIENT_S)
    assert [line["caught"] for line in node.lines("msgspec is loaded")] == [True]
    assert await node.end() == 0


async def test_a_node_that_waits_for_the_registry_takes_another_secret_and_begins_with_it(tmp_path: Path) -> None:
    """It has no links yet, so the new secret need not follow the former one."""
    hosts = Hosts(tmp_path, "embedded")
    with hosts.running():
        early = hosts.start("router", "router")
        await until(lambda: early.lines("waits for the registry embedded"), PATIENT_S)
        former, cluster = hosts.path / "cluster.secret", hosts.sections["cluster"]
        (hosts.path / "next.secret").write_text("5e" * 32)
        hosts.write(cluster=cluster | {"secret_file": str(hosts.path / "next.secret"), "key_id": 2})
        line = await reloaded(early)
        assert line["in_force"] == {"cluster.secret_file": str(hosts.path / "next.secret"), "cluster.key_id": 2}
        former.unlink()
        late = hosts.start("gateway", "gateway")
        async with RegistryServer(tmp_path, structlog.get_logger()):
            await until(lambda: linked(early) and linked(late), PATIENT_S)
        assert linked(early) == linked(late) == [2]


def linked(node: Node) -> list[int]:
    """The secrets of its links."""
    status, told = node.get("/api/v1/status")
    return [link["key_id"] for link in told["links"]] if status == 200 else []


async def reloaded(node: Node, event: str = "reloaded") -> dict[str, Any]:
    """Its log's line of this event, after a SIGHUP."""
    before = len(node.lines(event))
    node.process.send_signal(signal.SIGHUP)
    await until(lambda: len(node.lines(event)) > before, PATIENT_S)
    return node.lines(event)[-1]


async def test_sighup_takes_the_level_and_names_what_needs_a_restart_and_a_bad_file_changes_nothing(
    hosts: Hosts,
) -> None:
    node = hosts.start("router", "router")
    await until(lambda: node.lines("registered"), PATIENT_S)

    same = await reloaded(node)
    assert (same["in_force"], same["needs_restart"]) == ({}, [])
    hosts.write(log={"level": "warning"}, router={"payload_bytes": 1300}, gateway={"arena_mib": 7})
    line = await reloaded(node)
    assert (line["in_force"], line["needs_restart"]) == ({"log.level": "warning"}, ["router.payload_bytes"])
    hosts.config.write_text("[log]\nlevel = 'loud'\n")
    line = await reloaded(node, "not reloaded, the old configuration stays")
    assert "log.level = 'loud': is not one of 'debug'" in line["error"]
    hosts.write(log={"level": "info"})
    line = await reloaded(node)
    assert line["in_force"] == {"log.level": "info"}
    assert line["needs_restart"] == ["router.payload_bytes"], "it is still not in force"
    assert await node.end() == 0


async def test_sighup_takes_limits_and_engine_and_prober_go_by_them(hosts: Hosts) -> None:
    probes = {"every_ms": 100, "timeout_ms": 200, "failures": 3_000}
    hosts.write(probes=probes)
    broker, *others = [hosts.start(role, role) for role in ("broker", "router", "gateway", "proxy")]
    prober, gateway = hosts.start("prober", "prober"), others[1]
    await hosts.serve(broker, *others)

    async with muster.connect(hosts.address()) as client, client.join("room"):
        hosts.write(gateway={"sessions_max": 1}, proxy={"accept_rate": 7}, links={"latency_ms": 5})
        line = await reloaded(gateway)
        assert (line["in_force"], line["needs_restart"]) == ({"gateway.sessions_max": 1}, [])
        assert (await reloaded(others[2]))["in_force"] == {"proxy.accept_rate": 7}
        with pytest.raises((muster.MusterError, TimeoutError)):
            async with asyncio.timeout(2), muster.connect(hosts.address(), proxies=[]):
                pass
        assert gateway.metrics()["dropped_hello_busy"] > 0
        await client.publish("room", b"who is there stays")
        hosts.write(gateway={"sessions_max": 10})
        await reloaded(gateway)
        async with asyncio.timeout(PATIENT_S), muster.connect(hosts.address(), proxies=[]):
            pass

    def probed(name: str) -> float:
        return prober.metrics()[name]

    await until(lambda: probed("probe_samples_seen") > 0, PATIENT_S)
    strikes.stop(broker.process.pid)
    await until(lambda: probed("probe_samples_failed") > 10, PATIENT_S)
    assert probed("probe_paths_failing") == 0
    hosts.write(probes=probes | {"failures": 2})
    assert (await reloaded(prober))["in_force"] == {"probes.failures": 2}
    await until(lambda: probed("probe_paths_failing") == 1, PATIENT_S)
    hosts.write(probes=probes | {"every_ms": 0})
    line = await reloaded(prober, "not reloaded, the old configuration stays")
    assert "probes.every_ms: missing; muster serve prober needs" in line["error"]


def weights(node: Node) -> list[int]:
    """The servers in a node's map."""
    return list(node.get("/api/v1/status")[1]["registry"]["weights"].values())


async def test_sighup_takes_no_secrets_that_cannot_follow_those_in_force(hosts: Hosts) -> None:
    node = hosts.start("gateway", "gateway")
    await until(lambda: node.lines("registered"), PATIENT_S)
    cluster, other = hosts.sections["cluster"], hosts.path / "other.secret"
    for content, changes, wrong in (
        ("no hex", {}, f"{other}: is not hex"),
        ("ab" * 31, {}, f"{other}: invalid length: 31 bytes (expected 32)"),
        ("ab" * 32, {"other_key_id": 1}, "cluster.other_key_id: 1 is also the id of cluster.secret_file"),
        ((hosts.path / "cluster.secret").read_text(), {}, f"{other} has the same secret as cluster.secret_file"),
        ("ab" * 32, {"other_secret_file": "/nowhere/secret"}, "/nowhere/secret: cannot be read"),
        ("ab" * 32, {"key_id": 3}, "cluster.key_id: new links use key 1 now; keep it"),
        ("ab" * 32, {"secret_file": str(other), "other_secret_file": ""}, "key 1 has a different secret now"),
        ("ab" * 32, {"secret_file": str(other), "key_id": 2, "other_secret_file": ""}, "key 1 now; keep it"),
    ):
        other.write_text(content)
        hosts.write(cluster=cluster | {"other_secret_file": str(other)} | changes)
        line = await reloaded(node, "not reloaded, the old configuration stays")
        assert wrong in line["error"]
    hosts.write(cluster=cluster | {"other_secret_file": str(other)}, gateway={"history_max": 5, "arena_mib": 7})
    line = await reloaded(node)
    assert line["in_force"] == {"cluster.other_secret_file": str(other), "gateway.history_max": 5}
    assert line["needs_restart"] == ["gateway.arena_mib"]
    assert (await reloaded(node))["in_force"] == {}
    other.write_text("cd" * 32)
    assert (await reloaded(node))["in_force"] == {"cluster.other_secret_file": str(other)}, "another content counts"
    assert weights(node) == [1]
    hosts.write(serve=hosts.sections["serve"] | {"weight": 0})
    assert (await reloaded(node))["in_force"] == {"serve.weight": 0}
    await until(lambda: weights(node) == [0], PATIENT_S)
    assert await node.end() == 0


async def test_the_cluster_s_secret_is_replaced_under_load_and_who_knows_the_former_alone_is_out(
    hosts: Hosts, figures: Callable[..., None]
) -> None:
    ledger, cluster, next_secret = Ledger(ROOMS, rate=RATE), hosts.sections["cluster"], hosts.path / "next.secret"
    next_secret.write_text("5e" * 32)
    roles = ("router", "router", "broker", "broker", "gateway", "proxy")
    nodes = [hosts.start(f"{role}-{place}", role) for place, role in enumerate(roles)]
    await hosts.serve(*nodes)
    await until(lambda: all(list(states(node).values()) == ["running"] * len(nodes) for node in nodes), PATIENT_S)

    def links(*of: Node) -> list[int]:
        return [link["key_id"] for node in of for link in node.get("/api/v1/status")[1]["links"]]

    slow = Slowness(node.process.pid for node in nodes)
    async with loaded(hosts.address(), ledger):
        count = len(links(*nodes))
        for former, now, accepts in (
            (1, (1, cluster["secret_file"]), (2, str(next_secret))),
            (1, (2, str(next_secret)), (1, cluster["secret_file"])),
            (2, (2, str(next_secret)), None),
        ):
            keys = {"key_id": now[0], "secret_file": now[1]}
            if accepts is not None:
                keys |= {"other_key_id": accepts[0], "other_secret_file": accepts[1]}
            hosts.write(cluster=cluster | keys)
            assert set(links(*nodes)) == {former}
            for node in nodes:
                assert (await reloaded(node))["in_force"]
                await came(ledger)
            await until(lambda key=now[0]: links(*nodes) == [key] * count, PATIENT_S)  # type: ignore[misc]
        ended = [line["detail"] for node in nodes for line in node.lines("link_down")]
        others = [why for why in ended if why != "renewed"]
        assert not others or slow.ratio() > STARVED, others  # a node that gets no processor falls silent
        assert len(ended) - len(others) in range(count - len(others), count + 1)
        late = hosts.start(
            "late", "gateway", MUSTER_CLUSTER__SECRET_FILE=cluster["secret_file"], MUSTER_CLUSTER__KEY_ID="1"
        )
        text = (
            "a node refused the handshake of this node: it has another cluster secret, or does not list this node's key"
        )
        await until(lambda: len(late.lines(text)) == 4, PATIENT_S)
        assert not late.serves()
        assert links(late) == []
        assert late.metrics()["links_refused"] == 4
        assert all(node.metrics()["link_dropped_key_unknown"] > 0 for node in nodes[:4])
        await came(ledger)
    figures(links=count, gaps=dict(ledger.gaps()))
    assert not ledger.gaps()
    nothing_lost(ledger)


# --- systemd ---------------------------------------------------------------------------------------------------------


class Listener:
    """systemd's end: a socket that takes a service's datagrams."""

    def __init__(self, address: str) -> None:
        self.said: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def heard(self, line: str) -> bool:
        """Whether this line has come so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.said += self._socket.recv(4096).decode().splitlines()
        return line in self.said

    def forget(self) -> None:
        self.heard("")
        self.said.clear()

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("abstract", [False, True])
async def test_systemd_is_told_of_start_reload_and_end_and_that_the_loop_turns(
    hosts: Hosts, tmp_path: Path, abstract: bool
) -> None:
    path = str(tmp_path / "notify")
    with contextlib.closing(Listener(f"\0{path}" if abstract else path)) as systemd:
        address = f"@{path}" if abstract else path
        node = hosts.start("router", "router", NOTIFY_SOCKET=address, WATCHDOG_USEC="200000")
        gateway = hosts.start("gateway", "gateway")
        await until(lambda: systemd.heard("READY=1"), PATIENT_S)
        assert systemd.heard("STATUS=serving")
        systemd.forget()
        await until(lambda: systemd.heard("WATCHDOG=1"), PATIENT_S)
        node.process.send_signal(signal.SIGHUP)
        await until(lambda: systemd.heard("READY=1"), PATIENT_S)
        assert systemd.said.index("RELOADING=1") < systemd.said.index("READY=1")
        assert await node.end() == 0
        assert systemd.heard("STOPPING=1")
        assert systemd.heard("STATUS=draining")
        assert gateway.serves() or gateway.process.poll() is None


async def test_who_is_killed_by_the_watchdog_writes_where_it_stood(hosts: Hosts) -> None:
    node = hosts.start("router", "router")
    await until(lambda: node.lines("registered"), PATIENT_S)
    node.process.send_signal(signal.SIGABRT)
    assert await asyncio.to_thread(node.process.wait, PATIENT_S) == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in node.said()
    assert "control/cluster/daemon.py" in node.said()


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "words", "environment", "code", "said"),
    [
        ("broker", [], {"MUSTER_REGISTRY__URL": ""}, 78, "registry.url: missing"),
        ("prober", [], {"MUSTER_PROBES__EVERY_MS": "0"}, 78, "probes.every_ms: missing; muster serve prober needs"),
        ("prober", [], {"MUSTER_PROBES__ASK": "here"}, 78, "probes.ask: 'here' is not an IP address"),
        ("broker", [], {"MUSTER_CLUSTER__SECRET_FILE": ""}, 78, "cluster.secret_file: missing; muster serve needs it"),
        ("gateway", [], {"MUSTER_CLUSTER__TOKEN_FILE": "/nowhere/token"}, 78, "/nowhere/token: cannot be read"),
        ("proxy", [], {"MUSTER_CLUSTER__NAMES_FILE": "token"}, 78, "token: is not hex"),
        ("broker", [], {"MUSTER_FAULTS__LOSS": "0.1"}, 78, "faults: only muster up injects them"),
        (
            "broker",
            [],
            {"MUSTER_SERVE__ADMIN": "0.0.0.0:7490"},
            78,
            "serve.admin: '0.0.0.0:7490' stands for all addresses",
        ),
        (
            "broker",
            [],
            {"MUSTER_SERVE__ADMIN": "192.0.2.1:7490"},
            78,
            "serve.admin: other hosts can reach 192.0.2.1; set admin.token_file",
        ),
        ("broker", [], {"MUSTER_SERVE__BROKER_PARTITIONS": "3"}, 78, "3 partitions are not a power of two"),
        ("router", [], {"MUSTER_SERVE__DIR": "/proc/nowhere"}, 1, "set serve.dir"),
        ("router", [], {"MUSTER_ROUTER__BIND": "192.0.2.1:7000"}, 1, "is not an address of this machine"),
        ("proxy", [], {"MUSTER_PROXY__BIND": "0.0.0.0:0", "MUSTER_PROXY__LINK_BIND": "[::1]:0"}, 78, "write [::]"),
        ("router", ["--name", "no name"], {}, 78, "serve.name = 'no name'"),
        ("gateway", ["--partition", "1"], {}, 2, "--partition: a gateway has no partition"),
        ("broker", ["--cluster", "no name"], {}, 78, "serve.cluster = 'no name'"),
        ("gateway", ["--cluster", "chat"], {}, 2, "--cluster: a gateway serves all clusters; leave out --cluster"),
        ("server", [], {}, 2, "'server'"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    tmp_path: Path, role: str, words: list[str], environment: dict[str, str], code: int, said: str
) -> None:
    hosts = Hosts(tmp_path, "embedded")
    (tmp_path / "token").write_text("no hex\n")
    if environment.get("MUSTER_CLUSTER__NAMES_FILE"):
        environment = {"MUSTER_CLUSTER__NAMES_FILE": str(tmp_path / "token")}
    ended, line = hosts.run(role, *words, **environment)
    assert ended == code
    assert line.count("\n") == 1, line
    assert line.startswith("muster: ")
    assert said in line


async def test_a_console_of_its_own_takes_a_link_that_is_made_on_its_machine(hosts: Hosts) -> None:
    roles = ("broker", "router", "gateway", "proxy", "console")
    await hosts.serve(*(hosts.start(f"{role}-a", role) for role in roles))

    async def login(*words: str) -> tuple[int, str, str]:
        return await hosts.asked("console", "login", "--role", "viewer", "--json", *words, *NAMED)

    code, _, why = await login("--name", "console-b")
    assert (code, "no console runs on this machine" in why) == (69, True), "it runs elsewhere, or not at all"
    code, said, why = await login("--name", "console-a")
    assert code == 0, why
    url, _, one_time = json.loads(said)["url"].partition("/#login=")
    async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
        for status in (200, 401):
            answer = await client.post("/api/v1/console/session", json={"code": one_time})
            assert answer.status_code == status, answer.text
            assert status == 401 or answer.json()["role"] == "viewer"
