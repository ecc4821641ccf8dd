"""A system without roles, loaded by each process of an instance: nodes of the next release speak its versions.

`MUSTERTEST_NEXT` is the path of a file with the numbers of these nodes, in JSON.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

import muster_server.plane.main
from muster_server.plane.kind import RoleKind, System
from muster_server.plane.server import Server
from muster_server.plane.spec import Spec

NEXT: Final = (1, 2)
_server = muster_server.plane.main.server


def server(kind: RoleKind[Any, Any], spec: Spec, log: Any) -> Server:
    """A machine's server, of the release that its node has by now."""
    made = _server(kind, spec, log)
    engine: Any = made.engine
    if spec.node in json.loads(Path(os.environ["MUSTERTEST_NEXT"]).read_text()):
        engine.speak(*NEXT)
    return made


muster_server.plane.main.server = server

SYSTEM: Final = System(name="next", title="Next", about="the next release", kinds=(), always=True)
