"""The start of the command `muster`: handles signals while the program loads.

Ctrl-C ends it without a traceback. A SIGHUP for `muster serve` (read the configuration again) is kept. SIGTERM ends
`muster serve` at once, also as process 1 of a container, until a loop handles it (`control/cluster/daemon.py`).
"""

import os
import signal
import sys
from types import FrameType

from muster_server.control.host import hangup
from muster_server.control.host.lean import lean


def main() -> int:
    """Run the command and return its exit code."""
    if sys.argv[1:2] == ["serve"]:
        hangup.hold()
        signal.signal(signal.SIGTERM, _end)
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else it is ignored, as in the background of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    lean()
    from muster_server.control.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    return run()


def _end(number: int, frame: FrameType | None) -> None:
    """End as by the signal itself; as process 1, which the kernel sends no signal without a handler, with the signal's
    exit code."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)
