"""The command `muster` with fake role processes and, in its own process, a fake client library."""

import sys

import muster
from muster_server.control.cli import main as cli
from muster_server.plane import systems
from tests.fakes import library

systems.register((), node="tests.fakes.node")
vars(muster)["connect"] = library.connect

if __name__ == "__main__":
    sys.exit(cli.main())
