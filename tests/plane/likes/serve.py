"""A likes engine behind a socket, as small as it can be: for tests of the engine, some of which kill it.

Run as `python -m tests.plane.likes.serve FOLDER`; it prints its port.
"""

import asyncio
import sys
from typing import Final

import uvloop

from muster._core import LikesEngine
from plane.likes.listener import Listener

SEGMENT_BYTES: Final = 8 << 20


async def serve(engine: LikesEngine) -> tuple[Listener, int]:
    """Serve on a free port of the loopback; the listener and the port are the answer."""
    listener = Listener(engine, 1_000)
    _, port = await listener.start(("127.0.0.1", 0), None)
    return listener, port


async def _main() -> None:
    _, port = await serve(LikesEngine(folder=sys.argv[1], segment_bytes=SEGMENT_BYTES))
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_main())
