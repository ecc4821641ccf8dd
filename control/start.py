"""Where the command `muster` begins: while what it needs is loaded, Ctrl-C ends it without a traceback."""

import signal


def main() -> int:
    """Run the command and return its exit code."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # else it is ignored, as in the background of a script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from control.cli import main as run

    signal.signal(signal.SIGINT, before)
    return run()
