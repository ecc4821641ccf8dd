"""`muster trace ROOM`: by whom a room's messages go, how each link on the way is, and how long it takes.

What it asks of itself no member notices: the question who is in the room, through each proxy, which goes by its broker to
all gateways that have it. Only with a message is something published, to a member joined at each gateway as to all others.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from urllib.parse import quote

import msgspec
from rich.table import Table

import muster
from control import sdk
from control.commands import common
from control.commands.found import Where, client_of, found
from control.commands.links import Line, seen, table
from control.commands.readings import name_silent, read_all
from control.errors import TRY_LATER, UNAVAILABLE, UserError
from control.instance import Endpoint, Record


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """What was timed by way of one node. Without `ms` it was not done in time."""

    node: str
    ms: float | None = None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One room. `owner` is the broker that numbers it, None where nothing has been published lately."""

    room: str
    owner: str | None
    partition: int | None
    gateways: list[str]
    """Those that have members."""
    members: int | None
    asked: list[Timed]
    """By proxy: client, proxy, broker, gateways and back."""
    acknowledged: Timed | None
    """By proxy: client, proxy, broker and back. None where nothing was published."""
    delivered: list[Timed]
    """By gateway: client, proxy, broker, gateway, client."""
    hops: list[Line]
    """The links on the way, worst first."""


async def show(where: Where, room: str, message: str | None, wait_s: float, as_json: bool) -> int:
    """Print the trace: 0, or 75 where somebody did not answer in time."""
    sdk.check_name(room)
    async with found(where) as nodes:
        record = await nodes.record()
    place = client_of(record)
    if message is not None and not record.proxies:
        raise UserError("there is no proxy to publish through", UNAVAILABLE)
    names = {process.node: process.name for process in record.processes}
    async with AsyncExitStack() as stack:
        acknowledged, delivered = None, list[Timed]()
        if message is not None:
            members = {names[each.node]: await _member(stack, place, each, room, wait_s) for each in record.gateways}
            acknowledged, delivered = await _published(place, record, names, members, room, message.encode(), wait_s)
        answers = [await _asked(place, names[each.node], each, room, wait_s) for each in record.proxies]
        now = await asyncio.to_thread(read_all, record.processes)
        owner, partition, gateways = await asyncio.to_thread(_way, record, room)
    others = {names[each.node] for each in record.gateways} - set(gateways)
    trace = Trace(
        room=room,
        owner=owner,
        partition=partition,
        gateways=gateways,
        members=next((count for _, count in answers if count is not None), None),
        asked=[timed for timed, _ in answers],
        acknowledged=acknowledged,
        delivered=delivered,
        hops=[
            line
            for line in seen(record.processes, now, where.config().links)
            if _on_the_way(line, owner, gateways, others)
        ],
    )
    if as_json:
        common.print_json(trace)
    else:
        _print(trace)
    times = [*trace.asked, *delivered, *([acknowledged] if acknowledged else [])]
    return name_silent(now) or (TRY_LATER if any(timed.ms is None for timed in times) else 0)


async def _member(
    stack: AsyncExitStack, place: muster.Address, gateway: Endpoint, room: str, wait_s: float
) -> sdk.Room | None:
    """Join at one gateway until the stack ends. None: it does not let us in time."""
    try:
        async with asyncio.timeout(wait_s):
            client = await stack.enter_async_context(sdk.connect(place, publishes=False, at=gateway))
            return await stack.enter_async_context(client.join(room))
    except (UserError, muster.MusterError, TimeoutError):
        return None


