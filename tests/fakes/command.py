"""The command `muster` with fake role processes and, in its own process, a fake client library.

`FAKE_DROP=3` in the environment: the third message reaches nobody.
"""

import os
import sys

import muster
from control.cli import main as cli
from control.cluster import supervisor
from tests.fakes import library

supervisor.NODE_COMMAND = (sys.executable, "-m", "tests.fakes.node")  # type: ignore[misc]
vars(muster)["connect"] = library.connect
library.Client.drop = frozenset(int(number) for number in os.environ.get("FAKE_DROP", "").split())

if __name__ == "__main__":
    sys.exit(cli.main())
