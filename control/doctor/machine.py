"""Judges the machine: files, folder, clock, cores, memory, limits of its control group, versions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster_server.control.doctor.finding import Finding, fail, mib, ok, warn
from muster_server.control.host.group import Group

NODE_MIB: Final = 60
"""Memory of a node besides its rings, as `NODES_MAX` of control/config/layout.py counts it."""
MEND_VERSIONS: Final = "run scripts/setup.sh in a clone, or install both wheels of one release with pip"
FREE_LEAST: Final = 1 << 20
FREE_ENOUGH: Final = 64 << 20
SLOW_CLOCKS: Final = frozenset({"hpet", "acpi_pm", "xen", "pit", "jiffies", "refined-jiffies"})
"""Clocks whose reading needs a system call; a process reads the others by itself."""
SELF_TUNED: Final = frozenset({"intel_pstate", "amd-pstate-epp"})
"""Drivers whose governor `powersave` still reaches full speed."""
STEAL_MAX: Final = 0.02
THROTTLED_MAX: Final = 0.01


@dataclass(frozen=True, slots=True)
class Place:
    """The instance's folder, present or future. `free`: bytes; `files`: number of further files, None if unlimited."""

    path: Path
    exists: bool
    mine: bool
    link: bool
    mode: int
    writable: bool
    free: int
    files: int | None


def files(hard: int | None, wanted: int) -> Finding:
    """`hard`: the hard limit, None without one. Muster raises a lower soft limit at its start."""
    if hard is not None and hard < wanted:
        return fail(
            "open files", f"only {hard:,} may be open at once, but {wanted:,} are needed", f"ulimit -n {wanted}"
        )
    return ok(
        "open files", f"{'any number' if hard is None else f'{hard:,}'} may be open at once, {wanted:,} are needed"
    )


def folder(place: Place) -> list[Finding]:
    """Whether keys and the record can be stored there, unreadable to other users."""
    check, elsewhere = "instance folder", "set instance.dir to a folder of yours"
    if place.exists and (place.link or not place.mine):
        return [fail(check, f"{place.path} belongs to another user or is a link", elsewhere)]
    if not place.writable:
        what = "is not writable" if place.exists else "cannot be created"
        return [fail(check, f"{place.path} {what}", elsewhere)]
    found = [ok(check, f"{place.path}" if place.exists else f"{place.path} will be created")]
    if place.exists and place.mode & 0o077:
        text = f"{place.path} has mode {place.mode:04o}: other users can read it"
        found = [warn(check, text, f"chmod 700 {place.path}")]
    if place.free < FREE_ENOUGH or place.files == 0:
        text = "no further file fits" if place.files == 0 else f"{mib(place.free)} are free"
        judge = fail if place.free < FREE_LEAST or place.files == 0 else warn
        found.append(
            judge("free space", f"{text} where {place.path} lies", "free some space there, or set instance.dir")
        )
    else:
        found.append(ok("free space", f"{mib(place.free)} where {place.path} lies"))
    return found


def secrets(named: Sequence[str], open_to_all: Sequence[str]) -> list[Finding]:
    """Whether other users can access the files with secrets; no finding if the configuration names none."""
    if open_to_all:
        text = f"all users of this machine can read or change {', '.join(open_to_all)}"
        return [warn("secrets", text, f"chmod o= {' '.join(open_to_all)}")]
    return [ok("secrets", "only owner and group can read them")] if named else []


def clock(current: str | None, available: str) -> Finding:
    """Judge the kernel's clock, which every turn of a node reads."""
    if current is None:
        return ok("clock", "unknown on this system")
    name = current.strip()
    if name not in SLOW_CLOCKS:
        return ok("clock", f"{name}")
    better = [each for each in available.split() if each not in SLOW_CLOCKS]
    where = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
    mend = f"as root: echo {better[0]} > {where}" if better else "the host offers no better clock"
    return warn("clock", f"{name}: each reading needs a system call", mend)


def cores(usable: int, nodes: int) -> Finding:
    """The number of usable cores."""
    text = f"{usable} for {nodes} nodes; a node uses at most one"
    if usable < 2:
        return warn("cores", f"{text}, so nodes share cores", "use a machine with two or more")
    return ok("cores", text)


