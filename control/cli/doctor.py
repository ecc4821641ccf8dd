"""`muster doctor`: this machine, the configuration and the running instance, one line per finding.

Combines the readings of `control/doctor/probe.py` with the judgements of its neighbours. All checks run at once. A
check that hangs is reported, and no other check waits for it. Exit code 1 when a check fails; warnings do not change
it.
"""

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.text import Text

from muster import __version__
from muster_server.control.cluster import instance
from muster_server.control.cluster.instance import Record
from muster_server.control.cluster.specs import absolute, secret_files, wrong_secret_files
from muster_server.control.config import load as configuration
from muster_server.control.config.layout import seats
from muster_server.control.config.load import Loaded
from muster_server.control.config.options import ROLES, UP, Config, whole
from muster_server.control.doctor import identity, machine, network, probe, programs, running
from muster_server.control.doctor.finding import Finding, fail, ok, warn
from muster_server.control.errors import FAILURE, TRY_LATER, UNAVAILABLE, ConfigError, NotRunning, UserError
from muster_server.control.host.addresses import split_address
from muster_server.control.host.files import open_to_all
from muster_server.control.host.group import read_group
from muster_server.control.host.openfiles import files_wanted
from muster_server.control.registry import reach
from muster_server.control.terminal import common
from muster_server.control.terminal.found import Target, once
from muster_server.control.terminal.readings import read_all
from muster_server.plane import systems
from muster_server.plane.keys import public_key
from muster_server.plane.kind import named
from muster_server.plane.kinds import kinds, system_of
from muster_server.plane.spec import SpecError

LIMIT_S: Final = 4.0
REGISTRY_S: Final = 1.5
ANSWER_S: Final = 1.0
"""Limit of one request to a node, in seconds. A node is asked twice; all nodes are asked at once."""
UDP_S: Final = 1.5
"""Seconds during which losses are counted, besides those since boot."""
STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}

Check = Callable[[], list[Finding]]


def show(where: Target, as_json: bool) -> int:
    """Print all findings; exit code 1 if one of them is a failure."""
    flags = {} if where.registry is None else {"registry.url": (where.registry, "--registry")}
    try:
        loaded = configuration.load(where.file, flags=flags, profile=UP)
        found = [ok("configuration", f"{loaded.file or 'no file: all defaults'}")]
    except ConfigError as error:
        loaded = Loaded(whole()(), {}, None)
        found = [fail("configuration", str(error), "correct it first; the checks below use the defaults")]
    found += examined(Examination(loaded.config, where).checks(), LIMIT_S)
    counts = {level: sum(finding.level == level for finding in found) for level in STYLES}
    with common.verdict_after():
        if as_json:
            common.print_json({"failures": counts["fail"], "warnings": counts["warn"], "findings": found})
        else:
            _print(found, counts)
    return FAILURE if counts["fail"] else 0


def examined(checks: Mapping[str, Check], limit_s: float) -> list[Finding]:
    """Return the findings, in the order of the checks. A check that hangs, or may not read something, becomes a
    finding."""
    found: dict[str, list[Finding]] = {}

    def examine(name: str, check: Check) -> None:
        try:
            found[name] = check()
        except (OSError, ValueError, LookupError, UserError) as error:
            found[name] = [warn(name, f"the check failed: {error}", "unexpected data on this system")]

    # Daemon threads: a thread that hangs in the kernel, on a lost disk, blocks nothing.
    threads = [threading.Thread(target=examine, args=item, daemon=True) for item in checks.items()]
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"the check did not end within {limit_s:g} s"
    return [
        finding
        for name in checks
        for finding in found.get(name, [warn(name, late, "check what it reads: a disk or a node may hang")])
    ]


