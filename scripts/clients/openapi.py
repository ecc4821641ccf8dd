"""Prints the OpenAPI of this tree's HTTP API, without a server."""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec
import structlog

from muster_server.control.cluster.instance import Process
from muster_server.plane.trust import Trust
from muster_server.systems.http.options import HttpOptions
from muster_server.systems.http.server import HttpFace, Serving


async def document() -> bytes:
    """The document in JSON."""

    async def nodes() -> Sequence[Process]:
        return []

    with tempfile.TemporaryDirectory() as folder:
        settings = Serving(
            options=HttpOptions(),
            bind=("127.0.0.1", 0),
            keys_file=Path(folder) / "keys.json",
            trust=Trust(),
            where=folder,
            nodes=nodes,
            version=version("muster-server"),
        )
        return msgspec.json.format(msgspec.json.encode(HttpFace(settings, structlog.get_logger()).description()))


if __name__ == "__main__":
    sys.stdout.buffer.write(asyncio.run(document()) + b"\n")
