"""Judges this system's UDP: buffers, queues, losses, super-packets, addresses and ports."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from muster_server.control.doctor.finding import Finding, fail, mib, ok, warn

ENOUGH_BYTES: Final = 8 << 20
LOST_MAX: Final = 1e-4
"""Lost datagrams are reported from this share on; members repair a smaller loss unnoticed."""
WILDCARDS: Final = ("0.0.0.0", "::")
NAMED_MAX: Final = 4
"""Limit of this machine's addresses in a line."""
GLOBAL_SCOPE: Final = "00"


@dataclass(frozen=True, slots=True)
class Offload:
    """Result of sending a super-packet of several datagrams on a loopback socket. `arrived`: number of its datagrams."""

    sent_joined: bool
    came_joined: bool
    arrived: int
    wanted: int
    error: str = ""


def buffers(kind: str, asked: int, given: int) -> Finding:
    """Judge buffers. `kind`: receive or send. `given`: the size that a socket got when it requested the configured
    maximum."""
    check = f"{kind} buffer"
    key = "net.core.rmem_max" if kind == "receive" else "net.core.wmem_max"
    if given >= asked:
        return ok(check, f"sockets get the requested {mib(asked)}")
    wanted = max(asked, ENOUGH_BYTES)
    return warn(
        check,
        f"sockets request {mib(asked)} but get {mib(given)}: bursts cause losses and repairs",
        sysctl(key, wanted),
    )


def sysctl(key: str, value: object) -> str:
    """The command that sets a value now and keeps it after a reboot."""
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return f"sysctl -w {key}={text}, and the same in a file in /etc/sysctl.d to keep it"


def backlog(softnet: str, limit: str) -> Finding:
    """Judge `/proc/net/softnet_stat`, one line per core: packets processed, and packets dropped at a full queue."""
    rows = [line.split() for line in softnet.splitlines() if line]
    taken, dropped = (sum(int(row[column], 16) for row in rows) for column in (0, 1))
    if dropped and dropped > LOST_MAX * taken:
        text = f"{dropped:,} of {taken + dropped:,} packets since boot were dropped at a full queue of {int(limit):,}"
        return warn("packet queue", text, sysctl("net.core.netdev_max_backlog", 4 * int(limit)))
    return ok("packet queue", f"{dropped:,} of {taken + dropped:,} packets since boot were dropped at a full queue")


def udp_errors(snmp: str, snmp6: str) -> list[Finding]:
    """Judge `/proc/net/snmp` and `snmp6`: losses of this network namespace's sockets since boot."""
    count = _counts(snmp, snmp6)
    came, full, bad = count["InDatagrams"], count["RcvbufErrors"], count["InErrors"]
    total = came + bad
    found = [ok("UDP received", f"{full:,} of {total:,} datagrams since boot were dropped at a full socket buffer")]
    if full > LOST_MAX * total:
        whose = "ss -uanm shows the socket (d in skmem); read faster, or raise recv_buffer_bytes and rmem_max"
        found = [
            warn(
                "UDP received",
                f"{full:,} of {total:,} datagrams since boot were dropped at a full socket buffer",
                whose,
            )
        ]
    other = bad - full
    if other > LOST_MAX * total:
        text = f"{other:,} of {total:,} datagrams since boot were damaged or dropped for lack of memory"
        found.append(warn("UDP received", text, "nstat -az 'Udp*' shows which; check the network card, or udp_mem"))
    if count["MemErrors"]:
        text = f"{count['MemErrors']:,} datagrams since boot were dropped at the limit of all UDP memory"
        found.append(
            warn("UDP memory", text, "sysctl net.ipv4.udp_mem shows the limit, in pages; raise it with sysctl -w")
        )
    return found


