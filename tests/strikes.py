"""Faults for processes that tests own: each is seen to have taken place, or raises.

A signal to a process that has ended already, or to number 0, would be a test without its fault.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.waiting import PATIENT_S

GONE: Final = ("", "Z", "X")
STANDS_STILL: Final = ("T", "t")


def state(pid: int) -> str:
    """As `ps` has it; nothing where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def runs(pid: int) -> bool:
    """Whether it is there, and not merely waiting to be buried."""
    return state(pid) not in GONE


def kill(pid: int) -> None:
    """kill -9 of a process that runs. Returns when it runs no more."""
    _strike(pid, signal.SIGKILL, lambda: not runs(pid))


def stop(pid: int) -> None:
    """SIGSTOP to a process that runs. Returns when it stands still."""
    _strike(pid, signal.SIGSTOP, lambda: state(pid) in STANDS_STILL)


def terminate(pid: int) -> None:
    """SIGTERM to a process that runs."""
    _strike(pid, signal.SIGTERM, lambda: True)


def go_on(pid: int) -> None:
    """SIGCONT; it may have been killed meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def standing_still(*pids: int) -> Iterator[None]:
    """These processes do nothing while the block lasts."""
    try:
        for pid in pids:
            stop(pid)
        yield
    finally:
        for pid in pids:
            go_on(pid)


def _strike(pid: int, number: signal.Signals, struck: Callable[[], bool]) -> None:
    assert pid > 0, f"{number.name}: 0 is no process"
    assert runs(pid), f"{number.name}: process {pid} has ended already"
    os.kill(pid, number)
    deadline = time.monotonic() + PATIENT_S
    while not struck():
        assert time.monotonic() < deadline, f"{number.name}: process {pid} is {state(pid)} still"
        time.sleep(0.001)
