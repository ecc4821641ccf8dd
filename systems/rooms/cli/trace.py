"""`muster trace ROOM`: the nodes that carry a room's messages, each link on the path, and the times.

By default it sends nothing that a member notices. It requests the room's members through each proxy; the request goes
by a broker to all gateways of the room, and the answer has the time of each hop. Only with --message it publishes a
message, which reaches a member that it joins at each gateway, as well as all others.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import quote

import msgspec
from rich.table import Table

import muster
from muster.sizes import MESSAGE_BYTES_MAX
from muster_server.control.cluster import sdk
from muster_server.control.cluster.instance import Endpoint, Process, Record
from muster_server.control.errors import TRY_LATER, UNAVAILABLE, USAGE, UserError
from muster_server.control.registry.places import MAIN
from muster_server.control.terminal import common
from muster_server.control.terminal.found import Target, client_of, everybody
from muster_server.control.terminal.lines import Line, seen, table
from muster_server.control.terminal.readings import name_silent, read_all
from muster_server.plane.kinds import clustered
from muster_server.systems.rooms.cli.ls import DOORS


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement through a node. Without `ms` it timed out."""

    node: str
    ms: float | None = None


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """A node on the path of the request, and the time until its answer, by the clock of the previous node."""

    asked_by: str
    node: str
    ms: float


