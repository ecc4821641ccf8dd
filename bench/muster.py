"""Muster as a target: `muster up` as a child on the server core, compiled clients on the driver core.

Owns the instance and its outside figures: CPU and memory by role. Clients have a socket each, join a room of the run's
own, check every delivery byte by byte, and close their sessions at the end.
"""

import itertools
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from bench import cpu, pin
from bench.child import Child, ChildFailedError, private_directory, python_environment
from bench.listeners import Audience, Listeners, Reach
from bench.node import HEAP_FIGURES, TICK_BUCKET_US, TICK_BUCKETS, heap_file, ticks_file
from bench.null.sockets import allow_files
from bench.targets import Latency, Load, Result
from muster.testing import ROLES
from muster_server._engines import LoadEngine
from muster_server.control.cluster import instance as folders
from muster_server.control.errors import UserError

PACED, LIVE = "paced", "live"
JOIN_SECONDS: Final = 90.0
START_SECONDS: Final = 60.0  # eighteen processes on one core
LOOK_SECONDS: Final = 0.5
QUIET_SHARE: Final = 0.35
"""Share of a core of all processes of an idle instance; eighteen use half of that for their links' pings."""
PATIENCE_SECONDS: Final = 20.0
CLIENT_BUFFER_BYTES: Final = 1 << 20
GATEWAY: Final = "gateway"
APART, TOGETHER = "apart", "together"
"""Values of `up.processes`."""

KEEPALIVES: Final[dict[str, object]] = {
    f"{role}.{key}": value
    for role in ("gateway", "proxy")
    for key, value in (("keepalive_ms", 15_000), ("idle_timeout_ms", 45_000))
}
"""The default outside `muster up`: keepalives of a hundred thousand sessions every second are a load of their own."""

Outcome = dict[str, Any]


