"""Other systems under the same load: real servers as child processes, one compiled generator for all of them."""

from pathlib import Path

from bench import kernels

kernels.build(Path(__file__).parent)

from bench.peers.mosquitto import Mosquitto  # noqa: E402 - needs the kernel
from bench.peers.nats import Nats  # noqa: E402
from bench.peers.peer import Missing, Peer  # noqa: E402
from bench.peers.redis import Redis  # noqa: E402

ALL: tuple[type[Peer], ...] = (Redis, Nats, Mosquitto)

__all__ = ["ALL", "Missing", "Mosquitto", "Nats", "Peer", "Redis"]