class NodeAnswer(Timed, frozen=True, kw_only=True):
    hops: list[Hop] = []
    """The broker, then its gateways, slowest first. A node's time beyond its slowest hop belongs to itself and its
    link."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """The path through one cluster. `owner`: its broker that numbers the room; None if nothing was published recently."""

    cluster: str
    owner: str | None
    partition: int | None
    asked: list[NodeAnswer]
    """Per proxy: client, proxy, broker, gateways and back."""
    acknowledged: Timed | None
    """Per proxy: client, proxy, broker and back. None if nothing was published."""
    delivered: list[Timed]
    """Per gateway: client, proxy, broker, gateway, client."""
    hops: list[Line]
    """The links on the path, worst first."""


class Trace(Way, frozen=True, kw_only=True):
    """One room: the path through the first cluster, and the paths through the others."""

    room: str
    gateways: list[str]
    """The gateways with members."""
    members: int | None
    others: list[Way]


async def show(
    where: Target,
    room: str,
    cluster: str | None,
    message: str | None,
    wait_s: float,
    as_json: bool,
    draw: Callable[[Trace, Sequence[Way]], str] | None = None,
) -> int:
    """Print the trace, through one cluster or all, or draw it. Returns 0, or 75 if a node did not answer in
    time."""
    sdk.check_name(room)
    data = None if message is None else common.typed(message)
    if data is not None and len(data) > MESSAGE_BYTES_MAX:
        raise UserError(f"--message: too long: {len(data)} bytes (limit {MESSAGE_BYTES_MAX})", USAGE)
    async with everybody(where) as nodes:
        record = await nodes.record()
    place = client_of(record)
    clusters = _chosen(record, cluster)
    proxies = {name: _proxies(record, name) for name in clusters}
    if data is not None and not any(proxies.values()):
        raise UserError("no proxy runs, so nothing can be published", UNAVAILABLE)
    names = {process.node: process.name for process in record.processes}
    published, answers = dict[str, tuple[Timed, list[Timed]]](), dict[str, list[tuple[NodeAnswer, int | None]]]()
    async with AsyncExitStack() as stack:
        if data is not None:
            listening = Listening(place, record, names, room, wait_s)
            await stack.enter_async_context(listening.joined())
            for name in clusters:
                if proxies[name]:
                    published[name] = await listening.published(proxies[name][0], data)
        for name in clusters:
            answers[name] = [await _asked(place, names, each, room, wait_s) for each in proxies[name]]
        now = await asyncio.to_thread(read_all, record.processes)
        gateways, owners = await asyncio.to_thread(_known, record, room, clusters)
    others = {names[each.node] for each in record.gateways} - set(gateways)
    lines = seen(record.processes, now, where.config().links)
    counts = [count for told in answers.values() for _, count in told if count is not None]
    ways: list[Way] = []
    for name, owner in zip(clusters, owners, strict=True):
        acknowledged, delivered = published.get(name, (None, []))
        by = None if owner is None else owner.name
        ways.append(
            Way(
                cluster=name,
                owner=by,
                partition=None if owner is None else owner.partition,
                asked=[timed for timed, _ in answers[name]],
                acknowledged=acknowledged,
                delivered=delivered,
                hops=[line for line in lines if _on_the_way(line, by, gateways, others)],
            )
        )
    first: dict[str, Any] = {name: getattr(ways[0], name) for name in Way.__struct_fields__}
    members = counts[0] if counts else None
    trace = Trace(room=room, gateways=gateways, members=members, others=ways[1:], **first)
    with common.verdict_after():
        if as_json:
            common.print_json(trace)
        elif draw is not None:
            sys.stdout.write(draw(trace, ways))
        else:
            _print(trace, ways)
    times = [timed for way in ways for timed in (*way.asked, *way.delivered, way.acknowledged) if timed is not None]
    return name_silent(now) or (TRY_LATER if any(timed.ms is None for timed in times) else 0)


def _chosen(record: Record, wanted: str | None) -> list[str]:
    """The clusters to show. Raises `UserError`."""
    found = {each.cluster for each in record.processes if each.role in clustered()} or {MAIN}
    if wanted is None:
        return sorted(found, key=lambda name: (name != MAIN, name))
    if wanted not in found:
        raise UserError(f"there is no cluster {wanted}, only {', '.join(sorted(found))}")
    return [wanted]


def _proxies(record: Record, cluster: str) -> list[Endpoint]:
    mine = {each.node for each in record.processes if each.cluster == cluster}
    return [each for each in record.proxies if each.node in mine]


class Listening:
    """A member at each gateway, and the arrival time of each message."""

    def __init__(
        self, place: muster.Address, record: Record, names: Mapping[int, str], room: str, wait_s: float
    ) -> None:
        self._place, self._gateways, self._names, self._room, self._wait_s = place, record.gateways, names, room, wait_s
        self._came: dict[str, dict[object, float]] = {}
        """Arrival times by gateway, for those that accepted the join."""
        self._arrived = asyncio.Event()

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[None]:
        """Be joined while the block lasts."""
        async with AsyncExitStack() as stack:
            readers = list[asyncio.Task[None]]()
            for gateway in self._gateways:
                with suppress(UserError, muster.MusterError, TimeoutError):
                    async with asyncio.timeout(self._wait_s):
                        client = await stack.enter_async_context(sdk.connect(self._place, publishes=False, at=gateway))
                        member = await stack.enter_async_context(client.join(self._room))
                    readers.append(asyncio.create_task(self._read(self._names[gateway.node], member)))
            try:
                yield
            finally:
                for reader in readers:
                    reader.cancel()

    async def _read(self, name: str, member: sdk.Room) -> None:
        came = self._came.setdefault(name, {})
        async for batch in member.batches():
            came.update((item.position, time.monotonic()) for item in batch if sdk.is_message(item))
            self._arrived.set()

    async def published(self, proxy: Endpoint, data: bytes) -> tuple[Timed, list[Timed]]:
        """Publish through a proxy; return the times of the acknowledgement and of the arrival at each member."""
        acknowledged = Timed(node=self._names[proxy.node])
        position: object = None
        began = time.monotonic()
        with suppress(UserError, TimeoutError):
            async with asyncio.timeout(self._wait_s), sdk.connect(self._place, reads=False, at=proxy) as client:
                began = time.monotonic()
                position = await client.publish(self._room, data)
                acknowledged = Timed(node=acknowledged.node, ms=_ms(began))
                while any(position not in came for came in self._came.values()):
                    self._arrived.clear()
                    await self._arrived.wait()
        gateways = [self._names[each.node] for each in self._gateways]
        times = {name: self._came.get(name, {}).get(position) for name in gateways}
        return acknowledged, [Timed(node=name, ms=None if at is None else _ms(began, at)) for name, at in times.items()]


async def _asked(
    place: muster.Address, names: Mapping[int, str], proxy: Endpoint, room: str, wait_s: float
) -> tuple[NodeAnswer, int | None]:
    """Measure the request through one proxy, in total and per hop, and count the members."""
    name = names[proxy.node]
    try:
        async with asyncio.timeout(wait_s), sdk.connect(place, reads=False, at=proxy) as client:
            began = time.monotonic()
            members = await client.members(room, ids=False, start=0, wait=wait_s)
            took = None if members.partial else _ms(began)
            return NodeAnswer(node=name, ms=took, hops=_hops(name, names, members.hops)), members.count
    except (UserError, TimeoutError):
        return NodeAnswer(node=name), None


def _hops(proxy: str, names: Mapping[int, str], hops: Sequence[muster.Hop]) -> list[Hop]:
    """The hops as lines: the proxy asked the first node, which asked all others."""
    nodes = [names.get(hop.node, f"node {hop.node}") for hop in hops]
    askers = [proxy, *(nodes[:1] * len(nodes))]
    timed = zip(askers, nodes, hops, strict=False)
    return [Hop(asked_by=asker, node=node, ms=_ms(0, hop.seconds)) for asker, node, hop in timed]


def _ms(began: float, at: float | None = None) -> float:
    return round(1000 * ((time.monotonic() if at is None else at) - began), 3)


def _known(record: Record, room: str, clusters: Sequence[str]) -> tuple[list[str], list[Process | None]]:
    """Find, from the nodes' answers, the gateways and edges with members, and each cluster's broker of the room."""
    asking = common.Asking()
    path = f"/api/v1/rooms/{quote(room, safe='')}"
    knowing = [each for each in record.processes if each.role in {"broker"} | DOORS]
    answers = dict(zip((each.node for each in knowing), asking.all(knowing, path), strict=True))
    gateways = [each.name for each in record.processes if each.role in DOORS and answers[each.node]]
    streams = [answer["stream"] for answer in answers.values() if answer and answer.get("stream")]
    brokers = [each for each in record.processes if each.role == "broker" and answers[each.node]]
    return gateways, [_owner([each for each in brokers if each.cluster == name], streams) for name in clusters]


def _owner(brokers: Sequence[Process], streams: Sequence[list[int]]) -> Process | None:
    """The broker with the newest stream, among a cluster's brokers that know the room."""
    by_node = {each.node: each for each in brokers}
    newest = max((stream for stream in streams if stream[0] in by_node), key=lambda each: each[1:], default=None)
    return by_node[newest[0]] if newest else next(iter(brokers), None)


