"""Readings of nodes, taken repeatedly: the state and the metrics of each, and rates between two readings.

Only this file reads `/metrics` for commands. Commands interpret the figures.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from muster_server.control.cluster.instance import Process, Record
from muster_server.control.errors import TRY_LATER, UserError
from muster_server.control.terminal import common
from muster_server.control.terminal.found import Nodes
from muster_server.control.terminal.words import say

EVERY_S: Final = 1.0
CPU: Final = "muster_process_cpu_seconds_total"
RSS: Final = "muster_process_resident_memory_bytes"
BEGAN: Final = "muster_process_start_time_seconds"
NO_ANSWER: Final = "no answer"
FAILS: Final = "cannot start"
"""The state of a node that refuses to start and is retried."""
REASON: Final = re.compile(r"(?:dropped|refused|lost|withheld)_(\w+)$")
"""Suffixes of the names of loss counters, without `_total`."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One node at one time; without values if it did not answer. `status`: the content of `/api/v1/status`."""

    at: float
    state: str
    values: Mapping[str, float]
    error: UserError | None = None
    status: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def count(self, name: str) -> int | None:
        """An integer metric; None if the role has no such metric."""
        return int(self.values[name]) if name in self.values else None

    def rate(self, before: "Reading | None", name: str) -> float | None:
        """The growth of a counter per second since `before`; None if unknown."""
        if before is None or name not in before.values or name not in self.values:
            return None
        grown = self.values[name] - before.values[name]
        return None if grown < 0 else round(grown / (self.at - before.at), 3)  # a lower value means a restarted process

    def drops(self, before: "Reading | None") -> dict[str, float]:
        """Losses per second (dropped, refused, withheld, given up) by the counter's name, for example
        `link_dropped_unknown`."""
        names = (name for name in self.values if REASON.search(name.removesuffix("_total")))
        rates = {name: self.rate(before, name) for name in names}
        return {
            name.removeprefix("muster_").removesuffix("_total"): rate
            for name, rate in rates.items()
            if rate is not None
        }


Readings = Mapping[int, Reading]
"""Readings by node number."""


def processes_of(nodes: Iterable[Process], now: Readings) -> list[list[Process]]:
    """Group nodes that share a process of the system: each of them reports the figures of the whole process."""
    found: dict[Hashable, list[Process]] = {}
    for node in nodes:
        reading = now[node.node]
        pid = reading.status.get("pid")
        one: Hashable = node.node if pid is None else (node.admin[0], pid, reading.values.get(BEGAN))
        found.setdefault(one, []).append(node)
    return list(found.values())


async def follow(nodes: Nodes) -> AsyncIterator[tuple[Record, Readings, Readings]]:
    """The nodes, and their last two readings, every second. Raises `UserError`."""
    before: Readings = {}
    while True:
        record = await nodes.record()
        now = await asyncio.to_thread(read_all, record.processes)
        if before:
            yield record, before, now
        before = now
        await asyncio.sleep(EVERY_S)


def releases(statuses: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each release with its nodes, from their statuses by name; none if all nodes have one release."""
    found: dict[str, list[str]] = {}
    for name, status in statuses.items():
        if "version" in status:
            lowest, highest = status.get("protocol", (1, 1))
            spoken = f"protocol {highest}" if lowest == highest else f"protocol {lowest} to {highest}"
            found.setdefault(f"{status['version']}, {spoken}", []).append(name)
    return (
        [f"{release}: {', '.join(sorted(names))}" for release, names in sorted(found.items())] if len(found) > 1 else []
    )


def read_all(
    processes: Sequence[Process], timeout_s: float = common.HTTP_S, at_once: int = common.ASKED_AT_ONCE
) -> dict[int, Reading]:
    """Ask every node once, several at a time."""
    readings = common.together(lambda process: read(process, timeout_s), processes, at_once)
    return dict(zip((process.node for process in processes), readings, strict=True))


def read(process: Process, timeout_s: float = common.HTTP_S) -> Reading:
    """Ask one node. A missing answer is a reading too."""
    try:
        _, status = common.get(process, "/api/v1/status", timeout_s)
        if "waits" in status:  # it has no metrics yet
            state = f"waits for {status['waits']}"
            error = UserError(f"{process.name} {state}; try again", TRY_LATER)
            return Reading(time.monotonic(), state, {}, error)
        _, page = common.fetch(process, "/metrics", timeout_s)
    except UserError as error:
        return Reading(time.monotonic(), silent(process), {}, error)
    return Reading(time.monotonic(), status["state"], figures(page.decode()), status=status)


def figures(page: str) -> dict[str, float]:
    """The values of a node's `/metrics` by name; of several with labels the last one. A node's page has a sample a line,
    without a time, so this costs a tenth of a parser for all pages of Prometheus."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if line and line[0] != "#":
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0]] = float(value)
    return found


def registry(statuses: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The registry's map from a connected node, else from any node; None without a registry."""
    maps = [status["registry"] for status in statuses if "registry" in status]
    maps.sort(key=lambda known: known["session"] != "connected")
    return maps[0] if maps else None


def uncovered(record: Record, statuses: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """For each layer, the partitions without a running replica, if there are any."""
    known: Mapping[str, list[int]] = record.uncovered or (registry(statuses) or {}).get("uncovered", {})
    return {of: partitions for of, partitions in known.items() if partitions}


def silent(process: Process) -> str:
    """The state of a node that does not answer."""
    return FAILS if process.waits else NO_ANSWER


def name_silent(now: Readings) -> int:
    """Name the silent nodes on stderr. Returns the exit code."""
    errors = [reading.error for reading in now.values() if reading.error is not None]
    for error in errors:
        say(f"muster: {error}")
    return TRY_LATER if errors else 0
