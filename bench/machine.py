"""A description of this machine, and the CPU that others used during a run."""

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    cpu: str
    cores: int
    usable_cores: int
    memory_bytes: int
    kernel: str
    python: str
    rmem_max: int | None
    load: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def describe() -> Machine:
    return Machine(
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE"),
        kernel=platform.release(),
        python=platform.python_version(),
        rmem_max=_number("/proc/sys/net/core/rmem_max"),
        load=os.getloadavg()[0],
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except OSError:
        return None


@dataclass(frozen=True)
class Times:
    """Seconds of all cores since boot, from /proc/stat."""

    busy: float
    steal: float

    @classmethod
    def now(cls) -> "Times":
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        user, nice, system, _idle, _wait, irq, softirq, steal = fields[:8]
        tick = os.sysconf("SC_CLK_TCK")
        return cls(
            (user + nice + system + irq + softirq) / tick,
            steal / tick,
        )

    def since(self, earlier: "Times") -> dict[str, float]:
        """CPU seconds used by all processes, and stolen by the host, between the two moments."""
        return {"busy_s": round(self.busy - earlier.busy, 2), "steal_s": round(self.steal - earlier.steal, 2)}
