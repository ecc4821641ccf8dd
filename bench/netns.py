"""A network namespace of the bench's own, without other traffic.

`plain` is loopback as it is (mtu 65536, super-packets never cut). `wire` has mtu 1500 and cuts every super-packet as a
real link would. A bench enters by starting itself again inside; the variable below tells it that it is there.
"""

import os
import subprocess
import sys
from typing import Literal

Variant = Literal["plain", "wire"]

INSIDE = "MUSTER_BENCH_LOOPBACK"
_UP = {"plain": "ip link set lo up", "wire": "ip link set lo up mtu 1500 gso_max_segs 1"}
# As root, or as a user that may have a user namespace of its own.
_WAYS = (("unshare", "--net"), ("unshare", "--map-root-user", "--net"))


class NotPossibleError(Exception):
    """No private namespace on this machine; the message says why."""


def inside() -> str | None:
    """The variant that this process is in already."""
    return os.environ.get(INSIDE)


def enter(variant: Variant) -> None:
    """Replace this process by itself inside a new namespace; return if it is inside. Raises `NotPossibleError`."""
    if inside() == variant:
        return
    prefix = command(variant)
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ[INSIDE] = variant
    os.execvp(prefix[0], [*prefix, sys.executable, *sys.orig_argv[1:]])


def command(variant: Variant) -> list[str]:
    """Return the words to put before a command line to run it inside."""
    reason = "unshare was not tried"
    for way in _WAYS:
        prefix = [*way, "sh", "-c", f'{_UP[variant]} && exec "$@"', "sh"]
        try:
            tried = subprocess.run([*prefix, "true"], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
            continue
        if tried.returncode == 0:
            return prefix
        reason = (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
    raise NotPossibleError(
        f"no private network namespace ({reason}); run as root, with util-linux and iproute2 installed"
    )
