"""The servers of `muster bench edge`: an edge of Muster, and Centrifugo where its program is there."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import cpu, pin
from bench.child import Child, free_port, listens, private_directory
from bench.muster import Instance

CENTRIFUGO: Final = "centrifugo"
GET: Final = "go install github.com/centrifugal/centrifugo/v6@latest"
"""How to get the peer."""
QUEUE_BYTES: Final = 64 << 20
"""A client's queue at Centrifugo: with its default of 1 MiB it cuts clients of a saturated run."""
SETTINGS: Final = {
    "systems.enabled": "edge",
    "edge.anonymous_rights": "read,publish",
    "edge.command_rate": 1_000_000,
    "edge.command_burst": 1_000_000,
}


@dataclass(frozen=True)
class Server:
    """One server that runs."""

    name: str
    port: int
    cpu_ns: Callable[[], int]
    """CPU of all its processes."""
    rss_bytes: Callable[[], int]
    """Memory of the process that has the sessions."""


def muster(stack: ExitStack) -> Server:
    """An edge with its broker and router, on the servers' core."""
    instance = Instance(settings=SETTINGS)
    stack.callback(instance.stop)
    instance.start()
    bind = next(each.bind for each in instance.record.processes if each.role == "edge")
    assert isinstance(bind, tuple)
    edge = instance.pids["edge"]
    return Server("muster", bind[1], lambda: sum(instance.cpu_ns().values()), lambda: cpu.rss_bytes(edge))


def centrifugo(stack: ExitStack) -> Server | None:
    """Centrifugo with its memory engine, without history; None: it is not there."""
    program = shutil.which(
        CENTRIFUGO, path=os.pathsep.join((os.environ.get("PATH", ""), str(Path.home() / "go" / "bin")))
    )
    if program is None:
        return None
    directory, port = Path(stack.enter_context(private_directory(CENTRIFUGO))), free_port()
    settings = {
        "http_server": {"address": "127.0.0.1", "port": str(port)},
        "client": {"insecure": True, "allowed_origins": ["*"], "queue_max_size": QUEUE_BYTES},
        "log": {"level": "error"},
    }
    file = directory / "config.json"
    file.write_text(json.dumps(settings))
    environment = {"GOMAXPROCS": "1"}
    words = [program, "--config", str(file)]
    child = Child(CENTRIFUGO, words, core=pin.SERVER_CORE, directory=directory, environment=environment)
    stack.callback(child.stop)
    child.wait_until(lambda: listens(port))
    return Server(CENTRIFUGO, port, lambda: cpu.process_ns(child.pid), lambda: cpu.rss_bytes(child.pid))
