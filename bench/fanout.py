"""The gateway's fan-out alone (PF-1, PF-4), by clients, rooms and sizes.

The gateway has the server core for itself. Proxy, broker and router run on the driver core with the clients, so the
rate is the gateway's own. The CPU is that of the gateway's process, which also reads from the broker and takes the
members' statuses. The raw sender runs on the server core too. Its receivers are drained on the driver core, and its
datagrams are as large as Muster's.

A publisher keeps some datagrams in flight for each member, not half a ring. With 1,000 members and one datagram per
message, half a ring would be minutes of work.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from bench import cpu, pin
from bench.muster import GATEWAY, PACED, PATIENCE_SECONDS, Instance
from bench.null import _null
from bench.null.sockets import Clients, clients, open_udp
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Results, Sample, interleave

FANOUTS = (100, 1_000)
LIVE_BUFFER_BYTES = 1 << 20
RAW_SHARE_MIN, BUNDLED_MIN, JOINED_MIN = 0.90, 4.0, 10.0
MEMBERS = (100, 1_000, 10_000)
ROOMS = (100, 1_000, 10_000, 100_000)
ROOM_MEMBERS = 400  # so each client is in 250 rooms of 100,000, and each room has a member
ROOM_WINDOW = 100
SIZES = (16, 200, 1_000, 4_096, 16_384, 61_440)
RATE, CPU, PER_CPU = "deliveries/s", "gateway CPU ns each", "deliveries per CPU second"
LATE = "not all was delivered in time"
RAW, SINGLE, BUNDLED, JOINED = "raw sendmmsg(64)", "one datagram each", "bundled", "bundled + GSO"
# Messages in flight to each member: 32 datagrams or super-packets.
WINDOW = {SINGLE: 32, BUNDLED: 160, JOINED: 1_600}
ON_THEIR_WAY_MAX = 2_000_000  # to all members: one or two seconds of work


@dataclass(frozen=True)
class Shape:
    """One line of a table."""

    members: int
    payload_bytes: int

    @property
    def name(self) -> str:
        return f"{self.members:,} clients, {self.payload_bytes:,} B"


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """Three instances and the raw sender take turns. The tables use the default: bundles and GSO."""
    seconds = 0.3 if quick else 1.0
    instances = {
        SINGLE: Instance("--gateway-alone", "--unbundled"),
        BUNDLED: Instance("--gateway-alone", "--single"),
        JOINED: Instance("--gateway-alone"),
    }
    with ExitStack() as stack:
        for instance in instances.values():
            stack.callback(instance.stop)
            instance.start()
        entries: list[Entry] = []
        for fanout in FANOUTS:
            shape = Shape(fanout, payload_bytes)
            size = _datagram_bytes(instances[SINGLE], shape)
            entries.append(_raw(stack, fanout, size, seconds))
            entries += [entry(kind, one, shape, seconds, WINDOW[kind]) for kind, one in instances.items()]
        results = interleave(entries, rounds, progress)
        largest = 1_000 if quick else 100_000
        shapes = [Shape(each, payload_bytes) for each in MEMBERS if each <= largest]
        shapes += [Shape(100, size) for size in SIZES]
        table = [entry("", instances[JOINED], shape, seconds, WINDOW[JOINED]) for shape in shapes]
        table += [_rooms(instances[JOINED], rooms, payload_bytes, seconds) for rooms in ROOMS if rooms <= largest]
        results.samples.update(interleave(table, 1, progress).samples)
    return (*_judged(results, payload_bytes, quick), *_table(results, table))


def _judged(results: Results, payload_bytes: int, quick: bool) -> Iterator[Case]:
    for fanout in FANOUTS:
        shape = Shape(fanout, payload_bytes)
        raw, single = _name(RAW, fanout), _name(SINGLE, shape.name)
        for figure in (PER_CPU, RATE):
            goal = Goal("PF-1", ">=", RAW_SHARE_MIN)
            mine, theirs = results.series(single, figure), results.series(raw, figure)
            yield Case.compared(f"x{fanout:,}, {SINGLE} over {RAW}, {figure}", mine, theirs, goal, quick=quick)
        for kind, bound in ((BUNDLED, BUNDLED_MIN), (JOINED, JOINED_MIN)):
            mine, theirs = (results.series(_name(one, shape.name), RATE) for one in (kind, SINGLE))
            judged = Goal("PF-4", ">=", bound) if fanout == FANOUTS[0] else None
            yield Case.compared(f"x{fanout:,}, {kind} over {SINGLE}, {RATE}", mine, theirs, judged, quick=quick)
        for kind in (SINGLE, BUNDLED, JOINED):
            yield Case.plain(f"x{fanout:,}, {kind}, {CPU}", results.series(_name(kind, shape.name), CPU))
        yield Case.plain(f"x{fanout:,}, {RAW}, lost %", results.series(raw, "lost %"))


def _table(results: Results, table: Sequence[Entry]) -> Iterator[Case]:
    for name in dict.fromkeys(entry.name for entry in table):
        for figure in results.figures(name):
            if figure != PER_CPU:
                yield Case.plain(f"{name}, {figure}", results.series(name, figure))


def _name(kind: str, what: object) -> str:
    return f"{kind} {what}".strip()


def entry(kind: str, instance: Instance, shape: Shape, seconds: float, window: int) -> Entry:
    """Saturated, with this many messages in flight to each member."""
    window = min(window, ON_THEIR_WAY_MAX // shape.members)

    def once() -> Sample:
        with instance.clients(shape.members, rooms=[instance.room(PACED)]) as engine:
            engine.saturate(shape.payload_bytes, seconds / 4, PATIENCE_SECONDS, window)
            before = instance.cpu_ns()[GATEWAY]
            done = engine.saturate(shape.payload_bytes, seconds, PATIENCE_SECONDS, window)
            used = instance.cpu_ns()[GATEWAY] - before
        each = used / max(done["delivered"], 1)
        figures = {RATE: done["delivered"] / done["wall_us"] * 1e6, CPU: each, PER_CPU: 1e9 / each}
        return Sample(figures, "" if done["complete"] else LATE)

    return Entry(_name(kind, shape.name), once)


def _rooms(instance: Instance, rooms: int, payload_bytes: int, seconds: float) -> Entry:
    """One number of sessions in more and more rooms. Each message goes to another room, so none shares a datagram."""
    each = -(-rooms // ROOM_MEMBERS)

    def once() -> Sample:
        names = [instance.room(PACED) for _ in range(rooms)]
        began = time.monotonic()
        with instance.clients(ROOM_MEMBERS, rooms=names, rooms_each=each) as engine:
            joined = ROOM_MEMBERS * each / (time.monotonic() - began)
            engine.saturate(payload_bytes, seconds / 4, PATIENCE_SECONDS, ROOM_WINDOW)
            before = instance.cpu_ns()
            done = engine.saturate(payload_bytes, seconds, PATIENCE_SECONDS, ROOM_WINDOW)
            used = {role: ns - before[role] for role, ns in instance.cpu_ns().items()}
            memory = sum(cpu.rss_bytes(pid) for pid in instance.pids.values())
        count = max(done["delivered"], 1)
        figures = {
            RATE: done["delivered"] / done["wall_us"] * 1e6,
            CPU: used[GATEWAY] / count,
            "server CPU ns each": sum(used.values()) / count,
            "joins/s, handshakes included": joined,
            "servers' memory MiB": memory / (1 << 20),
        }
        return Sample(figures, "" if done["complete"] else LATE)

    return Entry(f"{rooms:,} rooms, {ROOM_MEMBERS:,} clients in {each:,} each", once)


def _datagram_bytes(instance: Instance, shape: Shape) -> int:
    """Mean size of the members' datagrams when each message has one to itself."""
    with instance.clients(shape.members, rooms=[instance.room(PACED)]) as engine:
        done = engine.saturate(shape.payload_bytes, 0.1, PATIENCE_SECONDS, WINDOW[SINGLE])
    return int(done["datagram_bytes"] // done["datagrams"])


def _raw(stack: ExitStack, fanout: int, size: int, seconds: float) -> Entry:
    sender = stack.enter_context(open_udp())
    to = stack.enter_context(clients(fanout, buffer_bytes=LIVE_BUFFER_BYTES))

    def once() -> Sample:
        with _draining(to) as count, pin.on(pin.SERVER_CORE):
            sent, _, errors, cpu_ns, wall_ns = _null.send(
                sender.fileno(), to.addresses, to.ports, size, batch=64, seconds=seconds
            )
        if errors:
            raise OSError(f"{RAW}: {errors} sends failed")
        lost = 100 * (1 - count() / sent)
        return Sample({RATE: sent / wall_ns * 1e9, PER_CPU: sent / cpu_ns * 1e9, "lost %": lost})

    return Entry(_name(RAW, fanout), once)


@contextmanager
def _draining(to: Clients) -> Iterator[Callable[[], int]]:
    """Reads all sockets on the driver core; the yielded function then returns the number of datagrams."""
    each, stop = np.zeros(len(to.fds), dtype=np.int64), np.zeros(1, dtype=np.int32)

    def work() -> None:
        pin.pin(pin.DRIVER_CORE)
        _null.receive(to.fds, each, stop, seconds=60.0)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield lambda: int(each.sum())
    finally:
        stop[0] = 1
        thread.join()