def frequency(cores: Sequence[tuple[str, str]]) -> Finding:
    """The driver and the governor of each core; no finding if the system does not tell."""
    if not cores:
        return ok("frequency", "the system does not tell, as in most virtual machines")
    slow = [governor for driver, governor in cores if governor == "powersave" and driver not in SELF_TUNED]
    if slow:
        text = f"{len(slow)} of {len(cores)} cores are kept at their lowest speed (powersave)"
        return warn("frequency", text, "cpupower frequency-set -g performance")
    return ok("frequency", ", ".join(sorted({governor for _, governor in cores})))


def steal(stat: str) -> Finding:
    """Judge `/proc/stat`: CPU time that the host gave to others while this machine wanted to run."""
    ticks = [int(field) for field in stat.splitlines()[0].split()[1:9]]
    busy = sum(ticks) - ticks[3] - ticks[4]  # without idle and I/O wait
    share = ticks[7] / busy if busy else 0.0
    text = f"the host gave {share:.1%} of this machine's CPU time since boot to others"
    if share > STEAL_MAX:
        return warn("steal", f"{text}: nodes are delayed", "use a less shared host, or dedicated cores")
    return ok("steal", text)


def group(limits: Group, nodes: int, arenas_mib: int) -> list[Finding]:
    """Judge the limits of a container or a service manager."""
    found: list[Finding] = []
    if limits.cores is not None and limits.cores < 1:
        text = f"a control group allows only {limits.cores:g} of a core: processes are throttled in each period"
        found.append(
            warn("CPU limit", text, "allow a core for each busy node (CPUQuota, --cpus, resources.limits.cpu)")
        )
    elif limits.throttled > THROTTLED_MAX:
        text = f"a control group throttled processes in {limits.throttled:.0%} of its periods"
        found.append(warn("CPU limit", text, "raise the limit (CPUQuota, --cpus, resources.limits.cpu)"))
    else:
        text = "no control group sets a limit" if limits.cores is None else f"{limits.cores:g} cores"
        found.append(ok("CPU limit", text))
    wanted = needed_bytes(nodes, arenas_mib)
    if limits.memory is not None and limits.memory < wanted:
        text = f"a control group allows {mib(limits.memory)}, but {nodes} nodes with full rings need {mib(wanted)}"
        found.append(warn("memory limit", text, "raise the limit, or set a smaller arena_mib for gateway and broker"))
    else:
        allowed = "no control group sets one" if limits.memory is None else mib(limits.memory)
        found.append(ok("memory limit", allowed))
    return found


def needed_bytes(nodes: int, arenas_mib: int) -> int:
    """Memory of an instance once its rings are full."""
    return (nodes * NODE_MIB + arenas_mib) << 20


def memory(meminfo: str, nodes: int, arenas_mib: int) -> Finding:
    """Judge `/proc/meminfo`, while no instance runs here."""
    said = {line.partition(":")[0]: line.split()[1] for line in meminfo.splitlines() if line}
    available, wanted = int(said["MemAvailable"]) << 10, needed_bytes(nodes, arenas_mib)
    text = f"{mib(available)} are available, but {nodes} nodes with full rings need {mib(wanted)}"
    if available < wanted:
        return warn("memory", text, "set a smaller arena_mib for gateway and broker, run fewer nodes, or add memory")
    return ok("memory", text)


def aes(cpuinfo: str) -> Finding:
    """Judge `/proc/cpuinfo`: every datagram is encrypted with AES-128-GCM."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))), None)
    if flags is None:
        return ok("AES", "the system does not tell the processor's features")
    if "aes" in flags.partition(":")[2].split():
        return ok("AES", "the processor has instructions for AES")
    mend = "let the host pass the processor's AES instructions through (QEMU: -cpu host), or use another processor"
    return warn("AES", "the processor has no instructions for AES: sealing a datagram costs many times as much", mend)


def versions(found: Mapping[str, str | None]) -> list[Finding]:
    """Judge the versions of the parts, by distribution; None is missing. Library and server must be of one release."""
    missing = [name for name, version in found.items() if version is None]
    if missing:
        return [fail("versions", f"not installed: {', '.join(missing)}", MEND_VERSIONS)]
    if found["muster"] != found["muster-server"]:
        text = f"muster is {found['muster']} but muster-server is {found['muster-server']}: install one release of both"
        return [fail("versions", text, MEND_VERSIONS)]
    return [ok("versions", ", ".join(f"{name} {version}" for name, version in found.items()))]
