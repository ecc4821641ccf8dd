"""A room's paths through the nodes: a question for its members through each proxy, with the time of each hop.

Must not know a route. `muster trace` asks the same from a terminal.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import muster
from muster.instance import Endpoint
from muster_server.control.errors import UserError
from muster_server.systems.http.access import Caller
from muster_server.systems.http.problems import Problem
from muster_server.systems.rooms.http.answers import Hop, Path, Paths
from muster_server.systems.rooms.http.service import Service, problem

PATHS_MAX: Final = 16
"""Limit of proxies that one request asks, each through a client of its own."""
OPEN_S: Final = 5.0
"""Limit of the time to connect to a proxy."""


async def paths(service: Service, caller: Caller, room: str, limit: int, wait_s: float) -> Paths:
    """Ask through up to `limit` proxies, all at once. Raises `Problem`."""
    try:
        nodes, by_key = await service.base.nodes(), service.base.names()
    except UserError as error:
        raise Problem("unavailable", str(error)) from None
    names = {each.node: each.name for each in nodes}
    proxies = service.proxies()
    if not proxies:
        raise Problem("unavailable", "no proxy is known yet; try again")
    first = sorted(proxies, key=lambda each: by_key.get(each[2], ""))[:limit]
    asked = (_path(service, caller, each, by_key.get(each[2], ""), names, room, wait_s) for each in first)
    found = await asyncio.gather(*asked)
    counts = [count for _, count in found if count is not None]
    return Paths(room, counts[0] if counts else None, [path for path, _ in found], len(proxies))


async def _path(
    service: Service, caller: Caller, proxy: Endpoint, name: str, names: Mapping[int, str], room: str, wait_s: float
) -> tuple[Path, int | None]:
    name = name or f"{proxy[0]}:{proxy[1]}"
    try:
        async with asyncio.timeout(OPEN_S + wait_s), service.session(caller).at(proxy) as client:
            began = time.monotonic()
            members = await client.members(room, wait=wait_s)
            took = round(1_000 * (time.monotonic() - began), 3)
    except muster.Refused as error:
        raise problem(error, caller) from None
    except (muster.MusterError, TimeoutError):
        return Path(name, None, []), None
    nodes = [names.get(hop.node, f"node {hop.node}") for hop in members.hops]
    askers = [name, *(nodes[:1] * len(nodes))]
    hops = [
        Hop(asker, node, round(1_000 * hop.seconds, 3))
        for asker, node, hop in zip(askers, nodes, members.hops, strict=False)
    ]
    return Path(name, None if members.partial else took, hops), members.count
