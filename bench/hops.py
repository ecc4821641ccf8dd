"""The whole way, client -> proxy -> broker -> gateway -> client, against three blocking raw relays (PF-11).

Once with a process for each role, and once with one for all. Measures CPU of all server processes per delivered message.
The relays pass on datagrams of the same size at the same rate. They answer their sources as often as Muster acknowledges,
and the clients answer the last relay as often as members send a status; a run before the rounds counts both. The relays know
no room, seal nothing, repair nothing, and cannot bundle when saturated. Printed beside them: the same without any answers.
Below: the cost of waiting for acknowledgements.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from bench import cpu, pin, publishing
from bench.asked import metrics
from bench.muster import APART, TOGETHER, Instance, Muster, drive
from bench.null import _null
from bench.null.relays import chain
from bench.null.sockets import clients, number_of, open_udp
from bench.peers.compare import MUSTER, ONE_PROCESS
from bench.progress import Progress, silent
from bench.report import Case, Goal
from bench.rounds import Entry, Sample, interleave
from bench.targets import Load

FANOUTS = (1, 100, 1_000)
RATE = 10_000.0  # deliveries a second
RELAY_WINDOW = {1: 32, 100: 8, 1_000: 2}
BOUNDS = {APART: 1.3, TOGETHER: 0.6}
SIZE_BY_HAND = 90  # header, frames and tag of a single message, where they cannot be measured
BUFFER_BYTES = 8 << 20
CPU_EACH, LOST = "server CPU ns each", "lost %"


@dataclass(frozen=True)
class Acknowledged:
    """Messages per acknowledgement to publishers, messages per status of a member (0: hardly any), and datagram size of
    one message."""

    every: int
    by_members: int
    datagram_bytes: int


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """Per load: Muster apart and together, the relays, and the relays without acknowledgements."""
    seconds = 0.4 if quick else 1.5
    loads = [
        load
        for fanout in FANOUTS
        for load in (
            Load("paced", fanout, payload_bytes, rate=RATE, seconds=seconds, warm_up_seconds=0.2),
            Load("saturated", fanout, payload_bytes, seconds=seconds, warm_up_seconds=0.2),
        )
    ]
    instances = {layout: Instance(settings={"up.processes": layout}) for layout in BOUNDS}
    instance = instances[APART]
    with ExitStack() as stack:
        for each in instances.values():
            stack.callback(each.stop)
            each.start()
        acknowledged = {load: _acknowledged(instance, load) for load in loads}
        entries: list[Entry] = []
        for load in loads:
            entries += [_muster(Muster(each, _named(layout)), load) for layout, each in instances.items()]
            none = replace(acknowledged[load], every=0, by_members=0)
            entries += [_relays(stack, load, wanted) for wanted in (acknowledged[load], none)]
        entries += publishing.entries(instance, payload_bytes, seconds)
        results = interleave(entries, rounds, progress)
    cases: list[Case] = []
    for load in loads:
        theirs, bare = _names(load)
        series = results.series(theirs, CPU_EACH)
        for layout, bound in BOUNDS.items():
            mine, goal = f"{_named(layout)} {load.name}", Goal("PF-11", "<=", bound)
            cases.append(
                Case.compared(
                    f"{mine}, {CPU_EACH} over three relays", results.series(mine, CPU_EACH), series, goal, quick=quick
                )
            )
            cases.append(Case.plain(f"{mine}, {LOST}", results.series(mine, LOST)))
        cases.append(
            Case.compared(f"{theirs}, {CPU_EACH} over none acknowledged", series, results.series(bare, CPU_EACH))
        )
        roles, mine = ("proxy", "broker", "gateway"), f"{_named(APART)} {load.name}"
        cases += [Case.plain(f"{mine}, {role} CPU ns each", results.series(mine, role)) for role in roles]
        cases.append(Case.plain(f"{theirs}, {LOST}", results.series(theirs, LOST)))
    return (*cases, *publishing.cases(results))


def _names(load: Load) -> Sequence[str]:
    return f"relays {load.name}", f"relays {load.name}, none acknowledged"


def _named(layout: str) -> str:
    return MUSTER if layout == APART else ONE_PROCESS


def _muster(target: Muster, load: Load) -> Entry:
    def once() -> Sample:
        done = target.run(load)
        void = f"the generator was {done.late_p99_us / 1000:.1f} ms late (p99)" if done.void else ""
        each = max(done.deliveries, 1)
        figures = {CPU_EACH: done.cpu_ns_each, LOST: 100 * done.lost / max(1, done.lost + done.deliveries)}
        return Sample(figures | {role: used / each for role, used in done.role_cpu_ns.items()}, void)

    return Entry(f"{target.name} {load.name}", once)


def _relays(stack: ExitStack, load: Load, wanted: Acknowledged) -> Entry:
    publisher = stack.enter_context(open_udp(buffer_bytes=BUFFER_BYTES))
    ends = stack.enter_context(clients(load.fanout, buffer_bytes=BUFFER_BYTES))
    (host, port), pids = stack.enter_context(chain(ends, ack_every=wanted.every, seconds=3600.0))
    rate = load.rate / load.fanout if load.mode == "paced" else None

    def once() -> Sample:
        with pin.on(pin.DRIVER_CORE):
            before = cpu.total_ns(pids)
            published, got, *_ = _null.drive(
                publisher.fileno(),
                ends.fds,
                number_of(host),
                port,
                wanted.datagram_bytes,
                rate=rate,
                window=RELAY_WINDOW[load.fanout],
                seconds=load.seconds,
                answer_every=wanted.by_members,
            )
            used = cpu.total_ns(pids) - before
        return Sample({CPU_EACH: used / max(got, 1), LOST: 100 * (1 - got / (published * load.fanout))})

    return Entry(_names(load)[0 if wanted.every else 1], once)


# ---------------------------------------------------------------- what Muster really does


def _acknowledged(instance: Instance, load: Load) -> Acknowledged:
    """Read from the counters of proxy and gateway, over a short run."""

    def counted() -> dict[str, float]:
        nodes = [process for process in instance.record.processes if process.role in ("proxy", "gateway")]
        return {f"{node.role} {name}": value for node in nodes for name, value in metrics(node).items()}

    with instance.clients(load.fanout, rooms=[instance.room("paced")]) as engine:
        drive(instance, engine, replace(load, warm_up_seconds=0.0, seconds=0.3))  # joins get answers of their own
        before = counted()
        drive(instance, engine, replace(load, warm_up_seconds=0.0, seconds=0.3))
        after = counted()

    def per_answer(messages: str, answers: str) -> int:
        grown = {
            name: sum(after[key] - before.get(key, 0.0) for key in after if name in key) for name in (messages, answers)
        }
        return max(1, round(grown[messages] / grown[answers])) if grown[answers] else 0

    return Acknowledged(
        max(1, per_answer("proxy muster_messages_forwarded", "proxy muster_acknowledgements_forwarded")),
        per_answer("gateway muster_messages_sent", "gateway muster_datagrams_received"),
        load.payload_bytes + SIZE_BY_HAND,
    )
