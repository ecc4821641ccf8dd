"""What limits a node, judged from two readings of it: a core, its memory, its open files, a full queue, or nothing.

One word and one sentence for each, the same in `muster top` and on the pages of the console.
"""

from typing import Final, Literal

import msgspec

from muster_server.control.terminal.readings import CPU, RSS, Reading

LAG: Final = "muster_loop_lag_seconds"
FILES: Final = "muster_process_open_fds"
FILES_MAX: Final = "muster_process_max_fds"
BUSY: Final = 0.85
"""The share of a core from which a node has no reserve: its loop is one thread."""
LATE_S: Final = 0.1
"""A loop that waits as long for a core lacks one, as `muster doctor` judges it."""
FULL: Final = 0.9
"""The share of memory or files in use that leaves no reserve."""
SOCKETS: Final = ("udp_lost_stale", "udp_lost_starved", "memory_lost_full", "connections_ended_slow")
"""Losses at queues of sockets, and between nodes of a process."""
TABLES: Final = ("_full", "_limit", "_limited", "_busy", "_starved")
"""Endings of the names of losses at a full table or queue, or at a limit of a rate."""

What = Literal["nothing", "cpu", "cores", "memory", "files", "sockets", "tables"]


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What limits a node. `used`, and for memory and files `most`: in cores (`cpu`), seconds (`cores`), bytes (`memory`),
    files, or losses per second (`sockets`, `tables`, with the `counter` that grows most). `text`: all of it in words."""

    what: What
    text: str
    used: float = 0.0
    most: float | None = None
    counter: str = ""


def limiting(before: Reading | None, now: Reading) -> Limit | None:
    """The tightest limit of a node now; None if it did not answer."""
    if not now.values:
        return None
    return _loss(before, now) or _share(now) or _core(before, now) or Limit(what="nothing", text="nothing")


def _loss(before: Reading | None, now: Reading) -> Limit | None:
    drops = {name: rate for name, rate in now.drops(before).items() if rate > 0}
    if counter := max((name for name in drops if name in SOCKETS), key=lambda name: drops[name], default=""):
        text = f"a socket's queue is full: {counter} {drops[counter]:,.1f}/s"
        return Limit(what="sockets", text=text, used=drops[counter], counter=counter)
    if counter := max((name for name in drops if name.endswith(TABLES)), key=lambda name: drops[name], default=""):
        text = f"a table or rate is at its limit: {counter} {drops[counter]:,.1f}/s"
        return Limit(what="tables", text=text, used=drops[counter], counter=counter)
    return None


def _share(now: Reading) -> Limit | None:
    rss, memory = now.values.get(RSS), now.status.get("memory_bytes_max")
    if rss is not None and memory and rss >= FULL * memory:
        return Limit(
            what="memory", text=f"memory: {rss / 2**20:,.0f} of {memory / 2**20:,.0f} MiB", used=rss, most=memory
        )
    files, files_max = now.values.get(FILES), now.values.get(FILES_MAX)
    if files is not None and files_max and files >= FULL * files_max:
        return Limit(what="files", text=f"open files: {files:,.0f} of {files_max:,.0f}", used=files, most=files_max)
    return None


def _core(before: Reading | None, now: Reading) -> Limit | None:
    cpu, lag_s = now.rate(before, CPU), now.values.get(LAG, 0.0)
    if cpu is not None and cpu >= BUSY:
        return Limit(what="cpu", text=f"CPU: {cpu:.0%} of a core", used=cpu)
    if lag_s >= LATE_S:
        return Limit(what="cores", text=f"cores: its loop waited {1_000 * lag_s:,.0f} ms for one", used=lag_s)
    return None