def udp_sent(snmp: str, snmp6: str) -> Finding:
    """The same for sent datagrams. Muster's sockets do not learn of a device's full queue, because IP_RECVERR is off."""
    count = _counts(snmp, snmp6)
    full = count["SndbufErrors"]
    total = count["OutDatagrams"] + full
    text = f"{full:,} of {total:,} sends since boot failed at a full device queue or a full send buffer"
    if full <= LOST_MAX * total:
        return ok("UDP sent", text)
    whose = "tc -s qdisc shows a device that dropped: ip link set DEVICE txqueuelen 10000, or send less"
    return warn("UDP sent", text, f"{whose}; if no device dropped, {sysctl('net.core.wmem_max', ENOUGH_BYTES)}")


def udp_now(before: tuple[str, str], after: tuple[str, str], seconds: float) -> Finding:
    """The same losses between two readings, each of `snmp` and `snmp6`: whether losses continue."""
    then, now = _counts(*before), _counts(*after)
    count = {name: max(0, now[name] - then[name]) for name in now}
    came, left = count["InDatagrams"] + count["InErrors"], count["OutDatagrams"] + count["SndbufErrors"]
    lost, unsent = count["InErrors"], count["SndbufErrors"]
    losses = f"{lost:,} of {came:,} received datagrams, and {unsent:,} of {left:,} sends"
    text = f"{losses}, were lost within these {seconds:.1f} s"
    if lost <= LOST_MAX * came and unsent <= LOST_MAX * left:
        return ok("UDP now", text)
    return warn("UDP now", text, "losses continue: see UDP received and UDP sent for the remedy")


def _counts(snmp: str, snmp6: str) -> dict[str, int]:
    names = ("InDatagrams", "InErrors", "RcvbufErrors", "MemErrors", "OutDatagrams", "SndbufErrors")
    found = dict.fromkeys(names, 0)
    rows = [line.split()[1:] for line in snmp.splitlines() if line.startswith("Udp: ")]
    if len(rows) == 2:
        four = dict(zip(rows[0], rows[1], strict=True))
        found = {name: int(four.get(name, 0)) for name in names}
    six = dict(line.split() for line in snmp6.splitlines() if line)
    return {name: found[name] + int(six.get(f"Udp6{name}", 0)) for name in names}


def offload(tried: Offload) -> list[Finding]:
    """Whether several datagrams are sent and received with one call."""
    if tried.error or tried.arrived < tried.wanted:
        why = tried.error or f"{tried.arrived} of {tried.wanted} datagrams arrived"
        return [fail("loopback", f"UDP on 127.0.0.1 does not work: {why}", "look for a firewall: nft list ruleset")]
    newer = "use a newer kernel: 4.18 sends super-packets, 5.0 receives them"
    found = [ok("UDP send offload", "several datagrams are sent with one call (UDP_SEGMENT)")]
    if not tried.sent_joined:
        found = [
            warn("UDP send offload", "the kernel refuses UDP_SEGMENT: each datagram needs a share of a call", newer)
        ]
    if tried.came_joined:
        found.append(ok("UDP receive offload", "several datagrams are received with one call (UDP_GRO)"))
    else:
        found.append(warn("UDP receive offload", "the kernel does not merge received datagrams (UDP_GRO)", newer))
    return found


def ipv6(works: bool, wanted_by: Sequence[str]) -> Finding:
    """Judge IPv6. `wanted_by`: the keys with IPv6 addresses."""
    if works:
        return ok("IPv6", "its loopback works")
    if wanted_by:
        keys = ", ".join(wanted_by)
        mend = f"{sysctl('net.ipv6.conf.all.disable_ipv6', 0)}; or use IPv4 addresses"
        return fail("IPv6", f"not available on this machine, but {keys} needs it", mend)
    return ok("IPv6", "not available on this machine, and not needed by the configuration")


