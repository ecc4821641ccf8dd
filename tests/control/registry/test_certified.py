"""A key of the cluster certifies servers, before clients hear of them or show them a credential."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

import muster
from muster.turns import Turns
from muster_server import _engines
from muster_server.control.cluster.backends import Servers
from muster_server.control.node import enrolment
from muster_server.control.node.enrolment import Enrolment, judge
from muster_server.control.registry.certified import ENDED, FALSE, NONE, Certified, certificate, is_due
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.places import Node, Snapshot, encode, read_node
from muster_server.control.registry.view import View
from muster_server.plane.certificate import LIFE_S, RENEW_S, public_half
from muster_server.plane.trust import probe_token
from muster_server.systems.probes.prober import Prober, Source
from muster_server.systems.probes.system import Probes
from tests.control.players import Player, spec
from tests.fakes.memory import Memory
from tests.waiting import PATIENT_S, until

LOG = structlog.get_logger()
TOKEN = b"the shared one"
KEY, FORGED = "ab" * 32, "cd" * 32
SIGNING, OTHER = b"\x05" * 32, b"\x06" * 32
ADDRESS = ("127.0.0.1", 7_400)

Begin = Callable[..., Awaitable[Player]]
Open = Callable[..., Awaitable[Directory]]


def certified(node: Node, key: bytes = SIGNING, at: float | None = None) -> Node:
    return msgspec.structs.replace(node, certificate=certificate(key, node, time.time() if at is None else at))


TRUE = certified(Node(3, "gateway", "127.0.0.1", 7_001, client=ADDRESS, public_key=KEY))
TRUSTED = Certified([public_half(SIGNING)])


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    file = tmp_path / "signing.key"
    file.write_text(SIGNING.hex() + "\n")
    return str(file)


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Opens the registry as one process more."""
    memory = Memory()
    async with contextlib.AsyncExitStack() as stack:

        async def one(**how: Any) -> Directory:
            made = Directory(memory.tree(), LOG, spread_s=0.01, poll_s=60.0, hold_s=60.0, **how)
            return await stack.enter_async_context(made)

        yield one


@pytest.fixture
def begin(opened: Open, key_file: str) -> Begin:
    """Starts a node; a server has the key."""

    async def begun(number: int, role: str, client: tuple[str, int] | None = ADDRESS) -> Player:
        where: dict[str, Any] = {"client": client, "public_key": KEY if client else ""}
        where |= {"signing_key_file": key_file if client else "", "signing_keys": [public_half(SIGNING)]}
        told = spec(number, role, **where)
        assert told.registry is not None
        made = Enrolment(told, await opened(judge=judge(told.registry)), LOG)
        player = Player(made, await made.begin())
        player.attach()
        made.serve()
        return player

    return begun


async def forge(opened: Open, number: int, key: bytes = b"", **changed: Any) -> None:
    """A gateway of somebody who can write the registry, and has no secret of the cluster."""
    directory = await opened()
    node = Node(number, "gateway", "127.0.0.1", 7_001, client=("127.0.0.1", 6_666), public_key=FORGED)
    await directory.identity(f"forged-{number}", number)
    node = msgspec.structs.replace(node, **changed)
    directory.announce(f"forged-{number}", certified(node, key) if key else node, 1)
    await directory.settled()


def keys(snapshot: Snapshot) -> dict[int, str]:
    """The nodes that clients would hear of, with their keys."""
    return {node.node: node.public_key for node in snapshot.nodes if node.client is not None}


async def test_servers_without_the_cluster_s_certificate_are_in_no_map_that_clients_go_by(
    begin: Begin, opened: Open
) -> None:
    gateway, proxy = await begin(3, "gateway"), await begin(4, "proxy")
    broker = await begin(2, "broker", None)
    await forge(opened, 7)
    await forge(opened, 11, key=OTHER)
    await forge(opened, 15, certificate=TRUE.certificate)  # that of another
    watching = await opened()
    await until(lambda: len(watching.snapshot.nodes) == 6)
    for player in (gateway, proxy, broker):
        await until(lambda player=player: keys(player.enrolment.snapshot) == {3: KEY, 4: KEY})  # type: ignore[misc]
    await until(lambda: len(gateway.enrolment.status()["refused"]) == 3)
    refused = gateway.enrolment.status()["refused"]
    assert sorted(refused.values()) == sorted([NONE, FALSE, FALSE])


def test_an_entry_that_somebody_overwrites_stays_as_it_was() -> None:
    path = "gateway/one"
    view = View(LOG, judge=TRUSTED)
    view.take({path: encode(TRUE)}, 0.0)
    view.take({path: encode(msgspec.structs.replace(TRUE, public_key=FORGED))}, 1.0)
    assert keys(view.snapshot) == {3: KEY}
    assert path in view.refused


def test_a_certificate_is_of_one_node_role_cluster_address_and_key() -> None:
    assert TRUE.certificate is not None
    later = msgspec.structs.replace(TRUE.certificate, until=TRUE.certificate.until + 1)
    others: list[Mapping[str, Any]] = [
        {"node": 7}, {"role": "proxy"}, {"cluster": "chat"}, {"client": ("127.0.0.1", 7_401)},
        {"client": ("127.0.0.2", 7_400)}, {"public_key": FORGED}, {"certificate": later},
    ]  # fmt: skip
    assert TRUSTED.doubt(TRUE) == ""
    for changed in others:
        assert TRUSTED.doubt(msgspec.structs.replace(TRUE, **changed)) == FALSE, changed
    assert TRUSTED.doubt(msgspec.structs.replace(TRUE, epoch=9, weight=0, state="draining")) == ""
    assert Certified([public_half(OTHER)]).doubt(TRUE) == FALSE
    assert Certified([public_half(OTHER), public_half(SIGNING)]).doubt(TRUE) == "", "while one key replaces the other"


