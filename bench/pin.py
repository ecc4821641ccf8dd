"""Which core does what: every server role on one core, the driver (publisher and subscribers) on another."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

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
