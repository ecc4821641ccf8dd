"""Judgements on a kernel's figures of UDP."""

import pytest

from muster_server.control.doctor.finding import Level
from muster_server.control.doctor.network import (
    Offload,
    backlog,
    buffers,
    ipv6,
    offload,
    ports,
    registry,
    registry_access,
    udp_errors,
    udp_now,
    udp_sent,
    wildcards,
)

NAMES = "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors"


def snmp(*counts: int) -> str:
    words = " ".join(map(str, counts))
    return f"Tcp: RtoAlgorithm\nTcp: 1\nUdp: {NAMES}\nUdp: {words}\nUdpLite: InDatagrams\nUdpLite: 9\n"


def snmp6(**counts: int) -> str:
    return "Ip6InReceives 5\n" + "".join(f"Udp6{name}\t{count}\n" for name, count in counts.items())


def test_a_smaller_buffer_than_asked_comes_with_the_line_that_allows_it() -> None:
    assert buffers("receive", 4 << 20, 4 << 20).level == "ok"
    short = buffers("receive", 4 << 20, 212_992)
    assert (short.level, short.text) == (
        "warn",
        "sockets request 4 MiB but get 208 KiB: bursts cause losses and repairs",
    )
    assert short.mend.startswith("sysctl -w net.core.rmem_max=8388608,")
    assert buffers("send", 64 << 20, 0).mend.startswith("sysctl -w net.core.wmem_max=67108864,")


def test_packets_that_met_a_full_queue_are_counted_over_all_cores() -> None:
    assert backlog("000003e8 00000000 0\n000003e8 00000000 0\n", "1000\n").level == "ok"
    full = backlog("000f4240 00000001 0\n0000c350 00000fff 0\n", "1000\n")
    assert full.level == "warn"
    assert full.text.startswith("4,096 of 1,054,096 packets ")
    assert full.mend.startswith("sysctl -w net.core.netdev_max_backlog=4000,")


def test_few_losses_are_no_matter_and_many_are() -> None:
    (quiet,) = udp_errors(snmp(1_000_000, 0, 10, 5, 10, 0, 0, 0, 0), "")
    assert (quiet.level, quiet.text[:15]) == ("ok", "10 of 1,000,010")
    (full,) = udp_errors(snmp(900, 0, 100, 5, 100, 0, 0, 0, 0), snmp6(InDatagrams=1000, InErrors=0, RcvbufErrors=0))
    assert (full.level, full.text[:12]) == ("warn", "100 of 2,000")
    assert "ss -uanm" in full.mend


def test_losses_of_ipv6_count_too_and_damage_and_want_of_memory_are_told_apart() -> None:
    found = udp_errors(
        snmp(100, 0, 0, 5, 0, 0, 0, 0, 0), snmp6(InDatagrams=100, InErrors=7, RcvbufErrors=4, MemErrors=2)
    )
    assert [finding.level for finding in found] == ["warn"] * 3
    assert [finding.text[:8] for finding in found] == ["4 of 207", "3 of 207", "2 datagr"]


def test_losses_of_these_seconds_are_told_from_those_since_boot() -> None:
    before = snmp(1_000_000, 0, 9_000, 5_000, 9_000, 70, 0, 0, 0), snmp6(OutDatagrams=40)
    quiet = udp_now(before, (snmp(1_000_400, 0, 9_000, 5_000, 9_000, 70, 0, 0, 0), snmp6(OutDatagrams=140)), 1.5)
    assert (quiet.level, quiet.mend) == ("ok", "")
    assert quiet.text == "0 of 400 received datagrams, and 0 of 100 sends, were lost within these 1.5 s"
    full = udp_now(before, (snmp(1_000_090, 0, 9_010, 5_050, 9_010, 120, 0, 0, 0), snmp6(OutDatagrams=40)), 1.5)
    assert full.level == "warn"
    assert full.text.startswith("10 of 100 received datagrams, and 50 of 100 sends, were lost")
    assert udp_now(("", ""), ("", ""), 1.5).level == "ok"


def test_damage_alone_is_no_full_buffer() -> None:
    found = udp_errors(snmp(1000, 0, 50, 5, 0, 0, 50, 0, 0), "")
    assert [(finding.level, finding.text[:11]) for finding in found] == [("ok", "0 of 1,050 "), ("warn", "50 of 1,050")]


def test_what_met_a_full_queue_as_it_left_is_counted_over_both_families() -> None:
    few = udp_sent(snmp(5, 0, 5, 999_900, 5, 60, 0, 0, 0), snmp6(OutDatagrams=40, SndbufErrors=0))
    assert (few.level, few.mend, few.text[:15]) == ("ok", "", "60 of 1,000,000")
    full = udp_sent(snmp(9, 0, 0, 900, 0, 46, 0, 0, 0), snmp6(OutDatagrams=4, SndbufErrors=50))
    assert (full.level, full.text[:12]) == ("warn", "96 of 1,000 ")
    assert "ip link set DEVICE txqueuelen " in full.mend
    assert "sysctl -w net.core.wmem_max=8388608," in full.mend
    assert udp_sent(snmp(9, 0, 9, 900, 9, 0, 0, 0, 0), "").level == "ok"
    assert udp_sent("", "").level == "ok"


@pytest.mark.parametrize(
    ("tried", "levels"),
    [
        (Offload(True, True, 4, 4), ["ok", "ok"]),
        (Offload(False, False, 4, 4), ["warn", "warn"]),
        (Offload(True, False, 4, 4), ["ok", "warn"]),
        (Offload(True, True, 0, 4), ["fail"]),
        (Offload(False, False, 0, 4, "Operation not permitted"), ["fail"]),
    ],
)
def test_a_super_packet_that_is_refused_costs_and_one_that_is_lost_ends_it(tried: Offload, levels: list[Level]) -> None:
    assert [finding.level for finding in offload(tried)] == levels


