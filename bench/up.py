"""`muster up` with `bench.node` for its processes: for options that the plain command has not and need not have."""

import asyncio
import contextlib
import signal
import sys

from muster_server.control.cluster.supervisor import Supervisor
from muster_server.control.config import load as config
from muster_server.control.config.options import UP
from muster_server.control.node import logs


async def up(options: list[str]) -> None:
    """Runs until SIGTERM. `options` are those of `bench.node`."""
    settings = config.load(None, profile=UP).config
    log = logs.configure(settings.log.level, settings.log.format, role="supervisor", instance=settings.instance.name)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Supervisor(settings, log, command=[sys.executable, "-m", "bench.node", *options]):
        await stop.wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(up(sys.argv[1:]))