class Examination:
    """The checks of one configuration. Each is quick unless a disk or a node hangs."""

    def __init__(self, config: Config, where: Target) -> None:
        self._config, self._where = config, where
        self._looking = threading.Lock()
        self._looked: Record | UserError | None = None
        self._homeless: ConfigError | None = None
        try:
            self._place = instance.folder(config)
        except ConfigError as error:
            self._homeless = error
        self._nodes = seats(config)
        sections = (config.role(seat.role) for seat in self._nodes)
        self._rings_mib = sum(getattr(each, "arena_mib", 0) for each in sections)
        self._binds = dict(_binds(config))

    def checks(self) -> dict[str, Check]:
        """All checks, in the order of their output."""
        return {
            "instance": self._instance,
            "instance folder": self._folder,
            "secrets": self._secrets,
            "registry": self._registry,
            "identity": self._identity,
            "ports": self._ports,
            "addresses": self._addresses,
            "IPv6": self._ipv6,
            "buffers": self._buffers,
            "UDP offload": lambda: network.offload(probe.offload()),
            "UDP received": lambda: network.udp_errors(*_udp_counts()),
            "UDP sent": lambda: [network.udp_sent(*_udp_counts())],
            "UDP now": lambda: [_udp_now()],
            "packet queue": self._backlog,
            "open files": self._files,
            "cores": lambda: [machine.cores(probe.cores(), self._count())],
            "limits": self._limits,
            "memory": self._memory,
            "steal": lambda: [machine.steal(probe.text("/proc/stat"))],
            "frequency": lambda: [machine.frequency(probe.frequencies())],
            "clock": lambda: [machine.clock(*probe.clocks())],
            "AES": lambda: [machine.aes(probe.text("/proc/cpuinfo"))],
            "versions": lambda: machine.versions(probe.versions()),
            "programs": lambda: programs.judged(probe.find),
            **{
                name: functools.partial(self._system, name, named(system.doctor))
                for name, system in systems.named().items()
                if system.doctor
            },
        }

    def _system(self, name: str, examine: Callable[[Config, Record | None], list[Finding]]) -> list[Finding]:
        """The checks of a system that is enabled."""
        try:
            record = self._record()
        except UserError:
            record = None
        runs = record is not None and any(system_of(process.role) == name for process in record.processes)
        return examine(self._config, record) if runs or self._config.runs(name) else []

    def _instance(self) -> list[Finding]:
        try:
            record = self._record()
        except NotRunning:
            return [ok("instance", "no instance runs here", "muster up")]
        except UserError as error:
            return [warn("instance", str(error), self._mend(error))]
        if record.pid:
            runs = ok("instance", f"{record.name} {record.version}, process {record.pid}")
        else:
            nodes = common.counted(len(record.processes), "node")
            runs = ok("instance", f"{nodes} of muster serve {record.version} in the registry {record.registry}")
        readings = read_all(record.processes, ANSWER_S, at_once=len(record.processes))
        return [runs, *running.judged(record, __version__, readings)]

    def _mend(self, error: UserError) -> str:
        """The remedy for an error that kept the command from finding the nodes."""
        if error.exit_code in {UNAVAILABLE, TRY_LATER} and self._config.registry.url.startswith("zk://"):
            return (
                "correct the registry first (see registry below); the nodes continue meanwhile: muster status "
                "--node ADMIN"
            )
        if isinstance(error, ConfigError) and self._homeless is None:
            return "correct that key; muster config show --origin shows where it comes from"
        return "run muster doctor as the instance's user, or set instance.dir"

    def _folder(self) -> list[Finding]:
        if self._homeless is not None:
            return [fail("instance folder", str(self._homeless), "set instance.dir")]
        return machine.folder(probe.place(self._place.path))

    def _record(self) -> Record:
        """Return the instance or nodes to ask. Raises `UserError`."""
        with self._looking:
            if self._looked is None:
                try:
                    self._looked = self._look()
                except UserError as error:
                    self._looked = error
        if isinstance(self._looked, UserError):
            raise self._looked
        return self._looked

    def _look(self) -> Record:
        if self._homeless is not None:
            raise self._homeless
        if self._where.registry is None:
            try:
                return instance.find(self._place)
            except NotRunning:
                if not self._config.registry.url.startswith("zk://"):
                    raise
        return once(self._where, REGISTRY_S)

    def _secrets(self) -> list[Finding]:
        named = secret_files(self._config)
        found = machine.secrets(named, open_to_all(named))
        for line in wrong_secret_files(self._config):
            found.append(fail("secrets", line, "copy the file from a host of the cluster whose nodes run"))
        if self._homeless is None:
            for file, reason in instance.wrong_secrets(self._place):
                found.append(fail("secrets", reason, f"rm {file}; the next start makes a new one"))
        return found

    def _registry(self) -> list[Finding]:
        url = self._config.registry.url
        if not url.startswith("zk://"):
            return []
        from muster_server.control.config.zookeeper import servers  # imports kazoo, only here

        settings = self._config.registry
        return [
            network.registry(reach.tried(servers(url).hosts)),
            network.registry_access(settings.auth, tls=bool(settings.tls_ca_file)),
        ]

    def _identity(self) -> list[Finding]:
        cluster, serve = self._config.cluster, self._config.serve
        if cluster.identity == "off":
            return identity.judged(cluster, {}, {})
        files = {file.parent.name: file for file in sorted(Path(absolute(serve.dir)).glob("*/node.key"))}
        if cluster.node_key_file:
            files = {serve.name or cluster.node_key_file: Path(absolute(cluster.node_key_file))}
        try:
            keys = {name: public_key(str(file)) for name, file in files.items()}
        except SpecError as error:
            return [warn("identity", str(error), "muster doctor as the node's user")]
        try:
            nodes = self._record().processes
        except UserError:
            nodes = []
        return identity.judged(cluster, keys, {node.name: (node.node, node.role) for node in nodes})

    def _ports(self) -> list[Finding]:
        found: list[Finding] = []
        if not self._runs():  # a running instance uses its own ports
            for key, (host, ports) in self._binds.items():
                whys = filter(None, (probe.taken(key, host, port) for port in ports))
                found += [fail("ports", why, "muster config show --origin shows where it comes from") for why in whys]
        ranges = {key: ports for key, (_, ports) in self._binds.items() if ports.start}
        kernels = probe.text("/proc/sys/net/ipv4/ip_local_port_range")
        reserved = probe.text("/proc/sys/net/ipv4/ip_local_reserved_ports")
        judged = network.ports(kernels, reserved, ranges)
        return found + [finding for finding in judged if not found or finding.level != "ok"]

    def _addresses(self) -> list[Finding]:
        hosts = {key: host for key, (host, _) in self._binds.items()}
        four = six = ""
        if not set(network.WILDCARDS).isdisjoint(hosts.values()):
            four = probe.text("/proc/net/fib_trie")
            six = probe.text("/proc/net/if_inet6") if probe.ipv6() else ""
        return network.wildcards(hosts, four, six)

    def _ipv6(self) -> list[Finding]:
        return [network.ipv6(probe.ipv6(), [key for key, (host, _) in self._binds.items() if ":" in host])]

    def _buffers(self) -> list[Finding]:
        sections = [self._config.role(role) for role in ROLES]
        receive = max(section.recv_buffer_bytes for section in sections)
        send = max(section.send_buffer_bytes for section in sections)
        return [
            network.buffers("receive", receive, probe.buffer("receive", receive)),
            network.buffers("send", send, probe.buffer("send", send)),
        ]

    def _backlog(self) -> list[Finding]:
        limit = probe.text("/proc/sys/net/core/netdev_max_backlog")
        return [network.backlog(probe.text("/proc/net/softnet_stat"), limit)]

    def _files(self) -> list[Finding]:
        return [machine.files(probe.files(), files_wanted(self._count()))]

    def _limits(self) -> list[Finding]:
        limits = read_group(Path("/"), probe.text("/proc/self/cgroup"))
        return machine.group(limits, len(self._nodes), self._rings_mib)

    def _memory(self) -> list[Finding]:
        if self._runs():  # it has allocated its memory already
            return []
        return [machine.memory(probe.text("/proc/meminfo"), len(self._nodes), self._rings_mib)]

    def _runs(self) -> bool:
        """Whether nodes run, or may run, on this machine. If that is unknown, checks of nodes are not failures."""
        try:
            record = self._record()
        except NotRunning:
            return False
        except UserError:
            return True
        return record.pid != 0 or _here(record) > 0

    def _count(self) -> int:
        """The nodes of this machine: the running ones, else those that `muster up` would start."""
        try:
            return _here(self._record()) or len(self._nodes)
        except UserError:
            return len(self._nodes)


