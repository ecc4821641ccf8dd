"""Three blocking raw relays in a row, each a process on the server core: the reference of PF-11.

publisher -> relay 1 -> relay 2 -> relay 3 -> every client; each relay also answers its source with acknowledgements.
"""

import json
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench import pin
from bench.child import Child, private_directory, python_environment
from bench.null import _null
from bench.null.sockets import Clients, number_of, open_udp

HOPS = 3
STOP = bytes([3]) + bytes(15)
BUFFER_BYTES = 4 << 20


@contextmanager
def chain(
    clients: Clients, *, ack_every: int = 1, seconds: float = 60.0
) -> Iterator[tuple[tuple[str, int], list[int]]]:
    """Yields the first relay's address and the pids of all; they end with the block, or after `seconds`."""
    children: list[Child] = []
    entries: list[tuple[str, int]] = []
    with private_directory("relays") as name:
        directory = Path(name)
        try:
            to = [(host, int(port)) for host, port in (sock.getsockname() for sock in clients.sockets)]
            for hop in range(HOPS, 0, -1):
                job = {
                    "to": to,
                    "ack_every": ack_every,
                    "seconds": seconds,
                    "answer": str(directory / f"relay{hop}.port"),
                }
                order = directory / f"relay{hop}.json"
                order.write_text(json.dumps(job))
                child = Child(
                    f"relay{hop}",
                    [sys.executable, "-m", "bench.null.relays", str(order)],
                    core=pin.SERVER_CORE,
                    directory=directory,
                    environment=python_environment(),
                )
                children.append(child)
                answer = directory / f"relay{hop}.port"
                child.wait_until(answer.exists)
                entries.append(("127.0.0.1", int(answer.read_text())))
                to = [entries[-1]]
            yield entries[-1], [child.pid for child in children]
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                for entry in entries:
                    sock.sendto(STOP, entry)
            for child in children:
                child.stop()


def serve(order: Path) -> None:
    """The body of one relay process."""
    job = json.loads(order.read_text())
    to: Sequence[tuple[str, int]] = job["to"]
    with open_udp(buffer_bytes=BUFFER_BYTES) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _receive_timeout())
        answer = Path(job["answer"])
        part = answer.with_suffix(".part")
        part.write_text(str(sock.getsockname()[1]))
        part.rename(answer)
        _null.relay(
            sock.fileno(),
            np.array([number_of(host) for host, _ in to], dtype=np.uint32),
            np.array([port for _, port in to], dtype=np.uint16),
            ack_every=job["ack_every"],
            seconds=job["seconds"],
        )


def _receive_timeout() -> bytes:
    """struct timeval of 100 ms: how often a blocked relay looks at its time limit."""
    return (0).to_bytes(8, "little") + (100_000).to_bytes(8, "little")


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
