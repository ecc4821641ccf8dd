"""Members in processes of their own: for more members than one process may have open files, and for members that stop.

Owns these processes and their orders: listen, publish, sum up, watch for the first message, go to other servers. They
share the driver core with the measuring process. Unless told otherwise, joined listeners run only when nothing else
wants to. Each member, or each group, has a socket, and every byte is checked.
"""

import math
import multiprocessing
import os
import resource
import secrets
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench import pin
from bench.child import ChildFailedError
from bench.null.sockets import allow_files
from muster_server._engines import LoadEngine

FILES_SPARE: Final = 512
SOCKETS_MAX: Final = 16_000  # a process
LISTEN_SECONDS: Final = 0.02  # between two looks at its orders
BUFFER_BYTES: Final = 1 << 16  # of one member; a socket of several has up to this much
SHARED_BYTES: Final = 1 << 20

Reach = Sequence[tuple[str, int, bytes]]
Sums = dict[str, int]


@dataclass(frozen=True)
class Audience:
    """The address of an instance, and the rooms over which members are spread."""

    gateways: Reach
    proxies: Reach
    credential: bytes
    rooms: Sequence[str]
    payload_bytes: int
    join_seconds: float
    core: int
    gives_way: bool = True
    knocking: int = 128  # at once, in each process
    members_each: int = 1  # per socket


@dataclass(frozen=True)
class Publishing:
    """The messages for one process to publish, on a fixed schedule; those without credit are dropped."""

    rate: float
    seconds: float
    patience_seconds: float


@dataclass(frozen=True)
class Watch:
    """The moment, on the monotonic clock, after which a message must be published to count."""

    at: float


@dataclass(frozen=True)
class Redirect:
    """The servers that members may use from now on. Good sessions stay."""

    gateways: Reach


class Listeners:
    """Processes whose members are in the same rooms. The first of them can publish there."""

    def __init__(self, where: Audience, members: int) -> None:
        self._where = where
        self.members = members
        self._parts: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []

    def start(self) -> None:
        """Starts them one after the other, each when the former has joined: together they would starve each other's
        handshakes."""
        spawn = multiprocessing.get_context("spawn")
        sockets = min(SOCKETS_MAX, _files_max() - FILES_SPARE)
        left, most = self.members, sockets * self._where.members_each
        while left > 0:
            count = min(left, most)
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_listen, args=(theirs, self._where, count), daemon=True)
            process.start()
            theirs.close()
            self._parts.append((process, ours))
            joined = self._answer(len(self._parts) - 1)
            if joined != count:
                raise ChildFailedError(f"only {joined} of {count} listeners joined")
            left -= count

    def publish(self, how: Publishing) -> None:
        """Lets the first publish while the others listen. `published` waits for the end."""
        self._parts[0][1].send(how)

    def published(self) -> dict[str, Any]:
        outcome: dict[str, Any] = self._answer(0)
        return outcome

    def sums(self) -> Sums:
        """Returns the deliveries to all members since the last call, without those of the publishing process
        meanwhile."""
        total: Sums = {}
        for _, pipe in self._parts:
            pipe.send("sum")
        for part in range(len(self._parts)):
            for name, count in self._answer(part).items():
                total[name] = total.get(name, 0) + count
        return total

    def redirect(self, gateways: Reach) -> None:
        for _, pipe in self._parts:
            pipe.send(Redirect(gateways))

    def watch(self, at: float) -> None:
        for _, pipe in self._parts:
            pipe.send(Watch(at))

    def waited(self) -> NDArray[np.float64]:
        """Returns, per member, the seconds from the watched moment to its first message; infinity if none came."""
        for _, pipe in self._parts:
            pipe.send("heard")
        first = np.frombuffer(b"".join(self._answer(part) for part in range(len(self._parts))), dtype="<u4")
        return np.where(first == np.iinfo(np.uint32).max, np.inf, first / 1e6)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops all of them for a while."""
        pids = [process.pid for process, _ in self._parts if process.pid]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        for process, pipe in self._parts:
            pipe.close()
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()
        self._parts.clear()

    def _answer(self, part: int) -> Any:
        process, pipe = self._parts[part]
        try:
            return pipe.recv()
        except EOFError:
            process.join(1.0)
            raise ChildFailedError(f"a process of listeners ended with {process.exitcode}") from None


def _files_max() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return SOCKETS_MAX + FILES_SPARE if hard == resource.RLIM_INFINITY else hard


def _listen(pipe: Connection, where: Audience, members: int) -> None:
    """The process: joins, listens, and carries out orders until its parent ends it."""
    pin.pin(where.core)
    each = where.members_each
    allow_files(math.ceil(members / each) + FILES_SPARE // 2)
    with ExitStack() as stack:
        engine = LoadEngine(
            gateways=list(where.gateways),
            proxies=list(where.proxies),
            credential=where.credential,
            members=members,
            rooms=list(where.rooms),
            seed=secrets.randbits(60),
            recv_buffer=min(each * BUFFER_BYTES, SHARED_BYTES),
            knocking=where.knocking,
            members_each=each,
        )
        stack.callback(engine.close)
        pipe.send(engine.connect(where.join_seconds))
        if where.gives_way:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        sums: Sums = {}
        lost = engine.sessions_lost()
        while True:
            for name, count in engine.listen(where.payload_bytes, LISTEN_SECONDS).items():
                sums[name] = sums.get(name, 0) + count
            if not pipe.poll():
                continue
            try:
                told: Publishing | Watch | Redirect | str = pipe.recv()
            except EOFError:
                return
            match told:
                case Publishing():
                    size, patience = where.payload_bytes, told.patience_seconds
                    pipe.send(engine.pace(size, told.rate, told.seconds, patience, shed=True))
                case Watch():
                    engine.watch(told.at)
                case Redirect():
                    engine.redirect(list(told.gateways))
                case "heard":
                    pipe.send(engine.heard()[0])
                case _:
                    pipe.send({**sums, "sessions_lost": engine.sessions_lost() - lost})
                    sums, lost = {}, engine.sessions_lost()
