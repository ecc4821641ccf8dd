"""The cost of a change of the map for each role, in CPU of its loop, during which it serves nothing else.

There are two parts. First, the machines in memory: gateway, router and broker with ten thousand rooms and with many
more, half of which change owner each time. Second, the engines of all four roles as Python holds them, without rooms:
the hand-over of the control plane's picture, and the machine's work on it. Each change gives one broker of the map
another state. "Linear" compares with a map of a tenth, or, per room, with fewer rooms.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from bench import loops
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample
from muster_server._engines import BrokerEngine, GatewayEngine, ProxyEngine, RouterEngine
from muster_server.control.registry.places import Node, Snapshot
from muster_server.plane.engine import Placement
from muster_server.systems.rooms.build import placing
from muster_server.systems.rooms.engine import RoomsEngine

ROOMS, NODES, BASE, TIMES = 10_000, 500, 50, 20
MANY_ROOMS, MANY_ROOMS_QUICK, LINEAR = 300_000, 100_000, 2.0
MACHINES = ("gateway", "router", "broker")
ENGINES = ("gateway", "proxy", "broker", "router")
SECRET: Final = bytes(32)
NAME_KEY: Final = SECRET[:16]


def entries(*, quick: bool) -> list[Entry]:
    machines = [_machines(BASE, ROOMS), _machines(NODES, ROOMS), _machines(BASE, _many(quick))]
    return [*machines, *(_engines(nodes) for nodes in (BASE, NODES))]


def _many(quick: bool) -> int:
    return MANY_ROOMS_QUICK if quick else MANY_ROOMS


def _machines(nodes: int, rooms: int) -> Entry:
    def once() -> Sample:
        engine = loops.ScaleEngine(rooms=rooms, partitions=1, seed=nodes)
        changes = engine.change_map(nodes, TIMES)
        spent = dict(zip(MACHINES, zip(*changes, strict=True), strict=False))
        return _sample({role: [ns / 1000 for ns in times] for role, times in spent.items()})

    return Entry(_name(nodes, rooms), once)


def _name(nodes: int, rooms: int) -> str:
    return f"map of {nodes}, {rooms:,} rooms"


def _sample(spent_us: dict[str, list[float]]) -> Sample:
    means = {role: sum(times) / len(times) for role, times in spent_us.items()}
    return Sample(means | {f"{role}, longest": max(times) for role, times in spent_us.items()})


def _engines(nodes: int) -> Entry:
    def once() -> Sample:
        return _sample({role: standing_us(role, nodes, TIMES) for role in ENGINES})

    return Entry(f"engines, map of {nodes}", once)


def standing_us(role: str, nodes: int, times: int) -> list[float]:
    """CPU of a fresh engine for each change of a map of this many nodes."""
    engine, spent = _engine(role), []
    try:
        for epoch in range(1, times + 2):
            snapshot = _snapshot(nodes, epoch)
            began = time.thread_time_ns()
            placing(engine, Placement(epoch, snapshot.entries(role), snapshot.layers(role), []))
            spent.append((time.thread_time_ns() - began) / 1000)
    finally:
        engine.close()
    return spent[1:]  # the first map is all new


def _snapshot(nodes: int, epoch: int) -> Snapshot:
    """Ten nodes are four gateways, two proxies, three brokers and a router."""
    kinds: tuple[Any, ...] = ("broker",) * 3 + ("gateway",) * 4 + ("proxy",) * 2 + ("router",)
    several = tuple(
        Node(
            node=10 + at,
            role=kinds[at % 10],
            host=f"127.2.{at // 250}.{at % 250 + 1}",
            link_port=7_000,
            state="draining" if at == 0 and epoch % 2 else "running",
        )
        for at in range(nodes)
    )
    return Snapshot(epoch, several)


def _engine(role: str) -> RoomsEngine:
    links: Any = {
        "node": 1,
        "epoch": 1,
        "link_bind": ("127.0.0.1", 0),
        "cluster_key": (1, SECRET),
        "seed": 1,
        "recv_buffer": 0,
        "send_buffer": 0,
        "payload_bytes": 1_200,
    }
    door: Any = {
        "bind": ("127.0.0.1", 0),
        "name_key": NAME_KEY,
        "server_key": SECRET,
        "reset_secret": SECRET,
    }
    match role:
        case "gateway":
            return GatewayEngine(links, door, b"{}")
        case "proxy":
            return ProxyEngine(links, door, b"{}")
        case "broker":
            return BrokerEngine(links, NAME_KEY, b"{}")
        case _:
            return RouterEngine(links, b"{}")


def cases(results: Results, *, quick: bool) -> Iterator[Case]:
    small, large = _name(BASE, ROOMS), _name(NODES, ROOMS)
    title = f"takes a map of {NODES} nodes with {ROOMS:,} rooms, its machine, µs"
    yield from _by_nodes(results, small, large, MACHINES, title, quick=quick)
    small, large = (f"engines, map of {nodes}" for nodes in (BASE, NODES))
    title = f"takes a map of {NODES} nodes without rooms, its engine, µs"
    yield from _by_nodes(results, small, large, ENGINES, title, quick=quick)
    few, many = (results.series(_name(BASE, rooms), "broker").scaled(1_000 / rooms) for rooms in (ROOMS, _many(quick)))
    title = f"broker takes a map of {BASE} nodes with {_many(quick):,} rooms, its machine"
    linear = Goal("linear", "<=", LINEAR)
    yield Case.compared(f"{title}, ns per room over that with {ROOMS:,}", many, few, linear, quick=quick)
    longest = results.series(_name(BASE, _many(quick)), "broker, longest").scaled(1 / 1_000)
    yield Case.plain(f"{title}, the longest, ms", longest)


def _by_nodes(
    results: Results, small: str, large: str, roles: Sequence[str], title: str, *, quick: bool
) -> Iterator[Case]:
    goal = Goal("linear", "<=", NODES / BASE)
    for role in roles:
        mine, base = results.series(large, role), results.series(small, role)
        yield Case.compared(f"{role} {title}, over one of {BASE}", mine, base, goal, quick=quick)
        yield Case.plain(f"{role} {title}, the longest", results.series(large, f"{role}, longest"))
