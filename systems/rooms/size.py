"""The rooms' part of `muster size`: gateways, brokers, routers and proxies for members and messages.

Members are spread over gateways at random. No I/O.
"""

from collections.abc import Sequence
from math import ceil, log2, sqrt
from typing import Annotated, Final

import msgspec

from muster_server.control.size.measure import Work
from muster_server.control.size.plan import (
    FULL,
    Bytes,
    Machine,
    Part,
    Planned,
    Us,
    bundled,
    cost_us,
    needed,
    wire_bytes,
)

RUNS: Final = (
    ("rooms", "--members", "200", "--rooms", "200", "--publishers", "4", "--rate", "400", "--for", "15s"),
    ("rooms", "--members", "1000", "--rooms", "10", "--publishers", "4", "--rate", "400", "--for", "15s"),
    ("rooms", "--members", "100", "--rooms", "1", "--publishers", "1", "--rate", "8000", "--for", "15s"),
)
"""Messages that come alone, datagrams to many members, and many messages to few."""
SESSIONS_MAX: Final = 1_048_576
"""Sessions of one gateway."""
MEMBERSHIPS_MAX: Final = 4_194_304
"""Memberships of one broker."""
ROUTER_MEMBERSHIPS_MAX: Final = 16_777_216
"""Memberships of one router (`router.memberships_max`)."""
PARTITIONS_MAX: Final = 256
LEAST: Final = 2
"""Gateways and proxies at the least, as one of them may die."""
STANDS_MAX_S: Final = 1.0
"""A broker that stops for longer is taken for dead by its peers."""
NODES_MAX: Final = 4_096
RELAY_ABOVE: Final = 24
"""Gateways of a busy room above which some of them pass it on (`broker.relay_above`)."""
BUSY: Final = 1_000
"""Copies of a room a second from which on gateways pass it on."""
CHILD_DATAGRAMS: Final = 1 / 0.06 + 2 / 0.2
"""Datagrams a second between a broker and a gateway that gets the room by another one: reports of progress, and pings
with their answers."""
ROUNDS: Final = 200
"""Limit of steps towards the number of nodes: each has fewer, larger effects of spread."""
BASE_B: Final = 90 * 2**20
"""A node's own memory, and the arena of recent messages."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What clients want."""

    members: Annotated[float, msgspec.Meta(ge=0)] = 0
    """Connected clients that are members."""
    rooms: Annotated[float, msgspec.Meta(ge=0)] = 0
    """0: one for 100 memberships."""
    each: Annotated[float, msgspec.Meta(gt=0)] = 1
    """Rooms that a client is a member of."""
    rate: Annotated[float, msgspec.Meta(ge=0)] = 0
    """Messages published a second, in all rooms together."""
    payload: Annotated[int, msgspec.Meta(ge=1)] = 200
    """Bytes of a message."""
    keepalive_s: Annotated[float, msgspec.Meta(gt=0)] = 15
    """Interval of a silent client's keepalive."""


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Microseconds of one core, or bytes."""

    datagram_us: Us = 5.0
    """A gateway or broker, for a datagram that it sends."""
    copy_us: Us = 0.17
    """A gateway or broker, for a message in a datagram that leaves anyway."""
    publish_alone_us: Us = 50.0
    """Each of proxy and broker, for a message that comes alone."""
    publish_us: Us = 4.0
    """The same among many others."""
    keepalive_us: Us = 8.0
    """A gateway, for the keepalive of a session."""
    session_bytes: Bytes = 1_024
    room_bytes: Bytes = 1_400
    """A room at a gateway."""
    review_us: Us = 0.2
    """A broker, for each membership that it knows, when another replica of its partition goes."""
    gain_us: Us = 1.0
    """The same, for each membership that becomes its own."""
    membership_bytes: Bytes = 64
    """A membership of a gateway in a room, at a router and at a broker."""


def spread(gateways: int, members: float) -> float:
    """The number of gateways, out of all, that have one of these members or more."""
    return gateways * (1.0 - float((1.0 - 1.0 / gateways) ** members))


def relays(demand: Demand, rooms: float, at: float) -> float:
    """How many of a room's `at` gateways get it from the broker: all, or those that pass it on to the others."""
    busy = at > RELAY_ABOVE and demand.rate / rooms * at >= BUSY
    return sqrt(at) if busy else at


