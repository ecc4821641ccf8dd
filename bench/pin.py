"""Pins processes to cores: all server roles to one core, the driver (publisher and subscribers) to another."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

_ALLOWED = sorted(os.sched_getaffinity(0))
DRIVER_CORE = _ALLOWED[0]
SERVER_CORE = _ALLOWED[1 % len(_ALLOWED)]


def alone() -> bool:
    """True on a machine with one usable core, where driver and servers share it and the figures mean little."""
    return DRIVER_CORE == SERVER_CORE


def pin(core: int) -> None:
    """Pin the calling thread; children and threads that it starts from now on inherit the core."""
    os.sched_setaffinity(0, {core})


@contextmanager
def on(core: int) -> Iterator[None]:
    """Pin the calling thread to `core` for a while; children started inside stay there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def ahead(pids: Iterable[int]) -> Iterator[None]:
    """Run the main threads of these processes, and the calling one, before all others of their core, where that is
    allowed.

    Without it even a process of the idle class sometimes keeps a core until the next tick, once it is behind its share:
    up to 4 ms, while busy ones wait. Children started inside do not get this priority.
    """
    before = {thread: (os.sched_getscheduler(thread), os.sched_getparam(thread)) for thread in (0, *pids)}
    try:
        with suppress(PermissionError):
            for thread in before:
                os.sched_setscheduler(thread, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        yield
    finally:
        for thread, (policy, parameters) in before.items():
            with suppress(ProcessLookupError, PermissionError):
                os.sched_setscheduler(thread, policy, parameters)
