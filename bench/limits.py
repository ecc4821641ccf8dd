"""The kernel's cost per datagram on this machine: the null controls, side by side.

All figures are CPU nanoseconds per datagram of the working thread, unless the name has another unit.
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from bench import cpu, pin
from bench.null import _null
from bench.null.relays import chain
from bench.null.sockets import Clients, clients, number_of, open_udp
from bench.progress import Progress, silent
from bench.report import Case
from bench.rounds import Entry, Sample, interleave
from bench.targets import LATE_US_MAX

SEGMENTS = (1, 2, 4, 8, 16, 32, 64)
JOINED = (16, 64)
DRAIN_COUNT = 4096
DRAIN_TIMES = 4
BUFFER_BYTES = 8 << 20
ECHO_RATE = 10_000
RELAY_WINDOW = {1: 32, 100: 8}
LOCALHOST = np.array([number_of("127.0.0.1")], dtype=np.uint32)

REFERENCE_SEND = "sendmmsg(64) x100"
REFERENCE_DRAIN = "recvmmsg drain"


def run(*, rounds: int, quick: bool, payload_bytes: int = 200, progress: Progress = silent) -> tuple[Case, ...]:
    """Runs `rounds` interleaved rounds of every null control, a few seconds each."""
    seconds = 0.08 if quick else 0.2
    with ExitStack() as stack:
        stack.enter_context(pin.on(pin.DRIVER_CORE))
        entries = [
            *_yardsticks(stack),
            *_sends(stack, payload_bytes, seconds),
            *_drains(stack, payload_bytes),
            _echo(stack, payload_bytes, seconds),
            *_relays(stack, payload_bytes, seconds),
        ]
        results = interleave(entries, rounds, progress)
    cases = []
    references = {"send": REFERENCE_SEND, "drain": REFERENCE_DRAIN}
    for entry in entries:
        for figure in results.figures(entry.name):
            kind, _, unit = figure.partition(":")
            name = f"{entry.name}, {unit}"
            series = results.series(entry.name, figure)
            reference = references.get(kind)
            if reference and reference != entry.name:
                cases.append(Case.compared(name, series, results.series(reference, figure)))
            else:
                cases.append(Case.plain(name, series))
    return tuple(cases)


# A figure's name is "kind:unit". Figures of one kind are compared with that kind's reference.


def _yardsticks(stack: ExitStack) -> Iterator[Entry]:
    empty, ready = stack.enter_context(open_udp()), stack.enter_context(open_udp())
    ready.sendto(b"x", ready.getsockname())

    def yardstick(name: str, measure: Callable[[], float]) -> Entry:
        return Entry(name, lambda: Sample({"yardstick:ns": measure()}))

    yield yardstick("getppid", lambda: _null.getppid_ns(50_000))
    yield yardstick("recv of nothing", lambda: _null.empty_recv_ns(empty.fileno(), 50_000))
    yield yardstick("epoll_wait, none ready", lambda: _null.epoll_ns(empty.fileno(), 50_000))
    yield yardstick("epoll_wait, one ready", lambda: _null.epoll_ns(ready.fileno(), 50_000))


def _sends(stack: ExitStack, size: int, seconds: float) -> Iterator[Entry]:
    sender = stack.enter_context(open_udp())
    hundred = stack.enter_context(clients(100, discard=True))
    thousand = stack.enter_context(clients(1000, discard=True))
    live = stack.enter_context(clients(100, buffer_bytes=BUFFER_BYTES))

    def send(name: str, to: Clients, *, batch: int = 64, segments: int = 1, plain: bool = False) -> Entry:
        def once() -> Sample:
            sent, _, errors, cpu_ns, _ = _null.send(
                sender.fileno(),
                to.addresses,
                to.ports,
                size,
                batch=batch,
                segments=segments,
                plain=plain,
                seconds=seconds,
            )
            if errors:
                raise OSError(f"{name}: {errors} sends failed")
            return Sample({"send:ns": cpu_ns / sent})

        return Entry(name, once)

    yield send("sendto x100", hundred, plain=True)
    yield send(REFERENCE_SEND, hundred)
    yield send("sendto x1,000", thousand, plain=True)
    yield send("sendmmsg(64) x1,000", thousand)
    for segments in SEGMENTS:
        if segments * size <= 65_000:
            yield send(f"GSO {segments} x100", hundred, batch=16, segments=segments)

    def to_live() -> Sample:
        with receiving(live) as count:
            sent, _, _, cpu_ns, _ = _null.send(sender.fileno(), live.addresses, live.ports, size, seconds=seconds)
        got, used_ns = count()
        return Sample(
            {"send:ns": cpu_ns / sent, "live:receiver ns": used_ns / max(got, 1), "live:lost %": 100 * (1 - got / sent)}
        )

    yield Entry("sendmmsg(64) x100 live", to_live)


@contextmanager
def receiving(to: Clients, *, gro: bool = False) -> Iterator[Callable[[], tuple[int, int]]]:
    """Drains `to` in a thread on the server core; the yielded function then returns (datagrams, thread CPU ns)."""
    each, stop = np.zeros(len(to.fds), dtype=np.int64), np.zeros(1, dtype=np.int32)
    answer: list[tuple[int, int, int, int, int, int]] = []

    def work() -> None:
        pin.pin(pin.SERVER_CORE)
        answer.append(_null.receive(to.fds, each, stop, gro=gro, seconds=60.0))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield lambda: (answer[0][0], answer[0][4])
    finally:
        stop[0] = 1
        thread.join()


def _drains(stack: ExitStack, size: int) -> Iterator[Entry]:
    sender = stack.enter_context(open_udp())

    def drain(name: str, sink: socket.socket, *, segments: int, gro: bool) -> Entry:
        ports = np.array([sink.getsockname()[1]], dtype=np.uint16)

        def once() -> Sample:
            got = used_ns = 0
            for _ in range(DRAIN_TIMES):
                _null.send(sender.fileno(), LOCALHOST, ports, size, segments=segments, batch=4, count=DRAIN_COUNT)
                datagrams, _, _, truncated, cpu_ns, _ = _null.drain(sink.fileno(), gro=gro)
                if truncated:
                    raise OSError(f"{name}: {truncated} truncated")
                got += datagrams
                used_ns += cpu_ns
            return Sample({"drain:ns": used_ns / max(got, 1)})

        return Entry(name, once)

    yield drain(REFERENCE_DRAIN, stack.enter_context(open_udp(buffer_bytes=BUFFER_BYTES)), segments=1, gro=False)
    joined = stack.enter_context(open_udp(buffer_bytes=BUFFER_BYTES, gro=True))
    yield drain("GRO drain of single datagrams", joined, segments=1, gro=True)
    for segments in JOINED:
        if segments * size <= 65_000:
            yield drain(f"GRO drain of {segments} joined", joined, segments=segments, gro=True)


def _echo(stack: ExitStack, size: int, seconds: float) -> Entry:
    server = stack.enter_context(open_udp())
    server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100_000))
    client = stack.enter_context(open_udp())
    client.connect(server.getsockname())

    def serve() -> None:
        pin.pin(pin.SERVER_CORE)
        _null.echo(server.fileno(), seconds=60.0)

    def once() -> Sample:
        thread = threading.Thread(target=serve)
        thread.start()
        latency, lateness = _null.echo_client(client.fileno(), max(size, 8), ECHO_RATE, int(ECHO_RATE * seconds * 2))
        client.send(b"")
        thread.join()
        late_us = float(np.percentile(lateness, 99)) / 1000
        lost = 100 * (1 - len(latency) / len(lateness))
        p50 = float(np.median(latency)) / 1000 if len(latency) else float("inf")
        void = f"the generator was {late_us / 1000:.1f} ms late (p99)" if late_us > LATE_US_MAX else ""
        return Sample({"echo:round trip p50 µs": p50, "echo:lost %": lost}, void)

    return Entry(f"blocking echo at {ECHO_RATE:,}/s", once)


def _relays(stack: ExitStack, size: int, seconds: float) -> Iterator[Entry]:
    def relays(fanout: int, window: int) -> Entry:
        publisher = stack.enter_context(open_udp(buffer_bytes=BUFFER_BYTES))
        ends = stack.enter_context(clients(fanout, buffer_bytes=BUFFER_BYTES))
        (host, port), pids = stack.enter_context(chain(ends, seconds=600.0))
        address = number_of(host)

        def once() -> Sample:
            before = cpu.total_ns(pids)
            published, got, _, _, _, _, _ = _null.drive(
                publisher.fileno(), ends.fds, address, port, max(size, 16), window=window, seconds=seconds
            )
            lost = 100 * (1 - got / (published * fanout))
            return Sample({"relay:server ns": (cpu.total_ns(pids) - before) / max(got, 1), "relay:lost %": lost})

        return Entry(f"3 blocking relays x{fanout}", once)

    for fanout, window in RELAY_WINDOW.items():
        yield relays(fanout, window)