def _here(record: Record) -> int:
    """The number of these nodes that run on this machine."""
    if record.pid:
        return len(record.processes)
    return sum(common.is_of_this_machine(process.link[0]) for process in record.processes)


def _udp_now() -> Finding:
    before, began = _udp_counts(), time.monotonic()
    time.sleep(UDP_S)
    return network.udp_now(before, _udp_counts(), time.monotonic() - began)


def _udp_counts() -> tuple[str, str]:
    return probe.text("/proc/net/snmp"), probe.text("/proc/net/snmp6") if probe.ipv6() else ""


def _binds(config: Config) -> Iterator[tuple[str, tuple[str, range]]]:
    """The configured addresses: key, host and ports, one for each node; port 0 stays alone."""
    counts = Counter(seat.role for seat in seats(config))
    for of in (of for of in kinds().values() if of.process != "worker" and counts[of.name]):
        section = config.options(of)
        for name in of.binds:
            host, port = split_address(getattr(section, name))
            yield f"{of.key}.{name}", (host, range(port, port + counts[of.name] if port else 1))


def _print(found: Sequence[Finding], counts: Mapping[str, int]) -> None:
    console = common.out()
    width = max(len(finding.check) for finding in found)
    for finding in found:
        mend = f" -> {finding.mend}" if finding.mend else ""
        words = f"{finding.check:{width}}  {' '.join(finding.text.split())}{mend}"
        console.print(Text.assemble((f"{finding.level:4}", STYLES[finding.level]), "  ", words))
    console.print(f"{counts['fail']} fail, {counts['warn']} warn, {counts['ok']} ok")
