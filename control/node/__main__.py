"""The entry of a node's process: `python -m control.node --spec FILE --parent PID`.

With `--template` it is the process from which `muster up` forks its nodes."""

import sys

from control.host.lean import lean

lean()

from control.node.process import load, main  # noqa: E402 - structlog is to be loaded before
from control.node.template import started  # noqa: E402

sys.exit(main(started(sys.argv[1:], load)))
