"""The HTTP face beside the instance of a folder, for a bench: `python -m bench.http_muster FOLDER PORT KEYS_FILE`."""

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from control.cluster.instance import Process
from control.http.edge import Serving, serve
from control.http.options import HttpOptions
from control.node import logs
from plane.trust import Trust

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
