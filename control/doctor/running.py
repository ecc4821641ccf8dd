"""Judges a running instance: its nodes, their buffers, and counters of trouble."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from muster_server.control.cluster.instance import Process, Record
from muster_server.control.doctor.finding import Finding, fail, mib, ok, warn
from muster_server.control.doctor.network import ENOUGH_BYTES, sysctl
from muster_server.control.terminal import common
from muster_server.control.terminal.readings import NO_ANSWER, Readings, uncovered


class Trouble(NamedTuple):
    """The meaning of a metric from `least` on."""

    least: float
    meaning: str
    mend: str


LAG: Final = "muster_loop_lag_seconds"
CONNECTED: Final = "muster_registry_connected"
"""Only nodes that register have it."""
TROUBLE: Final[Mapping[str, Trouble]] = {
    "muster_stalls_total": Trouble(
        1,
        "loops stood still for over 0.5 s",
        "give nodes cores of their own; find the processes that use them, and see steal above",
    ),
    LAG: Trouble(
        0.1, "loops come late by as many seconds", "give nodes cores of their own; find the processes that use them"
    ),
    "muster_log_lines_lost_total": Trouble(1, "lines of the log were lost", "make room on the disk, or read faster"),
    "muster_udp_lost_stale_total": Trouble(
        1, "datagrams were given up behind a full send buffer", "a larger send_buffer_bytes, or fewer members a gateway"
    ),
    "muster_udp_lost_starved_total": Trouble(
        1, "datagrams were given up as the kernel had no memory for them", "free shows it; more memory for the machine"
    ),
    "muster_udp_lost_denied_total": Trouble(
        1, "a rule of this system forbids datagrams", "look for a firewall: nft list ruleset"
    ),
    "muster_udp_lost_too_large_total": Trouble(
        1, "the path carries less than payload_bytes", "payload_bytes = 1200, or a larger MTU: ip link shows it"
    ),
    "muster_udp_gso_refused_total": Trouble(1, "sockets send singly for good", "a newer kernel or driver"),
    "muster_links_log_full_total": Trouble(
        1, "links were given up with more to tell than their logs hold", "look at loss and lateness between nodes"
    ),
    "muster_gaps_unrepaired_total": Trouble(
        1, "gaps came because a repair did not", "look at loss between broker and gateway: `muster top` shows drops"
    ),
    "muster_registry_refused_total": Trouble(
        1, "the registry had impossible values", "check who may write there; the log names path and cause"
    ),
    "muster_registry_doubted_total": Trouble(
        1, "most of a role vanished from the registry at once", "check whether it lost its data"
    ),
    "muster_registry_sessions_lost_total": Trouble(
        1, "sessions with the registry were lost", "see stalls, or set a longer session_ms"
    ),
    "muster_dropped_full_total": Trouble(
        1, "rooms or publishers did not fit", "`muster cluster show` says what to add"
    ),
    "muster_refused_full_total": Trouble(1, "rooms did not fit", "`muster cluster show` says what to add"),
    "muster_dropped_queue_full_total": Trouble(
        1, "publishers had to repeat, as too much waited for a broker", "`muster cluster show` says what to add"
    ),
}


def judged(record: Record, version: str, readings: Readings) -> list[Finding]:
    """Return all findings. `version`: of this command."""
    found = [*nodes(record.processes, readings), *partitions(record, readings), *buffers(record.processes, readings)]
    if record.version != version:
        mend = "end the instance and start it: muster up" if record.pid else "finish the upgrade, node by node"
        found.append(warn("instance", f"the instance runs {record.version}, this command is {version}", mend))
    if record.faults:
        text = "faults are injected on purpose"
        found.append(warn("instance", text, "remove [faults] from the configuration and restart"))
    return [*found, *troubles(record.processes, readings)]


def nodes(processes: Sequence[Process], readings: Readings) -> list[Finding]:
    """Which nodes serve."""
    found: list[Finding] = []
    for process in processes:
        state = readings[process.node].state
        if state == NO_ANSWER and process.waits:
            text = f"{process.name} cannot start, and is tried again: {process.waits}"
            found.append(fail("nodes", text, "mend what its reason names; muster up need not be started again"))
        elif state == NO_ANSWER:
            found.append(_silent(process, [each.name for each in processes if each.pid == process.pid]))
        elif process.waits:
            mend = "look at the registry: registry.url, and whether it runs"
            found.append(fail("nodes", f"{process.name} {state}", mend))
        elif state != "ready":
            found.append(fail("nodes", f"{process.name} is {state}", "its log says what it waits for"))
        if readings[process.node].values.get(CONNECTED) == 0:
            text = f"{process.name} has no session with the registry; the last map stays in force"
            found.append(warn("nodes", text, "check ZooKeeper, and the network to it"))
        if process.restarts:
            text = f"{process.name} was started again {process.restarts} times"
            found.append(warn("nodes", text, "its log says why it ended"))
    ready = sum(readings[process.node].state == "ready" for process in processes)
    return found or [ok("nodes", f"{ready} of {len(processes)} serve")]


def partitions(record: Record, readings: Readings) -> list[Finding]:
    """Partitions that nobody serves."""
    missing = uncovered(record, (reading.status for reading in readings.values()))
    return [
        fail("partitions", f"partition {partition} of {of} has no running replica", "start one; its log says why not")
        for of, each in missing.items()
        for partition in each
    ]


def _silent(process: Process, sharing: Sequence[str]) -> Finding:
    """`sharing`: the nodes of its process."""
    if process.pid:
        restarted = ", ".join(sharing) if len(sharing) > 1 else "it"
        return fail("nodes", f"{process.name} does not answer", f"its log; kill {process.pid} restarts {restarted}")
    if why := common.apart(process):
        return warn("nodes", f"{process.name} {why}", "muster doctor there")
    return fail("nodes", f"{process.name} does not answer", f"its log on {process.link[0]}")


def buffers(processes: Sequence[Process], readings: Readings) -> list[Finding]:
    """Buffers that the kernel gave at the start, which may differ from what it would give now."""
    short: list[str] = []
    wanted = ENOUGH_BYTES
    for process in processes:
        told = readings[process.node].status.get("receive_buffers", [])
        least = min(told, key=lambda each: each["effective"] - each["asked"], default=None)
        if least is not None and least["effective"] < least["asked"]:
            wanted = max(wanted, least["asked"])
            short.append(f"{process.name} {mib(least['effective'])} of {mib(least['asked'])}")
    if not short:
        return [ok("buffers in use", "all nodes got the receive buffers that they asked for")]
    mend = f"{sysctl('net.core.rmem_max', wanted)}; then restart the instance"
    return [warn("buffers in use", f"too small: {_some(short)}", mend)]


def troubles(processes: Sequence[Process], readings: Readings) -> list[Finding]:
    """Counters since the nodes started, and current values."""
    found: list[Finding] = []
    for name, trouble in TROUBLE.items():
        values = {process.name: readings[process.node].values.get(name, 0.0) for process in processes}
        told = [f"{node} {value:,.10g}" for node, value in values.items() if value >= trouble.least]
        if told:
            found.append(warn("counters", f"{trouble.meaning}: {name} of {_some(told)}", trouble.mend))
    return found or [ok("counters", "no counter of trouble has grown since the nodes started")]


def _some(told: Sequence[str]) -> str:
    more = f" and {len(told) - 4} more" if len(told) > 4 else ""
    return ", ".join(told[:4]) + more
