"""Backends find the proxies in the registry, through the helper or the commands, and follow new ones (ROOM-15)."""

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import muster
from muster_server.control.cluster import backends
from muster_server.plane.certificate import public_half
from tests.control.registry.zookeeper import ZooKeeper
from tests.faults.hosts import Hosts
from tests.waiting import PATIENT_S


@pytest.fixture
async def hosts(tmp_path: Path, zookeeper: ZooKeeper) -> AsyncIterator[Hosts]:
    """One of each role but a proxy, by a ZooKeeper."""
    made = Hosts(tmp_path, f"{zookeeper.url}/production")
    with made.running():
        await made.serve(*(made.start(role, role) for role in ("broker", "router", "gateway")))
        yield made


def url(hosts: Hosts) -> str:
    found: str = hosts.sections["registry"]["url"]
    return found


def signing_keys(hosts: Hosts) -> str:
    """The public half of the hosts' key."""
    return public_half(bytes.fromhex((hosts.path / "signing.key").read_text()))


async def test_a_backend_publishes_by_the_proxies_that_the_registry_has_whenever_it_is_there(hosts: Hosts) -> None:
    with pytest.raises(muster.Unavailable, match=r"zk://.* has no proxy of cluster main"):
        async with backends.connect(config=hosts.config, reads=False, timeout=1.0):
            pass
    token, keys = (hosts.path / "token").read_bytes(), signing_keys(hosts)
    first = hosts.start("first", "proxy")
    await hosts.serve(first)
    with pytest.raises(muster.Unavailable, match=r"zk://.* has no (proxy of cluster main|gateway)"):
        async with backends.connect(registry=url(hosts), token=token, signing_keys="5e" * 32, timeout=1.0):
            raise AssertionError("its servers are certified by another key")
    async with (
        backends.connect(registry=url(hosts), token=token, signing_keys=keys, timeout=PATIENT_S) as reader,
        reader.join("a") as room,
    ):

        async def told(client: muster.Client, data: bytes) -> None:
            await client.publish("a", data)
            item = await anext(room)
            assert isinstance(item, muster.Message)
            assert item.data == data

        async with backends.connect(
            registry=url(hosts), token=token, signing_keys=keys, reads=False, timeout=PATIENT_S
        ) as client:
            await told(client, b"by the first")
            second = hosts.start("second", "proxy")
            await hosts.serve(second)
            first.kill()
            await told(client, b"by the second")
        third = hosts.start("third", "proxy")
        await hosts.serve(third)
        await second.end()
        async with backends.connect(config=hosts.config, reads=False, timeout=PATIENT_S) as client:
            await told(client, b"by the third")


async def test_a_backend_without_a_registry_or_a_token_is_told_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(
        muster.Unavailable, match=r"the registry zk://127\.0\.0\.1:1/none does not answer within 0\.2 s"
    ):
        async with backends.connect(registry="zk://127.0.0.1:1/none", token="x", signing_keys="5e" * 32, timeout=0.2):
            pass
    with pytest.raises(muster.Invalid, match=r"cluster\.signing_keys: missing"):
        async with backends.connect(registry="zk://127.0.0.1:1/none", token="x", timeout=0.2):
            pass
    with pytest.raises(muster.Invalid, match=r"cluster\.token_file"):
        async with backends.connect(registry="zk://127.0.0.1:1/none", timeout=0.2):
            pass
    with pytest.raises(muster.Invalid, match=r"registry\.url"):
        async with backends.connect(token="x", timeout=0.2):
            pass


async def test_the_commands_of_a_client_work_on_nodes_of_a_registry(hosts: Hosts) -> None:
    nobody = await hosts.asked("pub", "sports:final")
    assert nobody == (69, "", f"muster: the registry {url(hosts)} has no proxy of cluster main\n")
    proxy = hosts.start("proxy", "proxy")
    await hosts.serve(proxy)
    reading = await hosts.asking("sub", "sports:final", "--count", "1", "--registry", url(hosts))
    assert reading.stderr is not None
    assert (await reading.stderr.readline()).startswith(b"joined sports:final")
    for named in ((), ("--registry", url(hosts))):
        code, said, errors = await hosts.asked("members", "sports:final", "--json", *named)
        assert (code, json.loads(said or "{}").get("count"), errors) == (0, 1, "")
        code, said, errors = await hosts.asked("command", "sports:final", "half-time", *named)
        assert (code, said, errors) == (0, "delivered to 1 member\n", "")
    publishing = await hosts.asking("pub", "sports:final", "--registry", url(hosts), stdin=subprocess.PIPE)
    _, told = await publishing.communicate(b"one\n")
    assert (publishing.returncode, told) == (0, b"published 1 to sports:final\n")
    out, _ = await reading.communicate()
    assert (reading.returncode, out) == (0, b"one\n")
