"""Addresses of both families, and those that mean every address of the machine."""

import subprocess

import pytest

import muster
from tests.faults.conftest import Make
from tests.faults.instance import ROLES, Instance, need_ipv6
from tests.faults.test_mistakes import run
from tests.waiting import PATIENT_S


@pytest.fixture(autouse=True)
def _ipv6() -> None:
    need_ipv6()


def check_a_message_goes_through(instance: Instance) -> None:
    reader = instance.command("sub", "room", "--count", "1", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert reader.stderr is not None
    assert reader.stderr.readline() == b"joined room\n"
    assert run(instance, "pub", "room", stdin=b"line\n") == (0, "published 1 to room\n")
    assert reader.communicate(timeout=PATIENT_S) == (b"line\n", b"")


def test_everything_on_ipv6(make: Make) -> None:
    sections = {role: {"bind": "[::1]:0"} for role in ROLES}
    for role in ("gateway", "proxy"):
        sections[role]["link_bind"] = "[::1]:0"
    instance = make(**sections, admin={"host": "::1"})
    with instance.running():
        check_a_message_goes_through(instance)
        status = instance.ran("status").stdout.decode()
        assert f"[::1]:{instance.process('broker').link[1]}" in status
        assert f"http://[::1]:{instance.process('broker').admin[1]}" in status
        assert f"gateway  [::1]:{instance.record().gateways[0].port}" in instance.log.read_text()


async def test_a_wildcard_is_reached_over_the_loopback_by_clients_of_both_families(make: Make) -> None:
    instance = make(gateway={"bind": "[::]:0"}, proxy={"bind": "0.0.0.0:0"})
    with instance.running():
        gateway, proxy = instance.record().gateways[0], instance.record().proxies[0]
        assert (gateway.host, proxy.host) == ("::1", "127.0.0.1")
        check_a_message_goes_through(instance)
        for host in ("::1", "127.0.0.1"):
            gateways = [(host, gateway.port, gateway.public_key)]
            async with muster.connect(instance.folder.path, gateways=gateways) as client, client.join("room") as room:
                await client.publish("room", host.encode())
                item = await anext(room)
                assert isinstance(item, muster.Message)
                assert item.data == host.encode()