def _on_the_way(line: Line, owner: str | None, gateways: Sequence[str], others: Collection[str]) -> bool:
    """Whether a link is the owner's, or reports the room to routers; `others`: gateways that do not want the room."""
    ends = {line.sender, line.receiver}
    tells = line.role == "router" and line.sender in gateways
    return ends.isdisjoint(others) and (owner in ends or tells)


def _print(trace: Trace, ways: Sequence[Way]) -> None:
    console = common.out()
    for way in ways:
        through = f"{way.cluster}: " if len(ways) > 1 else ""
        of = "" if way.partition is None else f" of partition {way.partition}"
        by = f"numbered by {way.owner}{of}" if way.owner else "no owner yet: nothing was published recently"
        console.print(through + by)
    has = ", ".join(trace.gateways) or "no gateway"
    members = "" if trace.members is None else f", {common.counted(trace.members, 'member')}"
    console.print(f"wanted by {has}{members}")
    times = Table(box=None, pad_edge=False)
    for column in ("way", *(["cluster"] if len(ways) > 1 else []), "by"):
        times.add_column(column)
    times.add_column("ms", justify="right")
    for way in ways:
        rows = list[tuple[str, Timed]]()
        for asked in way.asked:
            rows.append(("request: proxy, broker, gateways and back", asked))
            rows += [(f"  {hop.asked_by} asked", Timed(node=hop.node, ms=hop.ms)) for hop in asked.hops]
        if way.acknowledged is not None:
            rows.append(("publish: proxy, broker and back", way.acknowledged))
        rows += [("delivery: proxy, broker, gateway, member", timed) for timed in way.delivered]
        for what, timed in rows:
            of_cluster = [way.cluster] if len(ways) > 1 else []
            times.add_row(what, *of_cluster, timed.node, "timed out" if timed.ms is None else f"{timed.ms:.1f}")
    console.print(times)
    hops = {(hop.sender, hop.receiver): hop for way in ways for hop in way.hops}
    console.print(table(sorted(hops.values(), key=lambda hop: hop.badness(), reverse=True)))
