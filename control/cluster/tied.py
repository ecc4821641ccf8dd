"""Runs a program that dies with its parent: `python -m muster_server.control.cluster.tied PARENT PROGRAM ARGUMENT…`.

The kernel's signal at a parent's end survives exec, so a killed `muster up` leaves no program behind. The limit of open
files is raised as far as the machine allows, since few programs raise their own.
"""

import ctypes
import os
import resource
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Replace this process with the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
