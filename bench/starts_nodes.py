"""Many light registrants in one process: the registry's client of a node each, and nothing else of it.

Each takes an identity, waits for the map, registers as its role does, and follows the map. `starts.py` owns the runs: it
writes a word to the standard input, and reads one line of JSON for it.
"""

import asyncio
import gc
import json
import random
import resource
import sys
import time
from typing import Final

import structlog
import uvloop

from muster_server.control.config.zookeeper import servers
from muster_server.control.registry.directory import Directory
from muster_server.control.registry.places import Node, Snapshot
from muster_server.control.registry.zookeeper import ZooKeeperTree
from muster_server.plane.kinds import kind, partitioned

PARTITIONS: Final = 16
SESSION_S: Final = 30.0
START_SPREAD_S: Final = 0.0
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
    """One node."""

    def __init__(self, url: str, index: int, nodes: int) -> None:
        self._nodes, self._name = nodes, f"node-{index}"
        self.seen_at = self.registered_at = 0.0
        self.maps = 0
        of, host = role(index), f"10.1.{index // 250}.{index % 250 + 1}"
        door = kind(of).certified
        self._tree = ZooKeeperTree(servers(url, session_s=SESSION_S))
        self.directory = Directory(self._tree, structlog.get_logger(), dice=random.Random(index))
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

    @property
    def requests(self) -> int:
        """Requests to the registry."""
        return self._tree.requests

    async def start(self) -> None:
        """Register, as a node's process does."""
        await self.directory.__aenter__()
        identity = await self.directory.identity(self._name)
        await self.directory.known()
        self._node = self._node.__replace__(identity) if False else _numbered(self._node, identity.node, identity.epoch)
        self.directory.announce(self._name, self._node, PARTITIONS)
        await self.directory.settled()
        self.registered_at = time.monotonic()
        if self._node.state == "init":
            self.directory.update("running")

    def weigh(self, weight: int) -> None:
        """Change this node's entry."""
        self.directory.weigh(weight)

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        self.maps += 1
        if not self.seen_at and len(snapshot.nodes) >= self._nodes:
            if all(node.state == "running" for node in snapshot.nodes):
                self.seen_at = time.monotonic()


def _numbered(node: Node, number: int, epoch: int) -> Node:
    import msgspec

    return msgspec.structs.replace(node, node=number, epoch=epoch)


async def run(url: str, first: int, count: int, nodes: int) -> None:
    several = [Registrant(url, index, nodes) for index in range(first, first + count)]
    gc.freeze()
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    say(ready=True)
    began = cpu_s()
    while word := (await reader.readline()).decode().split():
        match word[0]:
            case "start":
                try:
                    async with asyncio.timeout(float(word[1])):
                        await asyncio.gather(*(each.start() for each in several))
                        while not all(each.seen_at for each in several):
                            await asyncio.sleep(0.05)
                except TimeoutError:
                    for each in several:
                        d = each.directory
                        r = d._readings
                        if r.keeper.leads:
                            d._task.print_stack(file=sys.stderr)
                            k=r.keeper; sys.stderr.write(f"KEEPER {k._editor} {k._version} {k._beats} {k.written} next={k._next_at-time.monotonic()} stirred={d._stirred} timer={d._timer} {asyncio.get_running_loop().time()}\n")
                        sys.stderr.write(f"{each._name} {each._node.role} reg={each.registered_at:.1f} maps={each.maps} n={len(d.snapshot.nodes)} running={sum(x.state=='running' for x in d.snapshot.nodes)} follows={r.follows} ver={r._copy.version} leads={r.keeper.leads} name={r.keeper._name} barrier={r._barrier} trouble={d.trouble} req={each.requests} refused={list(d.refused.items())[:2]}\n")
                    raise
                say(
                    registered=[each.registered_at for each in several],
                    seen=[each.seen_at for each in several],
                    requests=[each.requests for each in several],
                    maps=[each.maps for each in several],
                    cpu=cpu_s() - began,
                )
            case "weigh":
                several[0].weigh(int(word[1]))
                say(done=True)
            case "cpu":
                say(cpu=cpu_s(), maps=sum(each.maps for each in several), requests=sum(each.requests for each in several))
            case "look":
                say(
                    nodes=[len(each.directory.snapshot.nodes) for each in several],
                    state=[str(each.directory.trouble) for each in several if each.directory.trouble][:3],
                    requests=[each.requests for each in several],
                )
    sys.exit(0)


def cpu_s() -> float:
    """CPU of this process so far, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def say(**told: object) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40), logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    uvloop.run(run(sys.argv[1], *map(int, sys.argv[2:5])))