def measured(works: Sequence[Work]) -> dict[str, float]:
    """The costs that follow from `RUNS`."""
    alone, many, full = works
    publish_alone = alone.cpu_us["proxy"] / alone.sent
    datagram = many.cpu_us["gateway"] / many.done
    datagrams = 100 * bundled(full.done / 100 / full.took_s) * full.took_s
    copy = (full.cpu_us["gateway"] - datagrams * datagram) / full.done
    return {
        "publish_alone_us": publish_alone,
        "publish_us": full.cpu_us["proxy"] / full.sent,
        "datagram_us": datagram,
        "copy_us": max(copy, 0.02 * datagram),
    }


def plan(demand: Demand, costs: Costs, machine: Machine) -> Planned:
    """The nodes for this demand. Empty without members and messages."""
    if not demand.members and not demand.rate:
        return Planned()
    memberships = demand.members * demand.each
    rooms = demand.rooms or max(1.0, memberships / 100)
    gateways = proxies = LEAST
    brokers = partitions = 1
    replicas = 2
    made: list[Part] = []
    for _ in range(ROUNDS):
        gateway = _gateway(demand, costs, machine, rooms, gateways)
        at = spread(gateways, memberships / rooms)
        partitions, replicas = _layout(costs, rooms * at, brokers)
        broker = _broker(demand, costs, machine, rooms, at, gateways, partitions, replicas, rooms * at / partitions)
        proxy = _proxy(demand, costs, proxies)
        wanted = (max(gateways, gateway.nodes), max(brokers, broker.nodes), max(proxies, proxy.nodes))
        made = [gateway, broker, _router(costs, machine, rooms * at), proxy]
        if wanted == (gateways, brokers, proxies):
            break
        gateways, brokers, proxies = wanted
    nodes = {"gateway": gateways, "broker": partitions * replicas, "router": made[2].nodes, "proxy": proxies}
    layouts = {"broker": f"{partitions}x{replicas}", "router": made[2].layout}
    parts = [msgspec.structs.replace(part, nodes=nodes[part.role], layout=layouts.get(part.role, "")) for part in made]
    return Planned(parts=parts, notes=_notes(demand, costs, nodes, partitions), config=_config(nodes, layouts))


def _gateway(demand: Demand, costs: Costs, machine: Machine, rooms: float, nodes: int) -> Part:
    memberships = demand.members * demand.each
    delivered = demand.rate * memberships / rooms
    per_member = demand.rate * demand.each / rooms
    datagrams = demand.members * bundled(per_member)
    at = spread(nodes, memberships / rooms)
    received = demand.rate * at
    passed = received - demand.rate * relays(demand, rooms, at)
    busy_us = (
        datagrams * costs.datagram_us
        + delivered * costs.copy_us
        + nodes * bundled(received / nodes) * costs.datagram_us
        + nodes * bundled(passed / nodes) * costs.datagram_us
        + passed * costs.copy_us
        + demand.members / demand.keepalive_s * costs.keepalive_us
    )
    held = demand.members * costs.session_bytes + rooms * at * costs.room_bytes
    network = 8 * (wire_bytes(delivered, datagrams, demand.payload) + wire_bytes(received + passed, 0, demand.payload))
    shares = {
        "CPU": busy_us / 1e6,
        "sessions": demand.members / SESSIONS_MAX,
        "memory": held / max(1.0, machine.memory_bytes - BASE_B),
        "network": network / machine.network_bps,
    }
    wanted = needed(shares)
    return Part(
        role="gateway",
        nodes=wanted,
        cores=busy_us / 1e6,
        memory_bytes=held / nodes + BASE_B,
        network_bps=network / nodes,
        limits={name: share / nodes for name, share in shares.items()},
        carries="members" if demand.members else "messages/s",
        more=(demand.members or demand.rate) / max(1e-9, max(shares.values()) / FULL),
    )


def _broker(
    demand: Demand,
    costs: Costs,
    machine: Machine,
    rooms: float,
    at: float,
    gateways: int,
    partitions: int,
    replicas: int,
    memberships: float,
) -> Part:
    nodes = partitions * replicas
    sent = relays(demand, rooms, at)
    copies = demand.rate * sent
    links = gateways * nodes
    datagrams = links * bundled(copies / links)
    publish_us = cost_us(demand.rate / nodes, costs.publish_alone_us, costs.publish_us)
    reports = rooms * (at - sent) * CHILD_DATAGRAMS
    busy_us = demand.rate * publish_us + (datagrams + reports) * costs.datagram_us + copies * costs.copy_us
    network = 8 * (wire_bytes(copies, datagrams, demand.payload) + wire_bytes(demand.rate, 0, demand.payload))
    shares = {
        "CPU": busy_us / 1e6,
        "network": network / machine.network_bps,
    }
    held = memberships * costs.membership_bytes + BASE_B
    fixed = {
        "memberships": memberships / MEMBERSHIPS_MAX,
        "memory": held / machine.memory_bytes,
        "stop when one goes": _stands_s(costs, memberships, replicas) / STANDS_MAX_S,
    }
    return Part(
        role="broker",
        nodes=needed(shares),
        cores=busy_us / 1e6,
        memory_bytes=held,
        network_bps=network / nodes,
        limits={name: share / nodes for name, share in shares.items()} | fixed,
        carries="messages/s",
        more=demand.rate / max(1e-9, max(shares.values()) / FULL),
    )


