"""The entry of a node's process: `python -m muster_server.systems.node --spec FILE --parent PID`.

With `--shared` it is the process of several nodes. With `--template` it is the process from which `muster up` forks its
nodes.
"""

import os
import sys

from muster_server.control.host.lean import lean

lean()

from muster_server.control.node.entry import load, main  # noqa: E402 - structlog is to be loaded before
from muster_server.control.node.template import started  # noqa: E402

code = main(started(sys.argv[1:], load))
os._exit(code)  # Python would take apart what it has loaded: twice the work of a start
