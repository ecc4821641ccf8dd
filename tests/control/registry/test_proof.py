"""Servers prove that the cluster registered them, before clients hear of them or show them a credential."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

import muster
from control.cluster.backends import Servers
from control.node.enrolment import Enrolment, proving, proving_by
from control.probes.prober import Prober, Source
from control.probes.system import Probes
from control.registry.directory import Directory
from control.registry.places import Node, Snapshot, encode
from control.registry.view import View
from muster import _core
from muster.turns import Turns
from plane.trust import probe_token, server_proof
from tests.control.players import Player, spec
from tests.fakes.memory import Memory
from tests.waiting import until

LOG = structlog.get_logger()
TOKEN = b"the shared one"
KEY, FORGED = "ab" * 32, "cd" * 32
ADDRESS = ("127.0.0.1", 7_400)

Begin = Callable[..., Awaitable[Player]]
Open = Callable[..., Awaitable[Directory]]


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_bytes(TOKEN + b"\n")
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
def begin(opened: Open, token_file: str) -> Begin:
    """Starts a node that has the shared token."""

    async def begun(number: int, role: str, client: tuple[str, int] | None = ADDRESS) -> Player:
        where: dict[str, Any] = {"client": client, "public_key": KEY if client else "", "token_file": token_file}
        told = spec(number, role, **where)
        assert told.registry is not None
        made = Enrolment(told, await opened(proves=proving(told.registry)), LOG)
        player = Player(made, await made.begin())
        player.attach()
        made.serve()
        return player

    return begun


async def forge(opened: Open, number: int, **changed: Any) -> None:
    """A gateway of somebody who can write the registry, and has no secret of the cluster."""
    directory = await opened()
    node = Node(number, "gateway", "127.0.0.1", 7_001, client=("127.0.0.1", 6_666), public_key=FORGED)
    await directory.identity(f"forged-{number}", number)
    directory.announce(f"forged-{number}", msgspec.structs.replace(node, **changed), 1)
    await directory.settled()


def keys(snapshot: Snapshot) -> dict[int, str]:
    """The nodes that clients would hear of, with their keys."""
    return {node.node: node.public_key for node in snapshot.nodes if node.client is not None}


async def test_who_has_the_shared_token_sees_proven_servers_alone(begin: Begin, opened: Open) -> None:
    gateway, proxy = await begin(3, "gateway"), await begin(4, "proxy")
    broker = await begin(2, "broker", None)
    good = server_proof(TOKEN, 3, "gateway", ADDRESS, KEY)
    await forge(opened, 7)
    await forge(opened, 11, proof="0" * 32)
    await forge(opened, 15, proof=good)  # that of another
    watching = await opened()
    await until(lambda: len(watching.snapshot.nodes) == 6)
    for player in (gateway, proxy, broker):
        await until(lambda player=player: keys(player.enrolment.snapshot) == {3: KEY, 4: KEY})  # type: ignore[misc]
    await until(lambda: len(gateway.enrolment.status()["refused"]) == 3)
    refused = gateway.enrolment.status()["refused"]
    assert all("the shared token did not register" in cause for cause in refused.values())


def test_an_entry_that_somebody_overwrites_stays_as_it_was() -> None:
    path = "gateway/one"
    true = Node(
        3, "gateway", "127.0.0.1", 7_001, client=ADDRESS, public_key=KEY,
        proof=server_proof(TOKEN, 3, "gateway", ADDRESS, KEY),
    )  # fmt: skip
    view = View(LOG, proves=proving_by(TOKEN))
    view.take({path: encode(true)}, 0.0)
    view.take({path: encode(msgspec.structs.replace(true, public_key=FORGED))}, 1.0)
    assert keys(view.snapshot) == {3: KEY}
    assert path in view.refused


def test_a_proof_is_of_one_node_role_address_and_key() -> None:
    true = Node(
        3, "gateway", "127.0.0.1", 7_001, client=ADDRESS, public_key=KEY,
        proof=server_proof(TOKEN, 3, "gateway", ADDRESS, KEY),
    )  # fmt: skip
    proves = proving_by(TOKEN)
    assert proves(true)
    others: list[Mapping[str, Any]] = [
        {"node": 7}, {"role": "proxy"}, {"client": ("127.0.0.1", 7_401)}, {"client": ("127.0.0.2", 7_400)},
        {"public_key": FORGED}, {"proof": ""}, {"client": None},
    ]  # fmt: skip
    for changed in others:
        assert not proves(msgspec.structs.replace(true, **changed)), changed
    assert not proving_by(b"another token")(true)


async def test_a_backend_shows_its_token_to_no_forged_gateway(begin: Begin, opened: Open) -> None:
    await begin(4, "proxy")
    await forge(opened, 7)
    directory = await opened(proves=proving_by(TOKEN))
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
    engine = _core.GatewayEngine(
        node=7, epoch=1, link_bind=("127.0.0.1", 0), cluster_key=(1, b"f" * 32), seed=1, recv_buffer=0, send_buffer=0,
        payload_bytes=1_200, keepalive_ms=1_000, idle_timeout_ms=5_000, faults=None, name_key=b"n" * 16,
        bind=("127.0.0.1", 0), server_key=private, reset_secret=b"r" * 32, arena_bytes=1 << 20, paced_namespaces=[],
    )  # fmt: skip
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
        public_key=bytes(_core.public_key(private)).hex(),
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
