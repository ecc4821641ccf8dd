"""The command `muster` whose nodes may be of the next release."""

import os
import sys

os.environ["MUSTER_SYSTEMS"] = "tests.next"

from control.cli import main as cli

if __name__ == "__main__":
    sys.exit(cli.main())
