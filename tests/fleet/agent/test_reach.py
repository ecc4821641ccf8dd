"""The rules of targets: what is not public is refused in every spelling, and an allow-list lets nothing else through."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest

from muster.agent import reach
from muster.agent.reach import Reach, TargetRefused, Unresolved
from muster.errors import Invalid

NOT_PUBLIC = [
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "0.0.0.1"),
    *("224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "192.0.2.1"),
    *("::1", "::", "fe80::1", "fd00::1", "ff02::1", "2001:db8::1", "fec0::1", "::127.0.0.1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::1", "2002:a00:1::"),
    *("localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1"),
]


@pytest.mark.parametrize("host", NOT_PUBLIC)
async def test_an_address_that_is_not_public_is_refused(host: str) -> None:
    with pytest.raises(
        (TargetRefused, Unresolved), match=r"is not a public address|Name or service|invalid name|Address"
    ):
        await Reach().address(host)


@pytest.mark.parametrize("host", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
async def test_a_public_address_is_a_target(host: str) -> None:
    assert (await Reach().address(host)).host == host


async def test_a_private_network_that_is_allowed_is_a_target_and_no_other() -> None:
    rules = Reach(private=["10.1.0.0/16", "::1/128"])
    assert (await rules.address("10.1.2.3")).ip == "10.1.2.3"
    assert (await rules.address("::ffff:10.1.2.3")).family == 6
    assert (await rules.address("::1")).family == 6
    for host in ("10.2.0.1", "127.0.0.1", "fd00::1"):
        with pytest.raises(TargetRefused):
            await rules.address(host)


async def test_an_allow_list_lets_nothing_else_through(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolver(monkeypatch, {"example.org": "93.184.216.34", "a.example.net": "93.184.216.35"})
    rules = Reach(only=["example.org", "*.example.net"])
    assert (await rules.address("Example.ORG.")).ip == "93.184.216.34"
    assert (await rules.address("a.example.net")).ip == "93.184.216.35"
    asked.clear()
    for host in ("example.net", "evilexample.net", "example.org.evil.com", "93.184.216.34", "www.example.org"):
        with pytest.raises(TargetRefused, match="not an allowed target of this agent"):
            await rules.address(host)
        with pytest.raises(TargetRefused, match="not an allowed target of this agent"):
            rules.named(host)
    assert not asked, "a refused name is not even asked for"


async def test_a_network_of_an_allow_list_takes_names_by_their_address(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, {"in.example": "93.184.216.34", "out.example": "8.8.8.8", "inside.example": "10.0.0.1"})
    rules = Reach(only=["93.184.216.0/24", "10.0.0.0/8"])
    assert (await rules.address("in.example")).ip == "93.184.216.34"
    for host in ("out.example", "8.8.8.8", "inside.example"):
        with pytest.raises(TargetRefused):
            await rules.address(host)


async def test_a_name_is_resolved_once_so_that_its_second_answer_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolver(monkeypatch, {"rebind.example": "93.184.216.34"})
    found = await Reach().address("rebind.example")
    assert (found.ip, asked) == ("93.184.216.34", ["rebind.example"])
    resolver(monkeypatch, {"rebind.example": "127.0.0.1"})
    with pytest.raises(TargetRefused, match=r"rebind\.example \(127\.0\.0\.1\) is not a public address"):
        await Reach().address("rebind.example")


@pytest.mark.parametrize(
    "host", ["", ".", "a b", "a\nb", "a/b", "a@b", "%31", "x" * 254, "é" * 200, "fe80::1%lo", "\0"]
)
async def test_a_name_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(TargetRefused, match="invalid name"):
        await Reach().address(host)


@pytest.mark.parametrize("network", ["10.0.0.0/33", "10.0.0.1/8", "private", "", "10.0.0.0/8 "])
def test_a_network_that_is_none_is_refused(network: str) -> None:
    with pytest.raises(Invalid, match="--private: invalid network"):
        Reach(private=[network])


def resolver(monkeypatch: pytest.MonkeyPatch, names: dict[str, str]) -> list[str]:
    """Names with one address each; returns the names that are asked for from now on."""
    asked: list[str] = []

    async def resolved(host: str, family: int) -> IPv4Address | IPv6Address:
        asked.append(host)
        if host not in names:
            raise Unresolved(f"{host}: Name or service not known")
        return ip_address(names[host])

    monkeypatch.setattr(reach, "_resolved", resolved)
    return asked
