"""Where the command `muster` begins: while what it needs is loaded, signals do nothing that they should not.

Ctrl-C ends it without a traceback. SIGHUP, by which `muster serve` is told to read its configuration again, is kept for it.
"""

import signal
import sys

from control import hangup


def main() -> int:
    """Run the command and return its exit code."""
    if sys.argv[1:2] == ["serve"]:
        hangup.hold()
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else it is ignored, as in the background of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from control.cli import main as run

    signal.signal(signal.SIGINT, before)
    return run()