def wildcards(hosts: Mapping[str, str], fib_trie: str, if_inet6: str) -> list[Finding]:
    """Judge the configured hosts, by key, with `/proc/net/fib_trie` and `if_inet6`.

    An answer leaves from the kernel's preferred address towards the client, because Muster's sockets do not set the
    source address (IP_PKTINFO)."""
    every = [key for key, host in hosts.items() if host in WILDCARDS]
    if not every:
        return [ok("addresses", "every configured address to listen on is a single one")]
    six = [key for key in every if hosts[key] == "::"]  # such a socket receives IPv4 too
    found: list[Finding] = []
    for keys, own in ((every, _ipv4_addresses(fib_trie)), (six, _ipv6_addresses(if_inet6))):
        if keys and len(own) > 1:
            more = f" and {len(own) - NAMED_MAX} more" if len(own) > NAMED_MAX else ""
            some = ", ".join(map(str, sorted(own)[:NAMED_MAX])) + more
            why = "answers may leave from an address other than the one that clients use, and clients drop those"
            text = f"{', '.join(keys)}: any of {some}; {why}"
            mend = "name one address there, or let clients use the one that ip route get CLIENT shows as src"
            found.append(warn("addresses", text, mend))
    return found or [
        ok("addresses", f"{', '.join(every)}: all addresses, but this machine has at most one of each family")
    ]


def _ipv4_addresses(fib_trie: str) -> set[ipaddress.IPv4Address]:
    """The addresses of this network namespace that other machines can reach."""
    found: set[ipaddress.IPv4Address] = set()
    leaf = ""
    for line in fib_trie.splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[1]
        elif words == ["/32", "host", "LOCAL"]:
            found.add(ipaddress.IPv4Address(leaf))
    return {each for each in found if not each.is_loopback and not each.is_link_local}


def _ipv6_addresses(if_inet6: str) -> set[ipaddress.IPv6Address]:
    rows = (line.split() for line in if_inet6.splitlines())
    return {ipaddress.IPv6Address(int(row[0], 16)) for row in rows if row[3] == GLOBAL_SCOPE}


def registry(reached: Mapping[str, str]) -> Finding:
    """Judge the configured ZooKeeper servers, each with the reason why it accepted no connection; empty if it did."""
    away = [f"{server} ({why})" for server, why in reached.items() if why]
    if not away:
        return ok("registry", f"{', '.join(reached)} take connections")
    mend = "start them, or check the network; registry.url names them"
    if len(away) == len(reached):
        return fail("registry", f"nothing answers: {', '.join(away)}", mend)
    return warn("registry", f"{len(away)} of {len(reached)} servers accept no connection: {', '.join(away)}", mend)


def registry_access(auth: str, *, tls: bool) -> Finding:
    """Whether strangers can write to ZooKeeper, or read its password on the network. `auth`: `registry.auth`."""
    user = 'set registry.auth = "digest" with registry.user and registry.password_file, on every host'
    way = "set registry.tls_ca_file, with ZooKeeper's secureClientPort in registry.url, on every host"
    if auth == "none":
        return warn("registry access", "anyone who can reach ZooKeeper can write there, and misdirect rooms", user)
    if auth == "digest" and not tls:
        return warn("registry access", "digest without TLS reveals the password to the network", way)
    return ok(
        "registry access", f"{auth}, {'by TLS' if tls else 'without TLS: the network can read and change answers'}"
    )


def ports(kernels: str, reserved: str, binds: Mapping[str, range]) -> list[Finding]:
    """Ports that the kernel may give to any socket while a node is down. `binds`: the configured ones, by key."""
    low, high = map(int, kernels.split())
    kept = _ranges(reserved)
    found: list[Finding] = []
    for key, wanted in binds.items():
        loose = [port for port in wanted if low <= port <= high and not any(port in each for each in kept)]
        if loose:
            span = str(loose[0]) if len(loose) == 1 else f"{loose[0]}-{loose[-1]}"
            text = f"{key} is within {low} to {high}: the kernel may give port {span} to another socket"
            both = f"{reserved.strip()},{span}".lstrip(",")
            mend = f"{sysctl('net.ipv4.ip_local_reserved_ports', both)}; or use a port outside this range"
            found.append(warn("ports", text, mend))
    return found or [
        ok("ports", f"no configured port is within {low} to {high}, from which the kernel gives ports to any socket")
    ]


def _ranges(text: str) -> list[range]:
    pairs = [part.partition("-") for part in text.strip().split(",") if part]
    return [range(int(first), int(last or first) + 1) for first, _, last in pairs]