def test_the_proof_of_an_earlier_version_is_refused_by_its_name() -> None:
    """A holder of the shared token could make it, and so every gateway that a client was once sent to."""
    path = "gateway/one"
    old = msgspec.json.decode(encode(msgspec.structs.replace(TRUE, certificate=None))) | {"proof": "ab" * 16}
    view = View(LOG, judge=TRUSTED)
    view.take({path: msgspec.json.encode(old)}, 0.0)
    assert view.refused == {path: NONE}
    assert view.snapshot.nodes == ()


def test_a_certificate_that_nobody_renews_ends() -> None:
    path, now = "gateway/one", [1_000_000.0]
    view = View(LOG, hold_s=0.0, judge=Certified([public_half(SIGNING)], wall=lambda: now[0]))
    entry = encode(certified(TRUE, at=now[0]))
    view.take({path: entry}, 0.0)
    now[0] += LIFE_S
    view.take({path: entry}, 1.0)
    assert keys(view.snapshot) == {3: KEY}
    now[0] += 1
    view.take({path: entry}, 2.0)
    view.pass_time(3.0)
    assert (keys(view.snapshot), view.refused) == ({}, {path: ENDED})
    view.take({path: encode(certified(TRUE, at=now[0]))}, 4.0)
    assert keys(view.snapshot) == {3: KEY}


def test_a_renewed_certificate_is_no_other_map() -> None:
    view = View(LOG, judge=TRUSTED)
    view.take({"gateway/one": encode(TRUE)}, 0.0)
    before = view.snapshot
    assert not view.take({"gateway/one": encode(certified(TRUE, at=time.time() + 60))}, 1.0)
    assert view.snapshot is before


def test_a_certificate_is_due_before_it_ends_and_after_a_clock_went_back() -> None:
    assert is_due(msgspec.structs.replace(TRUE, certificate=None), 0.0)
    made = certified(TRUE, at=1_000_000.0)
    assert not is_due(made, 1_000_000.0 + LIFE_S - RENEW_S - 1)
    assert is_due(made, 1_000_000.0 + LIFE_S - RENEW_S)
    assert is_due(made, 1_000_000.0 - 1)


async def test_a_server_renews_its_certificate_in_the_registry(
    begin: Begin, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrolment, "CERTIFIES_S", 0.01)
    began, ahead = time.time(), [0.0]
    monkeypatch.setattr("muster_server.control.node.enrolment.time.time", lambda: began + ahead[0])
    directory = await opened()

    async def until_end() -> int:
        (entry,) = (await directory._tree.children("/pubsub/gateway")).values()
        found = read_node("gateway/r", entry.data, {}).certificate
        assert found is not None
        return found.until

    player = await begin(3, "gateway")
    await player.enrolment._directory.settled()
    first = await until_end()
    ahead[0] = LIFE_S - RENEW_S + 1.0
    async with asyncio.timeout(PATIENT_S):
        while await until_end() == first:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await until_end() == int(began + ahead[0]) + LIFE_S
    player.enrolment.detach()


async def test_a_backend_shows_its_token_to_no_forged_gateway(begin: Begin, opened: Open) -> None:
    await begin(4, "proxy")
    await forge(opened, 7)
    directory = await opened(judge=TRUSTED)
    await until(lambda: keys(directory.snapshot) == {4: KEY})
    servers = Servers(directory, "the registry", "main", TOKEN, publishes=True, reads=True)
    with pytest.raises(muster.Unavailable, match="has no gateway"):
        async with servers.client():
            raise AssertionError("there is none")
    everybody = await opened()  # as before: it would go there
    await until(lambda: 7 in keys(everybody.snapshot))
    assert Servers(everybody, "", "main", TOKEN, publishes=True, reads=True)._missing() == ""


async def test_the_prober_shows_no_shared_token_to_a_forged_gateway() -> None:
    """Found: it did, unasked, as soon as the registry named one."""
    private = b"\x07" * 32
    engine = _engines.GatewayEngine(
        {
            "node": 7,
            "epoch": 1,
            "link_bind": ("127.0.0.1", 0),
            "cluster_key": (1, b"f" * 32),
            "seed": 1,
            "recv_buffer": 0,
            "send_buffer": 0,
            "payload_bytes": 1_200,
        },
        {"bind": ("127.0.0.1", 0), "name_key": b"n" * 16, "server_key": private, "reset_secret": b"r" * 32},
        b'{"keepalive_ms": 1000, "idle_timeout_ms": 5000}',
    )
    shown: list[bytes] = []

    def on_events(events: list[Any]) -> None:
        shown.extend(event[2] for event in events if event[0] == "authenticate")

    errors: list[BaseException] = []
    turns = Turns(engine, on_events, errors.append)
    forged = Node(
        7,
        "gateway",
        "127.0.0.1",
        7_001,
        client=engine.addresses()[0],
        public_key=bytes(_engines.public_key(private)).hex(),
    )
    true = [Node(2, "broker", "127.0.0.1", 7_002), Node(4, "proxy", "127.0.0.1", 7_004, client=ADDRESS, public_key=KEY)]
    snapshot = Snapshot(1, (*true, forged))
    address = muster.Address((), (), probe_token(TOKEN))
    prober = Prober(Probes(), Source(lambda: snapshot, address, b"n" * 16), LOG)
    task = asyncio.create_task(prober.run())
    try:
        await until(lambda: shown)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        turns.close()
    assert not errors
    assert set(shown) == {probe_token(TOKEN)}
    assert TOKEN not in shown[0]
