"""The server of Muster. Its folders stand at the top of the tree; this package only names them.

Importing it registers all systems, so that any module below may read their roles. `muster serve` takes its signals
before that, as the systems take a while to load.
"""

import sys

from muster_server.control.host import hangup

if sys.argv[1:2] == ["serve"]:
    hangup.hold()

from muster_server.systems import listed as listed
