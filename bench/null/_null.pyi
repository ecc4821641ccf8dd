import numpy as np
from numpy.typing import NDArray

def send(
    fd: int,
    addresses: NDArray[np.uint32],
    ports: NDArray[np.uint16],
    size: int,
    *,
    batch: int = 64,
    segments: int = 1,
    plain: bool = False,
    count: int | None = None,
    seconds: float = 1.0,
) -> tuple[int, int, int, int, int]:
    """Sends one payload round-robin to all destinations until `count` datagrams or `seconds`.

    `batch` messages per sendmmsg; `segments` > 1 makes each a UDP_SEGMENT super-packet; `plain` loops over sendto.
    Returns (datagrams, calls, errors, thread CPU ns, wall ns); a segment counts as a datagram.
    """

def drain(
    fd: int,
    *,
    batch: int | None = None,
    gro: bool = False,
    count: int | None = None,
    seconds: float = 1.0,
    wait: bool = False,
) -> tuple[int, int, int, int, int, int]:
    """Reads by recvmmsg until the socket is empty, with `wait` until `count` datagrams or `seconds`.

    Returns (datagrams, messages, bytes, truncated, thread CPU ns, wall ns); a `gro` message holds several datagrams.
    """

def receive(
    fds: NDArray[np.int32],
    each: NDArray[np.int64],
    stop: NDArray[np.int32],
    *,
    batch: int | None = None,
    gro: bool = False,
    seconds: float = 10.0,
) -> tuple[int, int, int, int, int, int]:
    """Drains all sockets in this thread; adds to `each` per socket. Ends when `stop[0]` is set and 5 ms are quiet.

    Returns as `drain`. No other thread is needed to hold the GIL: it is released throughout.
    """

def echo(fd: int, *, seconds: float = 10.0) -> int:
    """Blocks in recvfrom and answers each datagram; an empty one ends it. Set SO_RCVTIMEO for the time limit to act."""

def echo_client(
    fd: int, size: int, rate: float, count: int, *, patience: float = 0.2
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Asks `count` times on a fixed schedule over a connected socket.

    Returns (round-trip ns from the intended moment, one per answer; ns each question was sent late).
    """

def getppid_ns(count: int = 200_000) -> float: ...
def empty_recv_ns(fd: int, count: int = 200_000) -> float:
    """ns of a recv on an empty socket (EAGAIN)."""

def epoll_ns(fd: int, count: int = 200_000) -> float:
    """ns of an epoll_wait(0) that watches `fd` alone, whether it is readable or not."""

def relay(
    fd: int,
    addresses: NDArray[np.uint32],
    ports: NDArray[np.uint16],
    *,
    ack_every: int = 1,
    ack_bytes: int = 64,
    batch: int = 64,
    seconds: float = 10.0,
) -> tuple[int, int, int, int, int, int, int]:
    """Blocks for datagrams of `drive`, passes each on to all destinations, answers every `ack_every`-th to its source.

    A datagram whose first byte is 3 (at least 16 bytes) ends it. `ack_every` 0 sends no acknowledgements.
    Returns (received, sent, acks sent, acks received, errors, thread CPU ns, wall ns).
    """

def drive(
    fd: int,
    fds: NDArray[np.int32],
    address: int,
    port: int,
    size: int,
    *,
    rate: float | None = None,
    window: int = 64,
    count: int | None = None,
    seconds: float = 1.0,
    answer_every: int = 0,
) -> tuple[int, int, int, int, int, NDArray[np.uint64], NDArray[np.uint64]]:
    """Publishes to the first relay and counts arrivals at all `fds`, each answering every `answer_every`-th (0: none).

    With `rate` an open loop; else at most `window` publishes not yet arrived everywhere.
    Returns (published, deliveries, strangers, acks, wall ns to the last arrival, latency and lateness ns if paced).
    """
