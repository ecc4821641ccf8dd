"""Other systems under the same load: real servers as child processes, one compiled generator for all of them."""

from bench.peers.mosquitto import Mosquitto
from bench.peers.nats import Nats
from bench.peers.peer import Missing, Peer
from bench.peers.redis import Redis

ALL: tuple[type[Peer], ...] = (Redis, Nats, Mosquitto)

__all__ = ["ALL", "Missing", "Mosquitto", "Nats", "Peer", "Redis"]
