"""How much slower a busy machine is, by the kernel's own count: for limits in time that are themselves what is tested."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

USUAL: Final = 2.0
"""The whole suite on two processors has its processes wait as long as they run; limits allow for that already."""
LEAST_S: Final = 0.01


class Slowness:
    """Watches this process and others from now on: how long they ran, and how long they waited for a processor."""

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self._before = {pid: _times(pid) for pid in (os.getpid(), *pids)}

    def ratio(self) -> float:
        """The largest share of all processes: the time that one ran or waited, over the time that it ran; at least 1."""
        ratios = [1.0]
        for pid, (ran, waited) in self._before.items():
            ran_now, waited_now = _times(pid)
            ran_s, waited_s = ran_now - ran, waited_now - waited
            ratios.append((ran_s + waited_s) / max(ran_s, LEAST_S))
        return max(ratios)

    def limit(self, seconds: float) -> float:
        """A limit on a machine that is no busier than usual, for this one."""
        return seconds * max(1.0, self.ratio() / USUAL)

    def least(self, share: float) -> float:
        """The same for a share of a rate that must be kept."""
        return share * min(1.0, USUAL / self.ratio())


def _times(pid: int) -> tuple[float, float]:
    """Seconds that the process ran, and waited to run; 0 where the kernel does not count, or the process is gone."""
    try:
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    except OSError:
        return 0.0, 0.0
    return int(ran) / 1e9, int(waited) / 1e9
