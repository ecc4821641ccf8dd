"""The start of the command `muster`: handles signals while the program loads.

Ctrl-C ends it without a traceback. The signals of `muster serve` are taken earlier (`control/host/hangup.py`).
"""

import signal

from muster_server.control.host.lean import lean


def main() -> int:
    """Run the command and return its exit code."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else it is ignored, as in the background of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    lean()
    from muster_server.control.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    return run()
