"""The command `muster` with fake role processes and, in its own process, a fake client library and load engine."""

import sys

import muster
from muster_server import _engines
from muster_server.control.cli import main as cli
from muster_server.plane import systems
from tests.fakes import library, load

systems.register((), node="tests.fakes.node")
vars(muster)["connect"] = library.connect
vars(_engines)["LoadEngine"] = load.LoadEngine

if __name__ == "__main__":
    sys.exit(cli.main())
