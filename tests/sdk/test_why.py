"""A server that gives no session: the error says why, names the address and how to mend it."""

import asyncio
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

import muster
import muster.testing
from muster.why import explained
from tests.ports import free_ports
from tests.waiting import PATIENT_S

KEY = "11" * 32
ROOT = Path(__file__).parents[2]


class Other(asyncio.DatagramProtocol):
    """A server of another version: it answers hellos of its own version alone. Or of no version: it says something else."""

    def __init__(self, version: int | None) -> None:
        self._version = version

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self._version is None:
            self._transport.sendto(b"220 ready", addr)
        elif data[1] == self._version << 4 | 1:
            self._transport.sendto(data[:1] + bytes([self._version << 4 | 2]) + data[2:28] + bytes(16), addr)


async def refused(gateway: tuple[str, int, str], timeout: float = 3.0) -> muster.TimedOut:
    with pytest.raises(muster.TimedOut) as told:
        await muster.connect(gateways=[gateway], token="x", timeout=timeout)
    return told.value


async def test_a_port_where_nothing_listens_a_wrong_key_and_another_version_are_three_errors(
    address: muster.testing.Instance,
) -> None:
    (host, port, _), (closed,) = address.gateways[0], free_ports(1)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: Other(7), local_addr=(host, 0))
    other = transport.get_extra_info("sockname")[1]
    try:
        nothing, key, version = await asyncio.gather(
            *(refused((host, each, KEY), 1.5) for each in (closed, port, other))
        )
    finally:
        transport.close()
    assert (type(nothing), nothing.code, nothing.retry) == (muster.NothingListens, "nothing_listens", True)
    assert str(nothing) == (
        f"connect: nothing listens at {host}:{closed}, the address of the gateway; start it there, or correct host and port"
    )
    assert (type(key), key.code, key.retry) == (muster.WrongKey, "wrong_key", False)
    assert str(key) == (
        f"connect: the server at {host}:{port} does not have this public key; use the gateway's own key, "
        "which muster url there prints"
    )
    assert (type(version), version.code, version.retry) == (muster.OtherVersion, "other_version", False)
    assert str(version) == (
        f"connect: the server at {host}:{other} speaks version 7 of the protocol, and this library version 1; "
        "install the library of the server's release"
    )


async def test_what_says_something_else_is_no_server_and_silence_stays_a_time_out() -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: Other(None), local_addr=("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        here = "127.0.0.1", silent.getsockname()[1], KEY
        try:
            other, nobody = await asyncio.gather(refused(("127.0.0.1", port, KEY), 1.5), refused(here, 1.5))
        finally:
            transport.close()
    assert f"127.0.0.1:{port} is not a Muster server" in str(other)
    assert (type(nobody), nobody.code) == (muster.TimedOut, "timeout")
    assert str(nobody).startswith("connect: no answer in 1.5 s; the gateway does not answer")


async def test_a_server_that_comes_late_is_joined_and_not_complained_of(
    address: muster.testing.Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = asyncio.Event()

    async def asked(what: str, role: str, servers: Sequence[tuple[str, int]]) -> muster.TimedOut | None:
        try:
            return await explained(what, role, servers)
        finally:
            told.set()

    monkeypatch.setattr("muster.client.LOOK_INTO_S", 0.0)
    monkeypatch.setattr("muster.client.explained", asked)
    address.stop("gateway")
    opening = asyncio.create_task(muster.connect(address, proxies=(), timeout=PATIENT_S).__aenter__())
    await told.wait()
    address.start("gateway")
    client = await opening
    await client.close()


def test_the_version_is_that_of_the_engine_and_of_the_protocols_page() -> None:
    header = (ROOT / "core" / "transport" / "src" / "wire" / "header.rs").read_text()
    assert re.search(r"pub const VERSION: u8 = (\d+);", header)[1] == str(muster.PROTOCOL_VERSION)  # type: ignore[index]
    assert f"version ({muster.PROTOCOL_VERSION}) in the high half" in (ROOT / "docs" / "protocol.md").read_text()