class Instance:
    """The roles, one of each unless `settings` says otherwise, started once for all targets that share them."""

    def __init__(
        self,
        *options: Literal["--gateway-alone", "--unbundled", "--single", "--heap"],
        ticks: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """With options or `ticks` the processes are those of `bench.node`, else of `muster up`.

        `settings`: keys of the configuration, as `up.gateways`. Each node has a process of its own unless they say
        otherwise.
        """
        self._options = (*options, "--ticks") if ticks else options
        self._settings = settings or {}
        self._resources = ExitStack()
        self._record: folders.Record | None = None
        self._numbers = itertools.count()
        self.folder = Path()
        self.token = b""

    def start(self) -> None:
        if self._record is not None:
            return
        directory = Path(self._resources.enter_context(private_directory("bench")))
        self.folder = directory / "instance"
        cores = [str(pin.SERVER_CORE), str(pin.DRIVER_CORE)]  # child processes see only the core that they inherit
        words = [[each, *cores] if each == "--gateway-alone" else [each] for each in self._options]
        module = ["bench.up", *itertools.chain(*words)] if words else ["muster_server", "up"]
        environment = {
            **python_environment(),
            "MUSTER_INSTANCE__DIR": str(self.folder),
            "MUSTER_LOG__LEVEL": "error",
            "MUSTER_UP__PROCESSES": APART,
            "MUSTER_PROBES__EVERY_MS": "0",  # only the load is to be measured
            "MUSTER_PROXY__USER_MESSAGE_RATE": "0",  # one publisher stands for many
            "MUSTER_PROXY__USER_BYTE_RATE": "0",
            f"MUSTER_NAMESPACES__{PACED.upper()}__FLOW": "paced",
            f"MUSTER_NAMESPACES__{LIVE.upper()}__FLOW": "live",
            **{f"MUSTER_{key.replace('.', '__').upper()}": str(value) for key, value in self._settings.items()},
        }
        child = Child(
            "muster",
            [sys.executable, "-m", *module],
            core=pin.SERVER_CORE,
            directory=directory,
            environment=environment,
        )
        self._resources.callback(child.stop)
        child.wait_until(self._ready, seconds=START_SECONDS)
        child.wait_until(self._quiet, seconds=START_SECONDS)
        self.token = Path(self.record.token_file).read_bytes().strip()

    def _ready(self) -> bool:
        try:
            record = self.look()
        except UserError:
            return False
        all_there = {process.role for process in record.processes} >= set(ROLES)
        if all_there and all(process.ready for process in record.processes):
            self._record = record
        return self._record is not None

    def _quiet(self) -> bool:
        """A ready process still loads modules that it may need, such as a database's driver."""
        before, began = sum(self.cpu_ns().values()), time.monotonic_ns()
        time.sleep(LOOK_SECONDS)
        return sum(self.cpu_ns().values()) - before < QUIET_SHARE * (time.monotonic_ns() - began)

    def stop(self) -> None:
        self._record = None
        self._resources.close()

    @property
    def record(self) -> folders.Record:
        if self._record is None:
            raise RuntimeError("the instance is not started")
        return self._record

    def look(self) -> folders.Record:
        """Return the current record: a restarted node has another process. Raises `UserError`."""
        return folders.find(folders.Folder(self.folder))

    @property
    def pids(self) -> dict[str, int]:
        """By role, if there is one of each."""
        return {process.role: process.pid for process in self.record.processes}

    def processes(self) -> dict[str, int]:
        """Their pids, by role, or by `+` between those of a shared one."""
        roles: dict[int, list[str]] = {}
        for role, pid in self.pids.items():
            roles.setdefault(pid, []).append(role)
        return {"+".join(names): pid for pid, names in roles.items()}

    def cpu_ns(self) -> dict[str, int]:
        """By role, over all its processes; one that several roles share counts for one of them. A process that died
        meanwhile fails the run."""
        used = dict.fromkeys(self.pids, 0)
        try:
            for pid, role in {process.pid: process.role for process in self.record.processes}.items():
                used[role] += cpu.process_ns(pid)
            return used
        except ProcessLookupError as error:
            raise ChildFailedError(f"muster: {error}") from None

    def rss_bytes(self) -> int:
        """The memory of all node processes, each counted once."""
        return sum(cpu.rss_bytes(pid) for pid in {process.pid for process in self.record.processes})

    def late_ticks(self, role: str) -> NDArray[np.uint64]:
        """Since the start: how often the role's 10 ms timer was late, per 100 us of lateness."""
        return np.fromfile(ticks_file(self.folder, role), dtype=np.uint64, count=TICK_BUCKETS)

    def heap_bytes(self, role: str) -> tuple[int, int]:
        """With `--heap`: what the role's process allocated and did not free; what it freed and its C library keeps."""
        allocated, kept = np.fromfile(heap_file(self.folder, role), dtype=np.uint64, count=HEAP_FIGURES)
        return int(allocated), int(kept)

    def room(self, namespace: str) -> str:
        """An unused room name."""
        return f"{namespace}:bench-{next(self._numbers)}"

    @contextmanager
    def clients(
        self,
        members: int,
        *,
        rooms: Sequence[str],
        rooms_each: int = 1,
        gro: bool = True,
        buffer_bytes: int = CLIENT_BUFFER_BYTES,
        commanding: bool = False,
        proxies_each: int | None = None,
        gateways: Reach | None = None,
    ) -> Iterator[LoadEngine]:
        """Joined members and a publisher for 256 rooms on the driver core; the calling thread is on it inside the
        block.

        `commanding`: the members have sessions at proxies too, at this many, else at all. `gateways`: those that
        members may use, else all.
        """
        allow_files(members + len(rooms) // 256 + 256)
        with pin.on(pin.DRIVER_CORE):
            engine = LoadEngine(
                gateways=list(gateways or reach(self.record.gateways)),
                proxies=reach(self.record.proxies),
                credential=self.token,
                members=members,
                rooms=list(rooms),
                seed=secrets.randbits(60),
                rooms_each=rooms_each,
                recv_buffer=buffer_bytes,
                gro=gro,
                commanding=commanding,
                proxies_each=proxies_each,
            )
            try:
                joined = engine.connect(JOIN_SECONDS)
                if joined < members:
                    raise ChildFailedError(f"muster: only {joined} of {members} clients joined in {JOIN_SECONDS:g} s")
                yield engine
            finally:
                engine.close()

    @contextmanager
    def listeners(
        self,
        members: int,
        *,
        rooms: Sequence[str],
        payload_bytes: int,
        gateways: Reach | None = None,
        storm: int = 0,
        members_each: int = 1,
    ) -> Iterator[Listeners]:
        """Joined members in processes of their own, which give way to everything else.

        `storm`: they do not, and this many of each process may open a session at once. `members_each`: per socket.
        """
        gateways, proxies = gateways or reach(self.record.gateways), reach(self.record.proxies)
        where = Audience(
            gateways,
            proxies,
            self.token,
            rooms,
            payload_bytes,
            JOIN_SECONDS,
            pin.DRIVER_CORE,
            members_each=members_each,
        )
        if storm:
            where = replace(where, gives_way=False, knocking=storm)
        listeners = Listeners(where, members)
        try:
            listeners.start()
            yield listeners
        finally:
            listeners.stop()


def reach(ends: Sequence[folders.Endpoint]) -> list[tuple[str, int, bytes]]:
    """The nodes as engines take them."""
    return [(end.host, end.port, bytes.fromhex(end.public_key)) for end in ends]


def late_percentile_us(counts: NDArray[np.uint64], percentile: float) -> float:
    """Upper end of the bucket that holds the percentile."""
    total = counts.cumsum()
    if not total[-1]:
        return float("inf")
    return float(np.searchsorted(total, total[-1] * percentile / 100) + 1) * TICK_BUCKET_US


class Muster:
    """Implements `bench.targets.Target`."""

    def __init__(self, instance: Instance, name: str = "muster", *, gro: bool = True) -> None:
        self.name = name
        self._instance = instance
        self._gro = gro

    def start(self) -> Sequence[int]:
        self._instance.start()
        return list(set(self._instance.pids.values()))

    def stop(self) -> None:
        self._instance.stop()

    def run(self, load: Load) -> Result:
        with self._instance.clients(load.fanout, rooms=[self._instance.room(PACED)], gro=self._gro) as engine:
            return drive(self._instance, engine, load)


def drive(instance: Instance, engine: LoadEngine, load: Load) -> Result:
    """Warms up, runs the load once, and reads the roles' CPU before and after."""
    once = runner(engine, load)
    if load.warm_up_seconds:
        once(load.warm_up_seconds)
    before = instance.cpu_ns()
    outcome = once(load.seconds)
    used = {role: ns - before[role] for role, ns in instance.cpu_ns().items()}
    return result(instance, load, outcome, used)


def runner(engine: LoadEngine, load: Load) -> Callable[[float], Outcome]:
    if load.mode == "saturated":
        return lambda seconds: engine.saturate(load.payload_bytes, seconds, PATIENCE_SECONDS)
    rate = load.rate / load.fanout
    return lambda seconds: engine.pace(load.payload_bytes, rate, seconds, PATIENCE_SECONDS)


def result(instance: Instance, load: Load, outcome: Outcome, used: Mapping[str, int]) -> Result:
    """Converts the result of `LoadEngine` to that of all targets."""
    expected = outcome["published"] * load.fanout
    return Result(
        published=outcome["published"],
        deliveries=outcome["delivered"],
        lost=max(0, expected - outcome["delivered"]),
        duplicated=max(0, outcome["delivered"] - expected, outcome["out_of_turn"] - outcome["gaps"]),
        corrupted=outcome["corrupted"],
        seconds=outcome["wall_us"] / 1e6,
        server_cpu_ns=sum(used.values()),
        server_rss_bytes=instance.rss_bytes(),
        latency=latency(outcome) if load.mode == "paced" else None,
        late_p99_us=float(outcome["late_p99_us"]),
        role_cpu_ns={} if _is_shared(instance) else used,
    )


def _is_shared(instance: Instance) -> bool:
    """Whether roles share a process, so that nobody knows which of them used its CPU."""
    return len({*instance.pids.values()}) < len(instance.pids)


def latency(outcome: Outcome) -> Latency:
    """Of arrived deliveries; a run without any has infinite latency."""

    def percentiles(name: str, wanted: Sequence[float]) -> list[float]:
        times = np.frombuffer(outcome[name], dtype="<u4")
        return [float(value) for value in np.percentile(times, wanted)] if len(times) else [float("inf")] * len(wanted)

    p50, p90, p99, p99_9 = percentiles("latencies_us", (50, 90, 99, 99.9))
    first, middle, last = (percentiles(name, (50,))[0] for name in ("first_us", "middle_us", "last_us"))
    return Latency(p50, p90, p99, p99_9, first, middle, last)