async def _published(
    place: muster.Address,
    record: Record,
    names: Mapping[int, str],
    members: Mapping[str, sdk.Room | None],
    room: str,
    data: bytes,
    wait_s: float,
) -> tuple[Timed, list[Timed]]:
    """Publish through the first proxy that takes it; when it was acknowledged, and came to each member."""
    came: dict[str, dict[object, float]] = {name: {} for name in members}
    arrived = asyncio.Event()

    async def read(name: str, member: sdk.Room) -> None:
        async for batch in member.batches():
            came[name].update((item.position, time.monotonic()) for item in batch if sdk.is_message(item))
            arrived.set()

    readers = [asyncio.create_task(read(name, member)) for name, member in members.items() if member is not None]
    proxy = record.proxies[0]
    acknowledged = Timed(node=names[proxy.node])
    position: object = None
    began = time.monotonic()
    try:
        async with asyncio.timeout(wait_s), sdk.connect(place, reads=False, at=proxy) as client:
            began = time.monotonic()
            position = await client.publish(room, data)
            acknowledged = Timed(node=acknowledged.node, ms=_ms(began))
            while any(position not in came[name] for name, member in members.items() if member is not None):
                arrived.clear()
                await arrived.wait()
    except (UserError, TimeoutError):
        pass
    finally:
        for reader in readers:
            reader.cancel()
    times = {name: at[position] for name, at in came.items() if position in at}
    return acknowledged, [Timed(node=name, ms=_ms(began, times[name]) if name in times else None) for name in members]


async def _asked(
    place: muster.Address, name: str, proxy: Endpoint, room: str, wait_s: float
) -> tuple[Timed, int | None]:
    """How long the question takes through one proxy, and how many members there are."""
    try:
        async with asyncio.timeout(wait_s), sdk.connect(place, reads=False, at=proxy) as client:
            began = time.monotonic()
            members = await client.members(room, ids=False, start=0, wait=wait_s)
            return Timed(node=name, ms=None if members.partial else _ms(began)), members.count
    except (UserError, TimeoutError):
        return Timed(node=name), None


def _ms(began: float, at: float | None = None) -> float:
    return round(1000 * ((time.monotonic() if at is None else at) - began), 3)


def _way(record: Record, room: str) -> tuple[str | None, int | None, list[str]]:
    """The broker that numbers the room, its partition, and the gateways that have members, by what the nodes know."""
    asking = common.Asking()
    path = f"/api/v1/rooms/{quote(room, safe='')}"
    roles = ("broker", "gateway")
    answers = {each.node: asking.get(each, path) for each in record.processes if each.role in roles}
    gateways = [each.name for each in record.processes if each.role == "gateway" and answers[each.node]]
    streams = [answer["stream"] for answer in answers.values() if answer and answer.get("stream")]
    newest = max(streams, key=lambda stream: stream[1:], default=None)
    brokers = [each for each in record.processes if each.role == "broker" and answers[each.node]]
    owner = next((each for each in brokers if newest and each.node == newest[0]), brokers[0] if brokers else None)
    return (None, None, gateways) if owner is None else (owner.name, owner.partition, gateways)


def _on_the_way(line: Line, owner: str | None, gateways: Sequence[str], others: Collection[str]) -> bool:
    """Whether a link is the owner's, or tells routers of the room; `others` are gateways that do not want it."""
    ends = {line.sender, line.receiver}
    tells = line.role == "router" and line.sender in gateways
    return ends.isdisjoint(others) and (owner in ends or tells)


def _print(trace: Trace) -> None:
    console = common.out()
    of = "" if trace.partition is None else f" of partition {trace.partition}"
    console.print(
        f"numbered by {trace.owner}{of}" if trace.owner else "numbered by nobody yet: nothing was published lately"
    )
    has = ", ".join(trace.gateways) or "no gateway"
    members = "" if trace.members is None else f", {common.counted(trace.members, 'member')}"
    console.print(f"wanted by {has}{members}")
    times = Table(box=None, pad_edge=False)
    for column in ("way", "by"):
        times.add_column(column)
    times.add_column("ms", justify="right")
    rows = [("asked: proxy, broker, gateways and back", timed) for timed in trace.asked]
    if trace.acknowledged is not None:
        rows.append(("published: proxy, broker and back", trace.acknowledged))
    rows += [("delivered: proxy, broker, gateway, member", timed) for timed in trace.delivered]
    for way, timed in rows:
        times.add_row(way, timed.node, "not in time" if timed.ms is None else f"{timed.ms:.1f}")
    console.print(times)
    console.print(table(trace.hops))
