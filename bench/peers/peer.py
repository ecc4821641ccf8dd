"""A peer: a server found on this machine, started as a child on the server core, driven by the compiled generator.

Each peer's own part (binary, configuration, bytes of the protocol) is in a file of its own; this file knows none.
"""

import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bench import cpu, pin
from bench.child import Child, free_port, listens, private_directory
from bench.null.sockets import allow_files
from bench.peers._generator import Generator
from bench.targets import Latency, Load, Result
from muster_server.pyext.histogram import Histogram

if TYPE_CHECKING:
    from bench.peers._generator import Total

ROOM = "bench"
SECONDS_NS_MAX = 3_600_000_000_000
ANSWER_SECONDS = 10.0
WARM_UP_WINDOW = 16
WINDOW_SECONDS = 0.5


class Missing(Exception):
    """The server's binary is not on this machine; the message says how to install it."""


class Peer(ABC):
    """Implements `bench.targets.Target`."""

    name: str
    binaries: ClassVar[Sequence[str]]
    package: ClassVar[str]
    lines: ClassVar[bool] = False  # the server may put lines of its own between deliveries

    def __init__(self) -> None:
        self._resources = ExitStack()
        self._child: Child | None = None
        self.port = 0

    # -- the part of each peer

    @abstractmethod
    def command(self, binary: str, directory: Path) -> list[str]:
        """The server's command line for `self.port`; may write a configuration into `directory`."""

    def environment(self) -> dict[str, str]:
        return {}

    @abstractmethod
    def subscribe(self, sock: socket.socket, index: int) -> None:
        """Makes a fresh connection a subscriber, and reads the server's answers."""

    @abstractmethod
    def greet(self, sock: socket.socket) -> None:
        """Makes a fresh connection a publisher."""

    @abstractmethod
    def publish(self, payload_bytes: int) -> tuple[bytes, bytes]:
        """The bytes before and after a payload on the way to the server."""

    @abstractmethod
    def delivery(self, payload_bytes: int) -> tuple[bytes, bytes]:
        """The bytes before and after a payload on the way to a subscriber."""

    # -- the target

    @classmethod
    def find(cls) -> str:
        """The path of the binary; raises Missing."""
        for name in cls.binaries:
            found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/local/bin")
            if found:
                return found
        raise Missing(f"{cls.binaries[0]} is not installed: apt-get install {cls.package}")

    def start(self) -> Sequence[int]:
        binary = self.find()
        directory = Path(self._resources.enter_context(private_directory(self.package)))
        self.port = free_port()
        self._child = Child(
            self.package,
            self.command(binary, directory),
            core=pin.SERVER_CORE,
            directory=directory,
            environment=self.environment(),
        )
        self._resources.callback(self._child.stop)
        self._child.wait_until(lambda: listens(self.port))
        return [self._child.pid]

    def stop(self) -> None:
        self._resources.close()
        self._child = None

    @contextmanager
    def connections(self, fanout: int) -> Iterator[tuple[socket.socket, list[socket.socket]]]:
        """One publisher and `fanout` subscribers, all known to the server; closed at the end."""
        allow_files(fanout + 256)
        with ExitStack() as stack:
            subscribers = []
            for index in range(fanout):
                sock = stack.enter_context(self._connect())
                self.subscribe(sock, index)
                subscribers.append(sock)
            publisher = stack.enter_context(self._connect())
            self.greet(publisher)
            yield publisher, subscribers

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def run(self, load: Load) -> Result:
        if self._child is None:
            raise RuntimeError(f"{self.name} is not started")
        with self.connections(load.fanout) as (publisher, subscribers), pin.on(pin.DRIVER_CORE):
            for sock in (publisher, *subscribers):
                sock.setblocking(False)
            generator = Generator(
                publisher.fileno(),
                np.array([sock.fileno() for sock in subscribers], dtype=np.int32),
                self.publish(load.payload_bytes),
                self.delivery(load.payload_bytes),
                load.payload_bytes,
                lines=self.lines,
            )
            return drive(generator, load, [self._child.pid])


def drive(generator: Generator, load: Load, pids: Sequence[int]) -> Result:
    """Warms up, runs the load once, and reads the servers' CPU before and after."""
    names = ("latency", "lateness", "first", "middle", "last")
    histograms = {name: Histogram(1000, SECONDS_NS_MAX, 3) for name in names}

    def once(seconds: float, window: int) -> "Total":
        if load.mode == "saturated":
            return generator.saturate(window=window, seconds=seconds)
        return generator.pace(
            publishes_per_second=load.rate / load.fanout,
            seconds=seconds,
            latency=histograms["latency"],
            lateness=histograms["lateness"],
            first=histograms["first"],
            middle=histograms["middle"],
            last=histograms["last"],
        )

    window, total = load.window, None
    cpu_before = cpu.total_ns(pids)
    if load.warm_up_seconds:
        total = once(load.warm_up_seconds, min(WARM_UP_WINDOW, window))
        window = _window(load, total)
    if total is None or _whole(total, load.fanout):  # a warm-up with losses is the result: no run follows it
        for histogram in histograms.values():
            histogram.clear()
        cpu_before = cpu.total_ns(pids)
        total = once(load.seconds, window)
    used_ns = cpu.total_ns(pids) - cpu_before
    return Result(
        published=total["published"],
        deliveries=total["deliveries"],
        lost=total["published"] * load.fanout - total["deliveries"],
        duplicated=total["duplicated"] + total["strays"],
        corrupted=total["corrupted"],
        seconds=total["wall"] / 1e9,
        server_cpu_ns=used_ns,
        server_rss_bytes=sum(cpu.rss_bytes(pid) for pid in pids),
        latency=_latency(histograms) if load.mode == "paced" else None,
        late_p99_us=_us(histograms["lateness"], 99.0),
    )


def _window(load: Load, seen: "Total") -> int:
    """The load's window, but at most the server's work of WINDOW_SECONDS: beyond it only the latency grows."""
    per_second = seen["deliveries"] * 1e9 / max(seen["wall"], 1)
    return min(load.window, max(WARM_UP_WINDOW, int(per_second * WINDOW_SECONDS / load.fanout)))


def _whole(total: "Total", fanout: int) -> bool:
    faults = total["corrupted"] + total["duplicated"] + total["strays"] + total["closed"] + total["refused"]
    return total["published"] * fanout == total["deliveries"] and not faults


def _us(histogram: Histogram, percentile: float) -> float:
    return float(histogram.percentiles([percentile])[0]) / 1000.0


def _latency(histograms: dict[str, Histogram]) -> Latency:
    p50, p90, p99, p99_9 = (float(value) / 1000.0 for value in histograms["latency"].percentiles([50, 90, 99, 99.9]))
    first, middle, last = (_us(histograms[name], 50.0) for name in ("first", "middle", "last"))
    return Latency(p50, p90, p99, p99_9, first, middle, last)


def read_exactly(sock: socket.socket, count: int) -> bytes:
    """Raises `ConnectionError` if the server ends the connection first."""
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise ConnectionError(f"the server closed the connection after {data!r}")
        data += part
    return data


def expect(sock: socket.socket, wanted: bytes) -> None:
    answer = read_exactly(sock, len(wanted))
    if answer != wanted:
        raise ConnectionError(f"the server answered {answer!r}, not {wanted!r}")


def read_line(sock: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += read_exactly(sock, 1)
    return line
