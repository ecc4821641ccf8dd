"""Adds or removes a replica of `muster serve`: prints the command for its host, and waits for the result.

Starts and stops nothing itself; the registry shows which nodes came and went.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from muster_server.control.cli.grow import LayerRef
from muster_server.control.cluster.instance import Process
from muster_server.control.config import load as config
from muster_server.control.errors import TRY_LATER, NotRunning, UserError
from muster_server.control.registry.places import MAIN
from muster_server.control.terminal import common
from muster_server.control.terminal.found import Nodes, RegisteredNodes, Target, found
from muster_server.control.terminal.words import say, tell
from muster_server.plane.kinds import clustered

LOOK_S: Final = 0.2
WAIT_S: Final = 300.0
"""Long enough for an operator to log in to another host and type the command, in seconds."""


def registry(config_file: Path | None, url: str | None, of: LayerRef) -> Target | None:
    """The registry of replicas that run on hosts of their own; None for replicas of the local `muster up`."""
    if url is not None:
        return Target(config_file, url)
    try:
        record = common.running(config_file)
    except NotRunning:
        configured = config.load(config_file).config.registry.url
        if not configured.startswith("zk://"):
            raise
        return Target(config_file, configured)
    if of.cluster == MAIN:
        return None
    if not record.registry:
        raise UserError("other clusters need a registry: muster up --registry embedded")
    return Target(config_file, record.registry)


async def add(where: Target, of: LayerRef, partition: int, as_json: bool) -> int:
    """Wait until one more replica runs than now."""
    async with found(where) as nodes:
        now = await _replicas(nodes, of, partition)
        before = {(each.node, each.epoch) for each in now if each.registered == "running"}
        cluster = f" --cluster {of.cluster}" if of.cluster != MAIN else ""
        _tell(f"start it on its host: muster serve {of.role}{cluster} --partition {partition} --config …")

        async def runs() -> Process | None:
            new = [each for each in await _replicas(nodes, of, partition) if (each.node, each.epoch) not in before]
            return next((each for each in new if each.registered == "running"), None)

        made = await _waited(runs, f"no further replica of partition {partition} of {of.layer} runs")
        return TRY_LATER if made is None else _say(made, of, as_json, "runs", "running")


async def remove(where: Target, of: LayerRef, partition: int, node: str, as_json: bool) -> int:
    """Wait until a replica has ended. `node` is its number or its name."""
    async with found(where) as nodes:
        replicas = await _replicas(nodes, of, partition)
        leaving = next((each for each in replicas if node in {str(each.node), each.name}), None)
        if leaving is None:
            has = ", ".join(f"{each.name} ({each.node})" for each in replicas) or "none"
            raise UserError(f"{node} is not a replica of partition {partition} of {of.layer}, whose replicas are {has}")
        if not any(each.registered == "running" for each in replicas if each != leaving):
            last = f"{leaving.name} is the last running replica of partition {partition} of {of.layer}"
            raise UserError(f"{last}: add another one first", TRY_LATER)
        _tell(f"stop it on its host, {leaving.link[0]}: SIGTERM, or systemctl stop, to {leaving.name}")

        async def gone() -> Process | None:
            replicas = await _replicas(nodes, of, partition)
            return None if any(each.node == leaving.node for each in replicas) else leaving

        left = await _waited(gone, f"{leaving.name} has not ended")
        return TRY_LATER if left is None else _say(left, of, as_json, "is gone", "removed")


async def _replicas(nodes: Nodes, of: LayerRef, partition: int) -> list[Process]:
    """The registered replicas of the partition. Raises `UserError` if there is no such partition."""
    if not isinstance(nodes, RegisteredNodes):
        raise UserError("nodes of muster serve are found through a registry: give --registry URL")
    processes = (await nodes.record()).processes
    counts = nodes.snapshot.counts
    if of.layer not in counts:
        raise UserError(f"there is no layer {of.layer}, only {', '.join(sorted(counts))}")
    if partition >= counts[of.layer].wide:
        raise UserError(f"{of.layer} has no partition {partition}; its last one is {counts[of.layer].wide - 1}")
    mine = [each for each in processes if (each.role, each.partition) == (of.role, partition)]
    return [each for each in mine if of.role not in clustered() or each.cluster == of.cluster]


async def _waited(look: Callable[[], Awaitable[Process | None]], still: str) -> Process | None:
    """Return the result; None if a signal ended the wait. Raises `UserError` when it takes too long."""
    try:
        async with asyncio.timeout(WAIT_S):
            while (seen := await look()) is None:  # noqa: ASYNC110 - it happens on another host
                await asyncio.sleep(LOOK_S)
            return seen
    except TimeoutError:
        raise UserError(f"{still} after {WAIT_S:.0f} s; check muster cluster show", TRY_LATER) from None
    except asyncio.CancelledError:
        _tell(f"{still} yet; muster cluster show")
        return None


def _tell(text: str) -> None:
    say(f"muster: {text}")


def _say(process: Process, of: LayerRef, as_json: bool, what: str, state: str) -> int:
    if as_json:
        about = {"name": process.name, "role": process.role, "node": process.node, "partition": process.partition}
        print(msgspec.json.encode({**about, "cluster": process.cluster, "state": state}).decode())
    else:
        tell(f"{process.name} {what}, a replica of partition {process.partition} of {of.layer}: id {process.node}")
    return 0
