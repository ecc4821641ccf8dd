"""What the machine and the control groups of a process allow it: cores and memory. Reads files of the kernel only."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Group:
    """Limits of the control group, or of one that contains it: cores, bytes; and the share of throttled periods."""

    cores: float | None = None
    memory: int | None = None
    throttled: float = 0.0


def read_group(root: Path, mine: str) -> Group:
    """Return the lowest limits from `root`/sys/fs/cgroup down to the group named in `mine` (`/proc/self/cgroup`)."""
    mount = root / "sys" / "fs" / "cgroup"
    found = Group()
    for line in mine.splitlines():
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if not controllers:
            for folder in _upwards(mount, path):
                found = _narrower(found, _second_version(folder))
        elif "cpu" in names or "memory" in names:
            for folder in _upwards(mount / controllers, path):
                found = _narrower(found, _first_version(folder))
    return found


def _upwards(mount: Path, path: str) -> list[Path]:
    inner = mount / path.lstrip("/")
    return [each for each in (inner, *inner.parents) if each == mount or mount in each.parents]


def _second_version(folder: Path) -> Group:
    quota = _words(folder / "cpu.max")
    cores = int(quota[0]) / int(quota[1]) if len(quota) == 2 and quota[0] != "max" else None
    return Group(cores, _limit(_words(folder / "memory.max")), _throttled(_words(folder / "cpu.stat")))


def _first_version(folder: Path) -> Group:
    quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
    cores = int(quota[0]) / int(period[0]) if quota and period and int(quota[0]) > 0 else None
    memory = _limit(_words(folder / "memory.limit_in_bytes"))
    return Group(cores, memory, _throttled(_words(folder / "cpu.stat")))


def _narrower(one: Group, other: Group) -> Group:
    cores = min((each for each in (one.cores, other.cores) if each is not None), default=None)
    memory = min((each for each in (one.memory, other.memory) if each is not None), default=None)
    return Group(cores, memory, max(one.throttled, other.throttled))


def _limit(words: Sequence[str]) -> int | None:
    count = int(words[0]) if words and words[0].isdigit() else None
    return None if count is None or count >= 1 << 60 else count  # version 1 writes a large number for "no limit"


def _throttled(words: Sequence[str]) -> float:
    said = dict(zip(words[::2], words[1::2], strict=False))
    periods = int(said.get("nr_periods", 0))
    return int(said.get("nr_throttled", 0)) / periods if periods else 0.0


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []


def memory_max(root: Path = Path("/")) -> int | None:
    """The most memory that this process can have, in bytes: that of the machine, or less by a control group. None if the
    kernel does not tell."""
    total = next((line.split()[1] for line in _lines(root / "proc" / "meminfo") if line.startswith("MemTotal:")), None)
    allowed = read_group(root, "\n".join(_lines(root / "proc" / "self" / "cgroup"))).memory
    found = [each for each in (None if total is None else int(total) << 10, allowed) if each is not None]
    return min(found, default=None)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
