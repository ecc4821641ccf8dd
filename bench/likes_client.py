"""A client of Redis's protocol for a bench: pipelines written out beforehand, sent over many connections, answers compared.

Owns sockets and times. Knows neither commands nor servers. A pipeline costs it two system calls and about 2 µs more.
"""

import math
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

ANSWER_S: Final = 20.0
READ_BYTES: Final = 256 << 10
PING: Final = b"*1\r\n$4\r\nPING\r\n"
PONG: Final = b"+PONG\r\n"


def command(*words: bytes) -> bytes:
    """A command as an array of bulk strings."""
    return b"*%d\r\n%b" % (len(words), b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))


class Pipeline(NamedTuple):
    """Commands that go out with one write."""

    sent: bytes
    likes: int
    """Changes among the commands."""
    answer: bytes | int
    """All answers, or their bytes; 0: anything without an error that ends with the answer to `PING`."""


@dataclass(frozen=True)
class Load:
    """The work of a load, and its time."""

    likes: int
    seconds: float
    busy: float
    """Share of its core that the client took."""


@dataclass(frozen=True)
class Paced:
    """Times in seconds. `late` is how late a question was sent, `took` counts from when it was to be sent."""

    pipelines: int
    """Sent; fewer than planned where the server was behind."""
    planned: int
    late: Sequence[float]
    took: Sequence[float]


class Lane:
    """One connection: the next pipeline goes out once the last one is answered."""

    def __init__(self, sock: socket.socket, pipelines: Iterator[Pipeline]) -> None:
        self.socket, self._pipelines = sock, pipelines
        self.likes = 0
        """Of the pipeline that was sent last."""
        self._answer: bytes | int = 0
        self._got = b""

    def send(self) -> bool:
        """Send the next pipeline; False if there is none."""
        pipeline = next(self._pipelines, None)
        if pipeline is None:
            return False
        self.likes, self._answer, self._got = pipeline.likes, pipeline.answer, b""
        self.socket.sendall(pipeline.sent)
        return True

    def take(self) -> bool:
        """Read; True once all answers are here. Raises `ConnectionError` if one is wrong."""
        self._got += read(self.socket)
        return whole(self._answer, self._got)


def whole(answer: bytes | int, got: bytes) -> bool:
    """Whether these are all answers of a pipeline. Raises `ConnectionError` if one is wrong."""
    if isinstance(answer, bytes):
        if len(got) < len(answer):
            return False
        right = got == answer
    else:
        right = b"-" not in got  # an error, or nothing where there is something
        if right and not (len(got) >= answer if answer else got.endswith(PONG)):
            return False
    if not right:
        raise ConnectionError(f"the server answered {got[:120]!r}")
    return True


def read(sock: socket.socket) -> bytes:
    """Reads the bytes that are there. Raises `ConnectionError` at the end."""
    if data := sock.recv(READ_BYTES):
        return data
    raise ConnectionError("the server closed the connection")


def connect(port: int) -> socket.socket:
    """A connection to the loopback."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def ask(port: int, command: bytes) -> bytes:
    """One line of an answer."""
    with connect(port) as sock:
        sock.sendall(command)
        got = b""
        while not got.endswith(b"\r\n"):
            got += read(sock)
        return got


def saturate(port: int, sources: Sequence[Iterator[Pipeline]], seconds: float = math.inf) -> Load:
    """Have each source on a connection of its own, as fast as answers come, until the time or the pipelines end.

    Every pipeline that was sent is answered, so that a source goes on where it was.
    """
    with _connected(port, sources) as (lanes, poll):
        likes = 0
        used, began = time.thread_time(), time.monotonic()
        now, end = began, began + seconds
        busy = sum(lane.send() for lane in lanes.values())
        while busy:
            ready = poll.poll(ANSWER_S)
            if not ready:
                raise ConnectionError(f"no answer for {ANSWER_S:g} s")
            for number, _ in ready:
                lane = lanes[number]
                if lane.take():
                    likes += lane.likes
                    if now >= end or not lane.send():
                        busy -= 1
            now = time.monotonic()
        return Load(likes, now - began, (time.thread_time() - used) / (now - began))


def pace(
    port: int,
    sources: Sequence[Iterator[Pipeline]],
    question: bytes,
    *,
    pipelines_rate: float,
    questions_rate: float,
    seconds: float,
    answer: bytes | int = 0,
) -> Paced:
    """Send pipelines by a schedule, a second, and by another one, on its own connection, a question that ends with
    `PING`. Never sleeps: the next send must not be late. `answer` is that of a question, as of a pipeline; bytes end
    with the answer to `PING`."""
    late: list[float] = []
    took: list[float] = []
    asked: deque[float] = deque()
    got = b""
    with _connected(port, sources) as (lanes, poll), connect(port) as asking:
        poll.register(asking.fileno(), select.EPOLLIN)
        idle = deque(lanes.values())
        sent = questions = 0
        began = time.monotonic()
        end = began + seconds
        while (now := time.monotonic()) < end or asked or len(idle) < len(lanes):
            if now > end + ANSWER_S:
                raise ConnectionError(f"no answer for {ANSWER_S:g} s")
            if now < end:
                while idle and began + sent / pipelines_rate <= now:
                    idle.popleft().send()
                    sent += 1
                while (due := began + questions / questions_rate) <= now:
                    asked.append(due)
                    late.append(time.monotonic() - due)
                    asking.sendall(question)
                    questions += 1
            for number, _ in poll.poll(0):
                if number != asking.fileno():
                    if lanes[number].take():
                        idle.append(lanes[number])
                    continue
                got += read(asking)
                *answered, got = got.split(PONG)
                for each in answered:
                    whole(answer, each + PONG)
                    took.append(time.monotonic() - asked.popleft())
    return Paced(sent, round(seconds * pipelines_rate), late, took)


@contextmanager
def _connected(port: int, sources: Sequence[Iterator[Pipeline]]) -> Iterator[tuple[Mapping[int, Lane], select.epoll]]:
    with ExitStack() as stack, select.epoll() as poll:
        lanes = {}
        for source in sources:
            sock = stack.enter_context(connect(port))
            lanes[sock.fileno()] = Lane(sock, source)
            poll.register(sock.fileno(), select.EPOLLIN)
        yield lanes, poll
