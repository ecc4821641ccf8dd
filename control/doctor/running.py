"""Judges a running instance: its nodes, their buffers, and counters of trouble."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from muster_server.control.cluster.instance import Process, Record
from muster_server.control.doctor.finding import Finding, fail, mib, ok, warn
from muster_server.control.doctor.network import ENOUGH_BYTES, sysctl
from muster_server.control.terminal import common
from muster_server.control.terminal.limits import LAG, LATE_S
from muster_server.control.terminal.readings import FAILS, NO_ANSWER, Readings, uncovered


class Trouble(NamedTuple):
    """Meaning of a metric that has reached `least`."""

    least: float
    meaning: str
    mend: str


CONNECTED: Final = "muster_registry_connected"
"""Gauge that only registered nodes have."""
TROUBLE: Final[Mapping[str, Trouble]] = {
    "muster_stalls_total": Trouble(
        1,
        "times that an event loop stalled for over 0.5 s",
        "give nodes cores of their own; find the processes that use them, and see steal above",
    ),
    LAG: Trouble(
        LATE_S,
        "seconds by which an event loop was late",
        "give nodes cores of their own; find the processes that use them",
    ),
    "muster_log_lines_lost_total": Trouble(1, "lines of the log were lost", "make room on the disk, or read faster"),
    "muster_udp_lost_stale_total": Trouble(
        1,
        "datagrams were dropped at a full send buffer",
        "set a larger send_buffer_bytes, or fewer members per gateway",
    ),
    "muster_udp_lost_starved_total": Trouble(
        1,
        "datagrams were dropped because the kernel had no memory for them",
        "check memory with free; add memory to the machine",
    ),
    "muster_udp_lost_denied_total": Trouble(
        1, "datagrams were forbidden by a rule of this system", "look for a firewall: nft list ruleset"
    ),
    "muster_udp_lost_too_large_total": Trouble(
        1,
        "the path does not carry datagrams of payload_bytes",
        "set payload_bytes = 1200, or a larger MTU, which ip link shows",
    ),
    "muster_udp_gso_refused_total": Trouble(
        1, "sockets send single datagrams only, since UDP_SEGMENT failed", "use a newer kernel or driver"
    ),
    "muster_links_log_full_total": Trouble(
        1, "links were dropped because their logs were full", "check loss and delay between nodes: muster links"
    ),
    "muster_presence_unpublished_age_seconds": Trouble(
        60, "seconds that changes of presence wait for their log", "see the writer in muster status; check the log"
    ),
    "muster_gaps_unrepaired_total": Trouble(
        1, "gaps were caused by missing repairs", "check loss between broker and gateway: `muster top` shows drops"
    ),
    "muster_registry_refused_total": Trouble(
        1,
        "impossible values were read from the registry",
        "check which programs can write there; the log names path and cause",
    ),
    "muster_registry_doubted_total": Trouble(
        1,
        "times that most nodes of a role vanished from the registry at once",
        "check whether the registry lost its data",
    ),
    "muster_registry_sessions_lost_total": Trouble(
        1, "sessions with the registry were lost", "see stalls, or set a longer session_ms"
    ),
    "muster_dropped_full_total": Trouble(
        1, "rooms or publishers exceeded the limit", "`muster cluster show` tells what to add"
    ),
    "muster_refused_full_total": Trouble(1, "rooms exceeded the limit", "`muster cluster show` tells what to add"),
    "muster_dropped_queue_full_total": Trouble(
        1,
        "publishers had to repeat messages, because too many waited for a broker",
        "`muster cluster show` tells what to add",
    ),
}

CAUSE: Final = (
    "correct the cause named there; the node then starts by itself. muster check names each damaged file of a store"
)


def judged(record: Record, version: str, readings: Readings) -> list[Finding]:
    """Return all findings. `version`: that of this command."""
    found = [*nodes(record.processes, readings), *partitions(record, readings), *buffers(record.processes, readings)]
    if record.version != version:
        mend = "restart the instance: muster up" if record.pid else "finish the upgrade, node by node"
        found.append(warn("instance", f"the instance runs {record.version}, but this command is {version}", mend))
    if record.faults:
        text = "faults are injected on purpose"
        found.append(warn("instance", text, "remove [faults] from the configuration and restart"))
    return [*found, *troubles(record.processes, readings)]


def nodes(processes: Sequence[Process], readings: Readings) -> list[Finding]:
    """Which nodes serve."""
    found: list[Finding] = []
    for process in processes:
        state = readings[process.node].state
        if state == FAILS:
            text = f"{process.name} {state} and is retried: {process.waits}"
            found.append(fail("nodes", text, CAUSE))
        elif state == NO_ANSWER:
            found.append(_silent(process, [each.name for each in processes if each.pid == process.pid]))
        elif state.startswith("waits for "):
            mend = "check the registry: registry.url, and whether it runs"
            found.append(fail("nodes", f"{process.name} {state}", mend))
        elif state != "ready":
            found.append(fail("nodes", f"{process.name} is {state}", "see its log for what it waits for"))
        if readings[process.node].values.get(CONNECTED) == 0:
            text = f"{process.name} has no session with the registry and uses the last map"
            found.append(warn("nodes", text, "check ZooKeeper, and the network to it"))
        if process.restarts:
            text = f"{process.name} was restarted {process.restarts} times"
            found.append(warn("nodes", text, "see its log for why it ended"))
    ready = sum(readings[process.node].state == "ready" for process in processes)
    return found or [ok("nodes", f"{ready} of {len(processes)} serve")]


def partitions(record: Record, readings: Readings) -> list[Finding]:
    """Partitions without a running replica."""
    missing = uncovered(record, (reading.status for reading in readings.values()))
    return [
        fail(
            "partitions",
            f"partition {partition} of {of} has no running replica",
            "start one, or see its log for why it does not start",
        )
        for of, each in missing.items()
        for partition in each
    ]


def _silent(process: Process, sharing: Sequence[str]) -> Finding:
    """`sharing`: the nodes of its process."""
    if process.pid:
        restarted = ", ".join(sharing) if len(sharing) > 1 else "it"
        return fail("nodes", f"{process.name} does not answer", f"see its log; kill {process.pid} restarts {restarted}")
    if why := common.apart(process):
        return warn("nodes", f"{process.name} {why}", "run muster doctor there")
    return fail("nodes", f"{process.name} does not answer", f"see its log on {process.link[0]}")


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
        return [ok("buffers in use", "all nodes got the requested receive buffers")]
    mend = f"{sysctl('net.core.rmem_max', wanted)}; then restart the instance"
    return [warn("buffers in use", f"too small: {_some(short)}", mend)]


def troubles(processes: Sequence[Process], readings: Readings) -> list[Finding]:
    """Counters since the nodes started, and current gauges."""
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
