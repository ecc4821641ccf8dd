"""Where the command `muster` begins: while what it needs is loaded, signals do nothing that they should not.

Ctrl-C ends it without a traceback. SIGHUP, by which `muster serve` is told to read its configuration again, is kept for it.
SIGTERM ends `muster serve` at once, as process 1 of a container too, until a loop takes it (`control/cluster/daemon.py`).
"""

import os
import signal
import sys
from types import FrameType

from control.host import hangup


def main() -> int:
    """Run the command and return its exit code."""
    if sys.argv[1:2] == ["serve"]:
        hangup.hold()
        signal.signal(signal.SIGTERM, _end)
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else it is ignored, as in the background of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from control.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    return run()


def _end(number: int, frame: FrameType | None) -> None:
    """As the signal does by itself; process 1, to whom the kernel gives none without a handler, by the code of that."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)
