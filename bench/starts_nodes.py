"""Many light registrants in one process: the registry's client of a node each, and nothing else of it.

Each takes an identity, waits for the map, registers as its role does, and follows the map. `starts.py` owns the runs: it
writes a word to the standard input, and reads a line of JSON for it.
"""

import asyncio
import gc
import json
import random
import resource
import sys
import time
from typing import Final

import msgspec
import structlog
import uvloop

from muster_server.control.config.zookeeper import servers
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.places import Node, Snapshot
from muster_server.control.registry.zookeeper import ZooKeeperTree
from muster_server.plane.kinds import kind, partitioned

PARTITIONS: Final = 16
SESSION_S: Final = 30.0
SHARES: Final = (("broker", 37), ("router", 5), ("proxy", 1))
"""Nodes of each role among a hundred, as `muster size` gives them for 100 million clients; the others are gateways."""


def role(index: int) -> str:
    """The role of the node with this index."""
    place = index * 61 % 100
    for each, share in SHARES:
        if place < share:
            return each
        place -= share
    return "gateway"


class Registrant:
    """One node of `nodes`."""

    def __init__(self, url: str, index: int, nodes: int) -> None:
        self._nodes, self._name = nodes, f"node-{index}"
        self.complete = asyncio.Event()
        """Its map has all nodes, and all run."""
        self.seen_at = 0.0
        self.maps = 0
        of, host = role(index), f"10.1.{index // 250}.{index % 250 + 1}"
        door = kind(of).certified
        self.tree = ZooKeeperTree(servers(url, session_s=SESSION_S))
        self.directory = Directory(self.tree, structlog.get_logger(), dice=random.Random(index))
        self.directory.on_snapshot = self._on_snapshot
        self._node = Node(
            1,
            of,
            host,
            7_000,
            partition=index % PARTITIONS if of in partitioned() else 0,
            state="init" if kind(of).registers == "starting" else "running",
            client=(host, 7_001) if door else None,
            public_key=random.Random(index).randbytes(32).hex() if door else "",
            admin=(host, 7_002),
            version="1.0.0",
            name=self._name,
        )

    async def start(self) -> None:
        """Register, as a node's process does, and wait until all are there."""
        await self.directory.__aenter__()
        taken = await self.directory.identity(self._name)
        await self.directory.known()
        self._node = msgspec.structs.replace(self._node, node=taken.node, epoch=taken.epoch)
        self.directory.announce(self._name, self._node, PARTITIONS)
        await self.directory.settled()
        if self._node.state == "init":
            self.directory.update("running")
        await self.complete.wait()

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        self.maps += 1
        if len(snapshot.nodes) >= self._nodes and all(node.state == "running" for node in snapshot.nodes):
            self.seen_at = self.seen_at or time.monotonic()
            self.complete.set()


async def run(url: str, first: int, count: int, nodes: int) -> None:
    """Do what the standard input says, until its end."""
    gc.disable()  # it would look at the objects of all of them for each: a process of one node has few
    several = [Registrant(url, index, nodes) for index in range(first, first + count)]
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    say(ready=True)
    while word := (await reader.readline()).decode().split():
        match word[0]:
            case "start":
                await asyncio.gather(*(each.start() for each in several))
                say(seen=max(each.seen_at for each in several), requests=[each.tree.requests for each in several])
            case "weigh":
                several[0].directory.weigh(int(word[1]))
                await several[0].directory.settled()
                say()
            case "count":
                say(cpu=cpu_s(), maps=sum(each.maps for each in several))


def cpu_s() -> float:
    """CPU of this process so far, of all its threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def say(**told: object) -> None:
    """Answer."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(50),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    uvloop.run(run(sys.argv[1], *map(int, sys.argv[2:5])))
