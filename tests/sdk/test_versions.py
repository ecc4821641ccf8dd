"""Two releases beside each other: a client of the release before works, and nobody gets less than both speak."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import muster
import muster.testing
from muster._core import ClientEngine
from muster_server import _engines
from tests.releases import first
from tests.waiting import PATIENT_S, until

Range = tuple[int, int]
Speak = Callable[..., None]
NAMES = {"router": "RouterEngine", "broker": "BrokerEngine", "gateway": "GatewayEngine", "proxy": "ProxyEngine"}
KINDS: dict[str, Any] = {"ClientEngine": ClientEngine} | {name: getattr(_engines, name) for name in NAMES.values()}


@pytest.fixture
def speak(monkeypatch: pytest.MonkeyPatch) -> Speak:
    """Stand in for another release: what is made from now on speaks these versions. Without a role: clients."""

    def speaking(versions: Range, *roles: muster.testing.Role) -> None:
        places = [("muster_server._engines", NAMES[role]) for role in roles] or [("muster.client", "ClientEngine")]
        for module, name in places:
            kind: Any = KINDS[name]

            def made(*given: Any, kind: Any = kind, **settings: Any) -> Any:
                engine = kind(*given, **settings)
                engine.speak(*versions)
                return engine

            monkeypatch.setattr(f"{module}.{name}", made)

    return speaking


async def read(room: muster.Room, count: int) -> list[bytes]:
    """The content of so many messages; a gap is an error."""
    found: list[bytes] = []
    async for item in room:
        assert isinstance(item, muster.Message), item
        found.append(item.data)
        if len(found) == count:
            break
    return found


@contextlib.asynccontextmanager
async def old(server: tuple[str, int, str], token: bytes) -> AsyncIterator[first.Session]:
    """A session of release 0.2.0."""
    session = await first.Session.opened(server, token)
    try:
        yield session
    finally:
        await session.close()


@pytest.mark.parametrize("servers", [(1, 1), (1, 2)])
async def test_a_client_of_the_release_before_joins_publishes_receives_resumes_and_leaves(
    speak: Speak, servers: Range
) -> None:
    speak(servers, *muster.testing.ROLES)
    async with (
        muster.testing.instance() as address,
        old(address.proxies[0], address.token) as publisher,
        muster.connect(address) as now,
        now.join("news") as room,
    ):
        assert now.protocol == 1
        async with old(address.gateways[0], address.token) as member:
            handle, _ = await member.join("news")
            await publisher.publish("news", [b"one", b"two"])
            assert await read(room, 2) == [b"one", b"two"]
            had = await member.received(2)
            assert [(each.handle, each.data) for each in had] == [(handle, b"one"), (handle, b"two")]
            positions = {had[-1].stream: had[-1].offset}
        await now.publish("news", b"while it was away")
        async with old(address.gateways[0], address.token) as member:
            handle, whole = await member.join("news", positions)
            (missed,) = await member.received(1)
            assert (missed.data, whole) == (b"while it was away", True)
            await member.leave(handle)
            await until(lambda: address.status("gateway")["gauges"]["members"] == 1)
            await now.publish("news", b"to those who stayed")
            assert await read(room, 2) == [b"while it was away", b"to those who stayed"]
            assert len(member.messages) == 1
        with pytest.raises(PermissionError):
            await first.Session.opened(address.gateways[0], b"no token")


@pytest.mark.parametrize(
    ("client", "servers", "used"), [((1, 2), (1, 1), 1), ((1, 1), (1, 2), 1), ((1, 2), (1, 2), 2), ((2, 3), (1, 2), 2)]
)
async def test_client_and_server_use_the_highest_version_that_both_speak(
    speak: Speak, client: Range, servers: Range, used: int
) -> None:
    speak(servers, *muster.testing.ROLES)
    speak(client)
    async with (
        muster.testing.instance() as address,
        muster.connect(address) as one,
        one.join("news") as room,
    ):
        await one.publish("news", b"x")
        assert await read(room, 1) == [b"x"]
        assert one.protocol == used


async def test_without_a_version_in_common_the_error_names_both_ranges_and_the_mend_at_once(speak: Speak) -> None:
    speak((2, 3), "gateway")
    async with muster.testing.instance() as address:
        host, port, _ = address.gateways[0]
        with pytest.raises(muster.OtherVersion) as told:
            await muster.connect(address, timeout=30)
        release = muster.__version__
        assert str(told.value) == (
            f"connect: the gateway at {host}:{port} speaks versions 2 to 3 of the protocol, and this library ({release}) "
            f"version 1; update the library to {release} or later"
        )
        assert (told.value.code, told.value.retry) == ("other_version", False)
        assert address.status("gateway")["counters"]["refused_version"] == 1, "one try says all"
        assert address.status("gateway")["gauges"]["sessions"] == 0


async def test_a_server_of_the_release_before_is_named_to_a_library_that_is_too_new(speak: Speak) -> None:
    speak((2, 3))
    async with muster.testing.instance() as address:
        host, port, _ = address.gateways[0]
        with pytest.raises(muster.OtherVersion, match="update the server, or use a library of its release") as told:
            await muster.connect(address, timeout=30)
        assert f"the gateway at {host}:{port} speaks version 1 of the protocol" in str(told.value)


async def test_a_client_goes_on_to_a_server_that_speaks_its_version(speak: Speak) -> None:
    token = b"one for both"
    async with contextlib.AsyncExitStack() as stack:
        near = await stack.enter_async_context(muster.testing.instance(tokens={token: 1}))
        speak((2, 3), "gateway")
        far = await stack.enter_async_context(muster.testing.instance(tokens={token: 1}))
        for gateways in ([*near.gateways, *far.gateways], [*far.gateways, *near.gateways]):
            async with muster.connect(gateways=gateways, proxies=(), token=token) as client:
                assert client.protocol == 1


async def test_a_rolling_upgrade_and_the_way_back_lose_no_client_of_either_release(speak: Speak) -> None:
    """Role by role to versions 1 to 2, and back. Links use what both ends speak."""
    async with muster.testing.instance() as address, muster.connect(address) as now, now.join("news") as room:
        token, used = address.token, list[set[int]]()
        for versions in ((1, 2), (1, 1)):
            for role in muster.testing.ROLES if versions == (1, 2) else reversed(muster.testing.ROLES):
                speak(versions, role)
                address.restart(role)
                async with old(address.proxies[0], token) as publisher, old(address.gateways[0], token) as member:
                    await member.join("news")
                    content = f"{role} speaks {versions}".encode()
                    await publisher.publish("news", [content])
                    assert (await member.received(1))[0].data == content
                    async with asyncio.timeout(PATIENT_S):
                        while True:
                            item = await anext(room)
                            if isinstance(item, muster.Message):
                                assert item.data == content
                                break
                            assert isinstance(item, muster.Gap)
                            assert item.reason in {"owner_lost", "restarted"}
                links = [link for of in muster.testing.ROLES for link in address.status(of)["links"]]
                used.append({link["protocol"] for link in links})
        assert used[0] == used[-1] == {1}
        assert used[len(muster.testing.ROLES) - 1] == {2}
        assert {1, 2} in used, "both at once on the way"
