"""A node of likes among several, without a supervisor: for tests that kill it, stop it and let it go on.

Run as `python -m tests.likes.serve_node FOLDER NODE REGISTRY [KEY=VALUE …]`: the folder of the logs, its number, the
folder of an embedded registry or a `zk://` URL, and keys of `[likes]`. It prints its port, and its lines of state.
"""

import asyncio
import signal
import sys
import time
from pathlib import Path

import msgspec
import structlog
import uvloop

from muster_server.plane.service import Context
from muster_server.plane.spec import Registration
from muster_server.systems.likes.node import LikesNode
from tests.likes import serve

SESSION_MS = 4_000


async def main() -> None:
    """Until SIGTERM."""
    folder, number, registry, *words = sys.argv[1:]
    options = dict(word.split("=", 1) for word in words)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    partitions = int(options.get("partitions", 8))
    database = options.pop("database", f"sqlite:///{folder}/likes-{{partition}}.db")
    told = serve.settings(Path(folder), **options)
    told = msgspec.structs.replace(told, partitions=partitions, database=database)
    where = Registration(
        url=registry if registry.startswith("zk://") else "embedded",
        folder=registry,
        name=f"likes-{number}",
        partition=0,
        client=None,
        public_key="",
        session_ms=SESSION_MS,
        auth="none",
        user="",
        password_file="",
    )
    spec = msgspec.structs.replace(serve.spec(told), node=int(number), epoch=int(time.time() * 1000), registry=where)
    node = LikesNode(spec, told, Context(structlog.get_logger().bind(node=number), lambda: None, lambda: "connected"))
    node.on_ready = lambda ready: print(node.addresses()[0][1], flush=True) if ready else None
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await node.run(stop, 1.0)


if __name__ == "__main__":
    uvloop.run(main())