def _router(costs: Costs, machine: Machine, memberships: float) -> Part:
    partitions = _power(memberships / ROUTER_MEMBERSHIPS_MAX)
    held = memberships / partitions * costs.membership_bytes + BASE_B
    return Part(
        role="router",
        nodes=2 * partitions,
        layout=f"{partitions}x2",
        cores=0.0,
        memory_bytes=held,
        network_bps=0.0,
        limits={
            "memberships": memberships / partitions / ROUTER_MEMBERSHIPS_MAX,
            "memory": held / machine.memory_bytes,
        },
        carries="memberships",
        more=0.0,
    )


def _proxy(demand: Demand, costs: Costs, nodes: int) -> Part:
    busy_us = demand.rate * cost_us(demand.rate / nodes, costs.publish_alone_us, costs.publish_us)
    network = 16 * wire_bytes(demand.rate, 0, demand.payload)
    share = busy_us / 1e6
    return Part(
        role="proxy",
        nodes=needed({"CPU": share}),
        cores=share,
        memory_bytes=BASE_B,
        network_bps=network / nodes,
        limits={"CPU": share / nodes},
        carries="messages/s",
        more=demand.rate / max(1e-9, share / FULL),
    )


def _layout(costs: Costs, memberships: float, brokers: int) -> tuple[int, int]:
    """Partitions, a power of two, and replicas of each: within a broker's memberships, and with a short stop when another
    replica goes."""
    partitions = _power(memberships / MEMBERSHIPS_MAX)
    while True:
        replicas = max(2, ceil(brokers / partitions))
        if _stands_s(costs, memberships / partitions, replicas) <= FULL * STANDS_MAX_S:
            return partitions, replicas
        partitions *= 2


def _power(share: float) -> int:
    """The power of two of partitions that divides this share of one partition's limit."""
    return 1 << max(0, ceil(log2(max(1.0, share / FULL))))


def _stands_s(costs: Costs, memberships: float, replicas: int) -> float:
    """Seconds for which a broker serves nobody when another replica of its partition goes."""
    return memberships * (costs.review_us + costs.gain_us / (replicas * (replicas - 1))) / 1e6


def _notes(demand: Demand, costs: Costs, nodes: dict[str, int], partitions: int) -> list[str]:
    notes = [one_room(demand, costs, nodes["gateway"])]
    if sum(nodes.values()) > NODES_MAX:
        notes.append(f"A node knows at most {NODES_MAX:,} nodes: split the demand over several instances.")
    elif sum(nodes.values()) > 1_000:
        notes.append("More than 1,000 nodes were not seen to start at once within minutes; start them in parts.")
    if partitions > PARTITIONS_MAX:
        notes.append(f"A layer has at most {PARTITIONS_MAX} partitions: split the demand over several instances.")
    return notes


def one_room(demand: Demand, costs: Costs, gateways: int) -> str:
    """What limits one room with members at all gateways."""
    each = FULL / (gateways * costs.datagram_us / 1e6)
    text = f"One room with members at all {gateways:,} gateways gets at most "
    if gateways <= RELAY_ABOVE:
        return (
            f"{text}{each:,.0f} messages a second that come alone; more brokers do not change that, fewer and larger"
            " gateways do."
        )
    relays = ceil(sqrt(gateways))
    children = ceil((gateways - relays) / relays)
    reports = (gateways - relays) * CHILD_DATAGRAMS * costs.datagram_us / 1e6
    broker = max(0.0, FULL - reports) / ((costs.publish_alone_us + relays * costs.datagram_us) / 1e6)
    gateway = FULL / ((demand.members / gateways + children) * costs.datagram_us / 1e6)
    return (
        f"{text}{broker:,.0f} messages a second that come alone, as {relays} gateways pass it on ({each:,.0f} without); if"
        f" all members are in it, each gateway sends at most {gateway:,.1f}, and more gateways help."
    )


def _config(nodes: dict[str, int], layouts: dict[str, str]) -> dict[str, dict[str, object]]:
    return {
        "up": {
            "gateways": nodes["gateway"],
            "proxies": nodes["proxy"],
            "brokers": layouts["broker"],
            "routers": layouts["router"],
        }
    }
