"""The command `muster` where the toy's system is listed beside the others."""

import os
import sys

os.environ["MUSTER_SYSTEMS"] = "tests.toy"

from muster_server.control.cli import main as cli

if __name__ == "__main__":
    sys.exit(cli.main())
