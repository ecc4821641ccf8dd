"""The entry of a node's process: `python -m control.node --spec FILE --parent PID`."""

import sys

from control.host.lean import lean

lean()

from control.node.process import main  # noqa: E402 - structlog is to be loaded before

sys.exit(main())
