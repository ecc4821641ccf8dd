"""`systems.node` with fake engines: the role process that supervisor tests start."""

import sys

from muster_server import _engines
from muster_server.control.node import entry
from muster_server.control.node.template import started
from tests.fakes.engine import FakeEngine

for name in ("Gateway", "Proxy", "Broker", "Router"):
    setattr(_core, f"{name}Engine", FakeEngine)

if __name__ == "__main__":
    sys.exit(entry.main(started(sys.argv[1:], entry.load)))
