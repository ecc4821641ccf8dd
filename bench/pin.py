"""Which core does what: every server role on one core, the driver (publisher and subscribers) on another."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

_ALLOWED = sorted(os.sched_getaffinity(0))
DRIVER_CORE = _ALLOWED[0]
SERVER_CORE = _ALLOWED[1 % len(_ALLOWED)]


def alone() -> bool:
    """True on a machine with one usable core, where driver and servers share it and figures mean little."""
    return DRIVER_CORE == SERVER_CORE


def pin(core: int) -> None:
    """Pins the calling thread; children and threads it starts from now on inherit the core."""
    os.sched_setaffinity(0, {core})


@contextmanager
def on(core: int) -> Iterator[None]:
    """The calling thread on `core` for a while; what is started inside stays there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def ahead(pids: Iterable[int]) -> Iterator[None]:
    """The main threads of these processes, and the calling one, run before all others of their core, where that is allowed.

    Beside it even one of the idle class keeps a core until the next tick now and then, once it is behind its share: up to
    4 ms, with those that have something to do waiting. What is started inside is not ahead.
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
