#!/usr/bin/env python3
"""Run a command with each of its processes at a fifth of a processor's speed: `scripts/slow.py [--share S] COMMAND…`.

For tests, on Linux with control groups and as root: each process gets a group of its own with a quota, found by asking
the groups for new processes. Threads share the quota of their process. Says the number of processes at the end.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

PERIOD_US: Final = 25_000
EVERY_S: Final = 0.05
"""The groups are asked this often: a new process shares its parent's quota until then."""
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


class Groups:
    """The control groups of one command: `root` holds one for each process."""

    def __init__(self, share: float) -> None:
        self._first = V1.is_dir()
        self._quota = int(share * PERIOD_US)
        self.root = (V1 if self._first else V2) / f"slow-{os.getpid()}"
        self.seen = 0
        self._groups: list[Path] = []

    def __enter__(self) -> "Groups":
        if not self._first:
            (V2 / "cgroup.subtree_control").write_text("+cpu")
        self.root.mkdir()
        if self._first:
            (self.root / "cpu.shares").write_text("16384")  # other work on the machine waits
        else:
            (self.root / "cgroup.subtree_control").write_text("+cpu")
            (self.root / "cpu.weight").write_text("10000")
        return self

    def __exit__(self, *_: object) -> None:
        while self.sweep():
            time.sleep(EVERY_S)
        self.root.rmdir()

    def made(self) -> Path:
        """A new group for one process."""
        group = self.root / str(self.seen)
        self.seen += 1
        group.mkdir()
        if self._first:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(self._quota))
        else:
            (group / "cpu.max").write_text(f"{self._quota} {PERIOD_US}")
        self._groups.append(group)
        return group

    def sweep(self) -> int:
        """Give new processes groups, and remove empty groups. The number of processes."""
        count = 0
        for group in list(self._groups):
            pids = _processes(group)
            count += len(pids)
            for pid in pids[1:]:
                with suppress(OSError):  # it has ended
                    _enter(self.made(), pid)
            if not pids:
                with suppress(OSError):
                    group.rmdir()
                    self._groups.remove(group)
        return count

    def kill(self) -> None:
        """End all that is left."""
        while self.sweep():
            for group in self._groups:
                for pid in _processes(group):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(EVERY_S)


def _enter(group: Path, pid: int) -> None:
    (group / "cgroup.procs").write_text(str(pid))


def _processes(group: Path) -> list[int]:
    return sorted(int(line) for line in (group / "cgroup.procs").read_text().split())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--share", type=float, default=0.2, help="share of a processor for each process [0.2]")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if not given.command:
        parser.error("a command is needed")
    if not 0.04 <= given.share <= 1:
        parser.error("--share must be from 0.04 to 1")
    try:
        with Groups(given.share) as groups:
            group = groups.made()
            enter = partial(_enter, group, 0)
            child = subprocess.Popen(given.command, start_new_session=True, preexec_fn=enter)  # noqa: PLW1509 - no threads
            for number in signal.SIGINT, signal.SIGTERM:
                signal.signal(number, lambda number, _: child.send_signal(number))
            while child.poll() is None:
                groups.sweep()
                time.sleep(EVERY_S)
            groups.kill()
            print(f"slow: {groups.seen:,} processes, each at {given.share:g} of a processor", file=sys.stderr)
            return child.returncode if child.returncode >= 0 else 128 - child.returncode
    except OSError as error:
        parser.exit(2, f"slow: no control groups of the processor here ({error}); they need root on Linux\n")


if __name__ == "__main__":
    sys.exit(main())
