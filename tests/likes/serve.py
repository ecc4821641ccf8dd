"""A node of likes without a supervisor: for tests of the node, some of which kill it.

Run as `python -m tests.likes.serve FOLDER [KEY=VALUE …]`, with keys of `[likes]`; it prints its port.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
import uvloop

from muster_server._engines import LikesEngine
from muster_server.plane.service import Context
from muster_server.plane.spec import Spec
from muster_server.systems.likes.listener import Listener
from muster_server.systems.likes.options import LikesOptions, LikesSettings
from muster_server.systems.likes.service import LikesService

SEGMENT_BYTES: Final = 8 << 20


async def serve(engine: LikesEngine) -> tuple[Listener, int]:
    """Serve an engine on a free port of the loopback; the listener and the port are the answer."""
    listener = Listener(engine, 1_000)
    _, port = listener.start(("127.0.0.1", 0), None)
    return listener, port


def settings(folder: Path, **options: Any) -> LikesSettings:
    """What a node is told that has its log and its database in this folder."""
    return LikesSettings(
        options=msgspec.convert(
            {"segment_mib": SEGMENT_BYTES >> 20, "live_rate": 0, **options}, LikesOptions, strict=False
        ),
        folder=str(folder),
        instance_folder=str(folder),
        instance="muster",
        database=f"sqlite:///{folder}/likes.db",
        database_password_file="",
        redis_password_file="",
        users_file=str(options.get("users_file", "")),
        tls_cert_file=str(options.get("tls_cert_file", "")),
        tls_key_file=str(options.get("tls_key_file", "")),
    )


def spec(told: LikesSettings) -> Spec:
    """A node that stands alone."""
    return Spec(
        instance="muster",
        role="likes",
        node=1,
        epoch=1,
        bind=("127.0.0.1", 0),
        link_bind=None,
        admin=("127.0.0.1", 0),
        placement_epoch=0,
        nodes=[],
        layers={},
        key_id=1,
        cluster_secret_file="",
        name_key_file="",
        server_key_file=None,
        reset_secret_file=None,
        token_file=None,
        recv_buffer=0,
        send_buffer=0,
        payload_bytes=0,
        faults=None,
        seed=1,
        drain_ms=1_000,
        log_level="info",
        log_format="text",
        settings=told,
    )


def service(told: LikesSettings) -> LikesService:
    """The node itself."""
    return LikesService(spec(told), told, Context(structlog.get_logger(), lambda: None, lambda: None))


async def _main() -> None:
    options = dict(word.split("=", 1) for word in sys.argv[2:])
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    node = service(settings(Path(sys.argv[1]), **options))
    node.on_ready = lambda ready: print(node.addresses()[0][1], flush=True) if ready else None
    await node.run(asyncio.Event(), 1.0)


if __name__ == "__main__":
    uvloop.run(_main())