def test_ipv6_is_missed_only_where_it_is_configured() -> None:
    assert ipv6(True, ["gateway.bind"]).level == "ok"
    assert ipv6(False, []).level == "ok"
    missed = ipv6(False, ["gateway.bind", "router.bind"])
    assert missed.level == "fail"
    assert "gateway.bind, router.bind" in missed.text


def fib_trie(*addresses: str) -> str:
    """`/proc/net/fib_trie` of a machine with these addresses: each is in it once for each of two tables."""
    leaves = "".join(f"     |-- {each}\n        /32 host LOCAL\n" for each in addresses)
    net = "     |-- 192.0.2.0\n        /24 link UNICAST\n        /24 host LOCAL\n"
    net += "     |-- 192.0.2.255\n        /32 link BROADCAST\n"
    table = f"  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.0\n        /8 host LOCAL\n{leaves}{net}"
    return f"Main:\n{table}Local:\n{table}"


def if_inet6(*addresses: str) -> str:
    """`/proc/net/if_inet6` with the address and scope (00: global) of each, beside the loopback."""
    rows = [each.partition("%") for each in (f"{'1':0>32}%10", *addresses)]
    return "".join(f"{address} 04 40 {scope} 80     eth0\n" for address, _, scope in rows)


LOOPBACKS = ("127.0.0.1", "127.0.1.1", "169.254.1.2")
ULA, OTHER_ULA, LINK_LOCAL = (
    f"{start}{'':0<26}{end}" for start, end in (("fd00", "02"), ("fd00", "03"), ("fe80", "01"))
)


def test_a_wildcard_is_told_of_where_answers_may_leave_from_another_address() -> None:
    gateway, named = {"gateway.bind": "0.0.0.0"}, {"gateway.bind": "192.0.2.2", "proxy.bind": "::1"}
    one, two = fib_trie(*LOOPBACKS, "192.0.2.2"), fib_trie(*LOOPBACKS, "192.0.2.10", "192.0.2.2")
    assert [each.level for each in wildcards(gateway, one, "")] == ["ok"]
    (fine,) = wildcards(named, two, "")
    assert (fine.level, fine.text) == ("ok", "every configured address to listen on is a single one")
    (told,) = wildcards({**gateway, "proxy.bind": "0.0.0.0", "router.bind": "192.0.2.2"}, two, "")
    assert (told.check, told.level) == ("addresses", "warn")
    assert told.text.startswith("gateway.bind, proxy.bind: any of 192.0.2.2, 192.0.2.10; ")
    assert "ip route get" in told.mend


def test_a_wildcard_of_ipv6_is_one_of_both_families() -> None:
    own = {"gateway.bind": "0.0.0.0", "proxy.bind": "::"}
    two, both = fib_trie("127.0.0.1", "192.0.2.2", "198.51.100.2"), if_inet6(f"{ULA}%00", f"{OTHER_ULA}%00")
    four, six = wildcards(own, two, both)
    assert four.text.startswith("gateway.bind, proxy.bind: any of 192.0.2.2, 198.51.100.2; ")
    assert six.text.startswith("proxy.bind: any of fd00::2, fd00::3; ")
    linked = if_inet6(f"{ULA}%00", f"{LINK_LOCAL}%20")
    assert [each.level for each in wildcards(own, fib_trie("192.0.2.2"), linked)] == ["ok"]


def test_of_many_addresses_a_few_are_named() -> None:
    many = fib_trie(*(f"192.0.2.{last}" for last in range(1, 41)))
    (told,) = wildcards({"proxy.bind": "0.0.0.0"}, many, "")
    assert "any of 192.0.2.1, 192.0.2.2, 192.0.2.3, 192.0.2.4 and 36 more; " in told.text


def test_a_port_that_the_kernel_may_give_away_can_be_reserved() -> None:
    kernels = "32768\t60999\n"
    (fine,) = ports(kernels, "\n", {"gateway.bind": range(7400, 7404)})
    assert fine.level == "ok"
    (loose,) = ports(kernels, "\n", {"gateway.bind": range(32766, 32770)})
    assert loose.level == "warn"
    assert loose.mend.startswith('sysctl -w net.ipv4.ip_local_reserved_ports="32768-32769",')
    (more,) = ports(kernels, "8080,40000-40001\n", {"proxy.bind": range(40001, 40003)})
    assert '"8080,40000-40001,40002"' in more.mend
    assert ports(kernels, "40000-40009", {"proxy.bind": range(40001, 40003)})[0].level == "ok"


def test_a_registry_fails_when_none_of_its_servers_takes_connections() -> None:
    assert registry({"a:1": "", "b:1": ""}).level == "ok"
    some = registry({"a:1": "", "b:1": "Connection refused"})
    assert (some.level, some.text) == ("warn", "1 of 2 servers accept no connection: b:1 (Connection refused)")
    assert registry({"a:1": "timed out"}).level == "fail"


@pytest.mark.parametrize(
    ("auth", "tls", "level"),
    [
        ("none", False, "warn"),
        ("none", True, "warn"),
        ("digest", False, "warn"),
        ("digest", True, "ok"),
        ("sasl", False, "ok"),
    ],
)
def test_a_registry_that_strangers_may_write_to_or_whose_password_they_hear_is_a_warning(
    auth: str, tls: bool, level: str
) -> None:
    found = registry_access(auth, tls=tls)
    assert found.level == level
    assert (found.mend != "") == (level == "warn")
