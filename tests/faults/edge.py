"""The HTTP face as a process of its own beside an instance: what `muster serve http` will be. Run as a program.

Arguments: folder of the instance, and options of `[http]` as JSON. Prints its URL once it serves.
"""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from control.cluster.instance import Folder, Process, find
from control.http.commands import keys_file
from control.http.edge import HttpEdge, Serving
from control.http.options import HttpOptions
from control.node import logs
from plane.auth import signing_secrets


async def run(folder: Folder, options: HttpOptions) -> None:
    """Serve until SIGTERM."""

    async def nodes() -> Sequence[Process]:
        return find(folder).processes

    settings = Serving(
        options=options,
        bind=("127.0.0.1", 0),
        keys_file=keys_file(options, folder),
        jwt_secrets=signing_secrets(str(folder.jwt_secret)),
        where=str(folder.path),
        nodes=nodes,
        version="0",
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    edge = HttpEdge(settings, logs.configure("info", "json", role="http"))
    await edge.start()
    print(edge.url, flush=True)
    try:
        await stop.wait()
    finally:
        await edge.stop()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        chosen = msgspec.convert(json.loads(sys.argv[2]), HttpOptions)
        uvloop.run(run(Folder(Path(sys.argv[1])), chosen))
