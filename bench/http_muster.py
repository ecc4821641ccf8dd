"""The HTTP face beside the instance of a folder, for a bench: `python -m bench.http_muster FOLDER PORT KEYS_FILE`."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from muster_server.control.cluster.instance import Process
from muster_server.control.node import logs
from muster_server.plane.trust import Trust
from muster_server.systems.http.options import HttpOptions
from muster_server.systems.http.server import Serving, serve

ENDLESS = 1_000_000


async def run(folder: str, port: int, keys_file: str) -> None:
    """Serve until SIGTERM, with rates that nobody reaches."""

    async def nodes() -> Sequence[Process]:
        return []

    settings = Serving(
        options=HttpOptions(requests_rate=ENDLESS, messages_rate=ENDLESS, room_bytes_max=64 << 20, docs=False),
        bind=("127.0.0.1", port),
        keys_file=Path(keys_file),
        trust=Trust(),
        where=folder,
        nodes=nodes,
        version="bench",
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await serve(settings, logs.configure("error", "json"), stop)


if __name__ == "__main__":
    uvloop.run(run(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
